//! Mounting: refusals, tokens, labels, leftovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_cluster::{DeleteParams, Patch};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{
    Claim, CsiDriver, Node, Pod, ServiceAccount, Volume, VolumeAttachment,
};
use longshore_core::names::{attachment_name, inline_handle};
use longshore_csi::Call;
use longshore_csi::fake::{Action, Fault, Phase};
use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::rig::{DRIVER, Rig};
use crate::{STAY, quick};

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

pub fn inline(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "v", "csi": {"driver": DRIVER, "fsType": "ext4",
            "volumeAttributes": {"foo": "bar"}}}],
        "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", STAY],
            "volumeMounts": [{"name": "v", "mountPath": "/data"}]}],
    }})
}

async fn touch(rig: &Rig, pod: &str, value: &str) {
    let patch = json!({"metadata": {"annotations": {"touched": value}}});
    rig.api.patch::<Pod>(&ObjectKey::new("default", pod), Patch::Merge(&patch)).await.unwrap();
}

async fn account(rig: &Rig) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "default"}});
    // Somebody else may have made it.
    let _ = rig.api.create::<ServiceAccount>(&account).await;
}

#[tokio::test]
async fn a_driver_that_is_not_registered_is_waited_for() {
    if !need("a_driver_that_is_not_registered_is_waited_for", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let csi = json!({"driver": "absent.csi.test", "volumeHandle": "h"});
    rig.volume_with("data", json!({"csi": csi})).await;
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": "absent.csi.test"}, "spec": {"attachRequired": false}});
    rig.api.create::<CsiDriver>(&object).await.unwrap();
    rig.pod("p", "true", quick()).await;
    // case: node/N9
    rig.until("an event", async || {
        rig.has_event("FailedMount", "absent.csi.test not found in the list of registered").await
    })
    .await;
    assert!(rig.heard.all().is_empty());
    rig.stop(true).await;
}

#[tokio::test]
async fn a_pod_waits_for_a_driver_object_that_is_made_anew_and_says_so() {
    if !need("a_pod_waits_for_a_driver_object_that_is_made_anew_and_says_so", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    let key = ObjectKey::cluster(DRIVER);
    let object = rig.api.get_raw::<CsiDriver>(&key).await.unwrap().unwrap();
    rig.api.delete::<CsiDriver>(&key, &DeleteParams::default()).await.unwrap();
    rig.pod("p", STAY, quick()).await;
    let text = format!(
        "unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: \
         csidriver.storage.k8s.io \"{DRIVER}\" not found"
    );
    rig.until("said", async || rig.has_event("FailedMount", &text).await).await;
    assert!(rig.heard.all().is_empty());
    let anew = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": DRIVER}, "spec": object["spec"]});
    rig.api.create::<CsiDriver>(&anew).await.unwrap();
    rig.wait_phase("p", "Running").await;
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn an_inline_volume_is_published_and_nothing_else() {
    if !need("an_inline_volume_is_published_and_nothing_else", &[Need::Root]) {
        return;
    }
    let modes = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    let rig = Rig::start_with(false, modes).await;
    let uid = rig.create_pod(inline("p")).await;
    rig.wait_phase("p", "Running").await;
    // case: node/N15
    let target = rig.root().join(format!("pods/{uid}/volumes/kubernetes.io~csi/v/mount"));
    let handle = inline_handle(&uid.as_str().into(), "v");
    assert_eq!(
        rig.heard.of("NodePublishVolume"),
        [json!({"volume_id": handle, "target": target, "volume_context": {"foo": "bar"},
            "capability": {"mount": {"fs_type": "ext4"}, "mode": "SINGLE_NODE_WRITER"}})]
    );
    rig.end("p").await;
    assert_eq!(rig.heard.names(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    // case: node/N16
    let key = ObjectKey::cluster(DRIVER);
    rig.api.delete::<CsiDriver>(&key, &DeleteParams::default()).await.unwrap();
    rig.heard.clear();
    rig.create_pod(inline("q")).await;
    rig.until("an event", async || {
        let text =
            "volume mode \"Ephemeral\" not supported by driver main.csi.test (no CSIDriver object)";
        rig.has_event("FailedMount", text).await
    })
    .await;
    assert!(rig.heard.all().is_empty());
    rig.stop(true).await;
}

#[tokio::test]
async fn a_refused_publish_leaves_nothing_behind() {
    if !need("a_refused_publish_leaves_nothing_behind", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    rig.driver.always(Call::NodePublishVolume, Fault::before(tonic::Code::Internal));
    let uid = rig.pod("p", "true", quick()).await;
    // case: node/N22
    rig.until("refused, and the directory is gone", async || {
        !rig.heard.of("NodePublishVolume").is_empty() && !rig.publish_dir(&uid, "data").exists()
    })
    .await;
    assert!(!rig.staged_dirs().is_empty(), "what is staged stays");
    rig.stop(true).await;
}

#[tokio::test]
async fn a_refused_publish_of_something_known_forgets_nothing() {
    if !need("a_refused_publish_of_something_known_forgets_nothing", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start_with(false, json!({"requiresRepublish": true})).await;
    rig.volume("data").await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let data = rig.publish_dir(&uid, "data").join("vol_data.json");
    // case: node/N23 (repeated publish)
    rig.driver.always(Call::NodePublishVolume, Fault::before(tonic::Code::Internal));
    let before = rig.heard.of("NodePublishVolume").len();
    touch(&rig, "p", "1").await;
    rig.until("refused twice", async || rig.heard.of("NodePublishVolume").len() >= before + 2)
        .await;
    assert!(data.exists() && rig.publish_dir(&uid, "data").join("mount").exists());
    let pod = rig.wait_phase("p", "Running").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(rig.heard.of("NodeStageVolume").len(), 1, "staging is not repeated");
    // case: node/N23 (found on disk)
    rig.kill_agent().await;
    rig.start_agent().await;
    rig.until("refused twice", async || rig.heard.of("NodePublishVolume").len() >= 2).await;
    assert!(data.exists() && rig.publish_dir(&uid, "data").join("mount").exists());
    rig.driver.clear_faults();
    let failed = rig.heard.of("NodePublishVolume").len();
    rig.until("accepted", async || rig.heard.of("NodePublishVolume").len() > failed).await;
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn tokens_go_into_the_context_or_the_secrets_as_the_driver_asks() {
    if !need("tokens_go_into_the_context_or_the_secrets_as_the_driver_asks", &[Need::Root]) {
        return;
    }
    let wanted = json!({"requiresRepublish": true,
        "tokenRequests": [{"audience": ""}, {"audience": "gcp", "expirationSeconds": 900}]});
    let rig = Rig::start_with(false, wanted).await;
    account(&rig).await;
    rig.volume("data").await;
    rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    // case: node/N24
    let publish = rig.heard.of("NodePublishVolume")[0].clone();
    let text = publish["volume_context"][TOKENS].as_str().unwrap().to_owned();
    let tokens: Value = serde_json::from_str(&text).unwrap();
    for audience in ["", "gcp"] {
        assert!(
            tokens[audience]["token"].as_str().is_some_and(|token| token.len() > 20),
            "{audience:?}"
        );
        assert!(tokens[audience]["expirationTimestamp"].is_string());
    }
    assert!(rig.heard.of("NodeStageVolume")[0]["volume_context"].is_null());
    // Every repetition has the same tokens, and nothing is staged again.
    let before = rig.heard.of("NodePublishVolume").len();
    touch(&rig, "p", "1").await;
    rig.until("published again", async || rig.heard.of("NodePublishVolume").len() > before).await;
    for again in rig.heard.of("NodePublishVolume") {
        assert_eq!(again["volume_context"][TOKENS], text.as_str());
    }
    assert_eq!(rig.heard.of("NodeStageVolume").len(), 1);
    rig.end("p").await;
    // case: node/N25
    let patch = json!({"spec": {"serviceAccountTokenInSecrets": true}});
    rig.api.patch::<CsiDriver>(&ObjectKey::cluster(DRIVER), Patch::Merge(&patch)).await.unwrap();
    rig.until("the agent knows", async || {
        rig.heard.clear();
        rig.pod("q", STAY, quick()).await;
        rig.wait_phase("q", "Running").await;
        let publish = rig.heard.of("NodePublishVolume")[0].clone();
        rig.end("q").await;
        let found = publish["secrets"][TOKENS].is_string();
        assert!(!found || publish["volume_context"][TOKENS].is_null());
        found
    })
    .await;
    rig.stop(true).await;
}

fn labelled(name: &str, level: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "securityContext": if level.is_empty() { json!({}) } else { json!({"seLinuxOptions": {"level": level}}) },
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", STAY],
            "volumeMounts": [{"name": "v", "mountPath": "/data"}]}],
    }})
}

#[tokio::test]
async fn labels_are_mount_flags_and_must_agree() {
    if !need("labels_are_mount_flags_and_must_agree", &[Need::Root]) {
        return;
    }
    let rig = Rig::start_tweaked(false, json!({"seLinuxMount": true}), |settings| {
        settings.selinux = true
    })
    .await;
    rig.volume("data").await;
    let uid = rig.create_pod(labelled("p", "s0:c0")).await;
    rig.wait_phase("p", "Running").await;
    // case: node/N13
    let flag = "context=\"system_u:object_r:container_file_t:s0:c0\"";
    for call in ["NodeStageVolume", "NodePublishVolume"] {
        let flags = rig.heard.of(call)[0]["capability"]["mount"]["mount_flags"].clone();
        assert_eq!(flags, json!([flag]), "{call}");
    }
    let data =
        std::fs::read_to_string(rig.publish_dir(&uid, "data").join("vol_data.json")).unwrap();
    assert!(
        data.contains("\"seLinuxMountContext\":\"system_u:object_r:container_file_t:s0:c0\""),
        "{data}"
    );
    // case: node/N65
    rig.create_pod(labelled("q", "s0:c9")).await;
    rig.until("an event", async || {
        rig.has_event("FailedMount", "conflicting SELinux labels of volume pv-data").await
    })
    .await;
    let text = rig.metrics.render();
    let counted = |line: &str| {
        line.starts_with("volume_manager_selinux_volume_context_mismatch_errors_total{")
            && !line.ends_with(" 0")
    };
    assert!(text.lines().any(counted), "{text}");
    rig.end("p").await;
    // With the first pod gone, the volume goes to the second with its own label.
    rig.wait_phase("q", "Running").await;
    assert!(rig.heard.of("NodeStageVolume")[1].to_string().contains("s0:c9"));
    rig.end("q").await;
    rig.heard.clear();
    // case: node/N14
    rig.create_pod(labelled("r", "")).await;
    rig.wait_phase("r", "Running").await;
    assert!(!rig.heard.of("NodePublishVolume")[0].to_string().contains("context="));
    rig.stop(true).await;
}

#[tokio::test]
async fn a_volume_without_metadata_is_unmounted_only_after_its_pod_is_gone() {
    if !need("a_volume_without_metadata_is_unmounted_only_after_its_pod_is_gone", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.volume("data").await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let dir = rig.publish_dir(&uid, "data");
    let data = dir.join("vol_data.json");
    let good = std::fs::read_to_string(&data).unwrap();
    rig.kill_agent().await;
    std::fs::write(&data, "broken").unwrap();
    rig.start_agent().await;
    // case: node/N60 (wanted: left alone, and mounted again as any other)
    rig.until("the metadata is back", async || {
        std::fs::read_to_string(&data).is_ok_and(|text| text == good)
    })
    .await;
    rig.kill_agent().await;
    std::fs::write(&data, "broken").unwrap();
    rig.force_delete_pod("p").await;
    rig.start_agent().await;
    // case: node/N60 (not wanted: unmounted once)
    rig.until("the directory is gone", async || !dir.exists()).await;
    assert!(rig.heard.of("NodeUnpublishVolume").is_empty(), "nobody knows which volume it was");
    let text = rig.metrics.render();
    for line in [
        "reconstruct_volume_operations_errors_total 1",
        "force_cleaned_failed_volume_operations_total 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    rig.stop(false).await;
}

#[tokio::test]
async fn a_pod_on_a_full_node_is_rejected() {
    if !need("a_pod_on_a_full_node_is_rejected", &[Need::Root]) {
        return;
    }
    let extra = json!({"nodeAllocatableUpdatePeriodSeconds": 3600});
    let rig = Rig::start_tweaked(true, extra, |settings| {
        settings.mount_timeout = Duration::from_millis(500);
    })
    .await;
    rig.volume("data").await;
    let handle = rig.handle("data");
    let va = attachment_name(&handle, &DRIVER.into(), &"n1".into());
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": va},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-data"}}});
    rig.api.create::<VolumeAttachment>(&object).await.unwrap();
    let failed =
        json!({"status": {"attached": false, "attachError": {"message": "full", "errorCode": 8}}});
    let key = ObjectKey::cluster(&va);
    rig.api.patch_status::<VolumeAttachment>(&key, Patch::Merge(&failed)).await.unwrap();
    rig.driver.configure(|config| config.max_volumes_per_node = 3);
    rig.pod("p", "true", quick()).await;
    // case: node/N63
    let pod = rig.wait_phase("p", "Failed").await;
    assert_eq!(pod["status"]["reason"], "VolumeAttachmentLimitExceeded");
    assert_eq!(
        pod["status"]["message"],
        "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], \
         unattached volumes=[v], failed to process volumes=[]: context deadline exceeded"
    );
    assert_eq!(rig.csi_node().await["spec"]["drivers"][0]["allocatable"]["count"], 3);
    assert!(rig.has_event("VolumeAttachmentLimitExceeded", "rejecting pod").await);
    let none = json!({"status": {"volumesAttached": []}});
    rig.api.patch_status::<Node>(&ObjectKey::cluster("n1"), Patch::Merge(&none)).await.unwrap();
    rig.stop(true).await;
}

#[tokio::test]
async fn a_claim_that_is_being_bound_causes_no_event() {
    if !need("a_claim_that_is_being_bound_causes_no_event", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    let key = ObjectKey::new("default", "data");
    let pending = json!({"status": {"phase": "Pending"}});
    rig.api.patch_status::<Claim>(&key, Patch::Merge(&pending)).await.unwrap();
    rig.pod("p", STAY, quick()).await;
    // The pod is there and waits.
    rig.wait_phase("p", "Pending").await;
    let bound = json!({"status": {"phase": "Bound"}});
    rig.api.patch_status::<Claim>(&key, Patch::Merge(&bound)).await.unwrap();
    rig.wait_phase("p", "Running").await;
    assert!(!rig.has_event("FailedMount", "").await, "no warning for what passes by itself");
    let volume = rig.api.get::<Volume>(&ObjectKey::cluster("pv-data")).await.unwrap();
    assert!(volume.is_some());
    rig.stop(true).await;
}

/// A pod is deleted while its volume is just about to be mounted: it is gone only when that is undone.
#[tokio::test]
async fn a_mount_in_flight_is_waited_for() {
    if !need("a_mount_in_flight_is_waited_for", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    rig.driver.hook(move |moment| {
        if moment.call != Call::NodeGetCapabilities || moment.phase != Phase::Before {
            return Action::Continue;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Action::Delay(Duration::from_secs(1))
    });
    let uid = rig.pod("p", STAY, json!({"terminationGracePeriodSeconds": 1})).await;
    rig.until("mounting", async || asked.load(Ordering::SeqCst) > 0).await;
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    let heard = |call| rig.heard.of(call).len();
    assert_eq!((heard("NodePublishVolume"), heard("NodeUnpublishVolume")), (1, 1));
    assert!(!rig.root().join("pods").join(&uid).exists(), "the pod's directory came back");
    rig.stop(true).await;
}
