//! Neighbours of the recorded scenarios: what the specification says where nothing was recorded.

use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{Claim, Pod, Secret};
use longshore_core::stage::forgotten::ANSWERS;
use longshore_csi::Call;
use longshore_csi::capabilities::NodeCapability;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use serde_json::{Value, json};
use tonic::Code;

use crate::defects::hasty_rig;
use crate::recorded::{
    Names, attach_and_run, heard, heard_of, pod_of, recorded, secret, unstaged, volume,
    volume_named,
};
use crate::rig::Rig;
use crate::rig::proxy::tree;
use crate::{STAY, block, grow, quick};

/// Runs and ends a pod; what the driver heard is checked.
async fn whole_life(rig: &Rig, names: &Names<'_>, pod: Value) {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    let uid = rig.create_pod(pod).await;
    rig.wait_phase(&name, "Running").await;
    rig.end(&name).await;
    unstaged(rig).await;
    let expected = names.life(&uid);
    assert_eq!(heard_of(rig, &rig.handle(names.claim)), expected, "{name}");
}

#[tokio::test]
async fn requests_carry_the_access_mode_and_read_only() {
    if !need("requests_carry_the_access_mode_and_read_only", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    // The volume's first mode counts, and whether the pod only reads; not what the volume's source says.
    for (claim, modes, mode, source_reads, pod_reads) in [
        ("rwo", json!(["ReadWriteOnce", "ReadOnlyMany"]), "SINGLE_NODE_MULTI_WRITER", true, false),
        ("rox", json!(["ReadOnlyMany"]), "MULTI_NODE_READER_ONLY", false, true),
        ("rwx", json!(["ReadWriteMany"]), "MULTI_NODE_MULTI_WRITER", false, true),
        ("rwop", json!(["ReadWriteOncePod"]), "SINGLE_NODE_SINGLE_WRITER", false, false),
    ] {
        volume_named(&rig, claim, json!({"accessModes": modes, "readOnly": source_reads})).await;
        let names = Names { claim, mode, read_only: pod_reads, ..Names::new(&rig, false) };
        let mut pod = pod_of(claim, &[claim], STAY);
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = pod_reads.into();
        whole_life(&rig, &names, pod).await;
    }
    // A driver without the newer modes hears the older one for both.
    rig.driver.configure(|config| config.node.remove(NodeCapability::SingleNodeMultiWriter));
    for (claim, mode) in [("old", "ReadWriteOnce"), ("oldpod", "ReadWriteOncePod")] {
        volume_named(&rig, claim, json!({"accessModes": [mode]})).await;
        let names = Names { claim, mode: "SINGLE_NODE_WRITER", ..Names::new(&rig, false) };
        whole_life(&rig, &names, pod_of(claim, &[claim], STAY)).await;
    }
    rig.stop(true).await;
}

#[tokio::test]
async fn fs_group_is_sent_to_a_driver_that_applies_it() {
    if !need("fs_group_is_sent_to_a_driver_that_applies_it", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    rig.driver.configure(|config| config.node.insert(NodeCapability::VolumeMountGroup));
    volume(&rig, json!({"accessModes": ["ReadWriteMany"], "request": "2Mi"})).await;
    let pod = |name: &str, group: u32| {
        let mut pod = pod_of(name, &["data"], STAY);
        pod["spec"]["securityContext"] = json!({"fsGroup": group});
        pod
    };
    // case: node/N8
    let a = rig.create_pod(pod("a", 3000)).await;
    rig.wait_phase("a", "Running").await;
    let b = rig.create_pod(pod("b", 4000)).await;
    rig.wait_phase("b", "Running").await;
    let names = |group: &str| Names {
        mount: json!({"fs_type": "ext4", "group": group}),
        mode: "MULTI_NODE_MULTI_WRITER",
        ..Names::new(&rig, false)
    };
    let (first, second) = (names("3000"), names("4000"));
    assert_eq!(heard(&rig), [first.stage(), first.publish(&a), second.publish(&b)]);
    // Growing has no group: it is nobody's own.
    grow::resize(&rig).await;
    rig.until("grown", async || !rig.heard.of("NodeExpandVolume").is_empty()).await;
    assert_eq!(
        rig.heard.of("NodeExpandVolume")[0]["capability"],
        json!({"mount": {"fs_type": "ext4"}, "mode": "MULTI_NODE_MULTI_WRITER"})
    );
    for name in ["a", "b"] {
        rig.end(name).await;
    }
    rig.stop(true).await;
}

#[tokio::test]
async fn a_read_write_once_pod_volume_is_refused_to_a_second_pod() {
    if !need("a_read_write_once_pod_volume_is_refused_to_a_second_pod", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"accessModes": ["ReadWriteOncePod"]})).await;
    let a = rig.pod("a", STAY, quick()).await;
    rig.wait_phase("a", "Running").await;
    let b = rig.pod("b", STAY, quick()).await;
    // case: node/N62
    let text = "MountVolume.SetUp failed for volume \"pv-data\" : volume uses the ReadWriteOncePod access mode \
        and is already in use by another pod";
    rig.until("refused", async || rig.has_event("FailedMount", text).await).await;
    rig.end("a").await;
    rig.wait_phase("b", "Running").await;
    rig.end("b").await;
    unstaged(&rig).await;
    let names = Names { mode: "SINGLE_NODE_SINGLE_WRITER", ..Names::new(&rig, false) };
    // The second waits while it stays staged, and gets it without staging.
    let expected = [
        names.stage(),
        names.publish(&a),
        names.unpublish(&a),
        names.publish(&b),
        names.unpublish(&b),
        names.unstage(),
    ];
    assert_eq!(heard(&rig), expected);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_refusal_after_a_timeout_leaves_nothing_published() {
    if !need("a_refusal_after_a_timeout_leaves_nothing_published", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    rig.driver.script(Call::NodePublishVolume, [Fault::before(Code::DeadlineExceeded)]);
    rig.driver.always(Call::NodePublishVolume, Fault::before(Code::Internal));
    let uid = rig.pod("p", STAY, quick()).await;
    let dir = rig.publish_dir(&uid, "data");
    rig.until("no verdict, then no", async || {
        rig.heard.of("NodePublishVolume").len() >= 2 && !dir.exists()
    })
    .await;
    rig.end("p").await;
    unstaged(&rig).await;
    // Certainly not published, so it is not taken down either.
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), [names.stage(), names.publish(&uid), names.unstage()]);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_call_without_a_verdict_is_undone_when_the_pod_is_deleted() {
    if !need("a_call_without_a_verdict_is_undone_when_the_pod_is_deleted", &[Need::Root]) {
        return;
    }
    tokio::join!(
        no_verdict(Call::NodeStageVolume, Code::DeadlineExceeded),
        no_verdict(Call::NodeStageVolume, Code::Unavailable),
        no_verdict(Call::NodePublishVolume, Code::ResourceExhausted),
        no_verdict(Call::NodePublishVolume, Code::Cancelled),
    );
}

async fn no_verdict(call: Call, code: Code) {
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    rig.driver.always(call, Fault::after(code));
    let uid = rig.pod("p", STAY, quick()).await;
    let name = format!("{call:?}");
    rig.until("tried", async || !rig.heard.of(&name).is_empty()).await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    // case: node/N55
    let expected = match call {
        Call::NodeStageVolume => vec![names.stage(), names.unstage()],
        _ => names.life(&uid).to_vec(),
    };
    assert_eq!(heard(&rig), expected, "{call:?} {code:?}");
    rig.stop(true).await;
}

#[tokio::test]
async fn a_volume_stays_in_use_until_unpublish_and_unstage_succeed() {
    if !need("a_volume_stays_in_use_until_unpublish_and_unstage_succeed", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    attach_and_run(&rig, "p").await;
    rig.driver.script(
        Call::NodeUnpublishVolume,
        [Fault::before(Code::Internal), Fault::before(Code::DeadlineExceeded)],
    );
    rig.driver.script(Call::NodeUnstageVolume, [Fault::before(Code::Internal)]);
    rig.delete_pod("p").await;
    rig.until("refused", async || !rig.heard.of("NodeUnpublishVolume").is_empty()).await;
    // It stays in use, with both directories and their metadata, and no event says so.
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    rig.until("unstaging fails", async || !rig.heard.of("NodeUnstageVolume").is_empty()).await;
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    unstaged(&rig).await;
    rig.until("released", async || rig.in_use().await.is_empty()).await;
    assert_eq!(rig.heard.of("NodeUnpublishVolume").len(), 3);
    assert_eq!(rig.heard.of("NodeUnstageVolume").len(), 2);
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.life(&uid));
    assert!(!rig.has_event("FailedUnMount", "").await && !rig.has_event("FailedMount", "").await);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_call_that_was_in_flight_at_a_kill_is_finished_after_the_restart() {
    if !need("a_call_that_was_in_flight_at_a_kill_is_finished_after_the_restart", &[Need::Root]) {
        return;
    }
    tokio::join!(
        killed_in(Call::NodePublishVolume),
        killed_in(Call::NodeUnpublishVolume),
        killed_in(Call::NodeUnstageVolume),
    );
}

async fn killed_in(call: Call) {
    let mut rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    rig.driver.script(call, [Fault::HangAfter]);
    let uid = rig.pod("p", STAY, quick()).await;
    let name = format!("{call:?}");
    if call != Call::NodePublishVolume {
        rig.wait_phase("p", "Running").await;
        rig.delete_pod("p").await;
    }
    rig.until("called", async || !rig.heard.of(&name).is_empty()).await;
    rig.kill_agent().await;
    rig.start_agent().await;
    let names = Names::new(&rig, false);
    let expected = match call {
        // Wanted: everything is said again.
        Call::NodePublishVolume => {
            rig.wait_phase("p", "Running").await;
            vec![names.stage(), names.publish(&uid)]
        }
        // Not wanted: only the way back is finished.
        Call::NodeUnpublishVolume => vec![names.unpublish(&uid), names.unstage()],
        // The recording's leak is not here.
        _ => vec![names.unstage()],
    };
    rig.until("finished", async || heard(&rig).len() >= expected.len()).await;
    assert_eq!(heard(&rig), expected, "{call:?}");
    if call == Call::NodePublishVolume {
        rig.end("p").await;
    }
    unstaged(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn volumes_of_a_pod_deleted_while_the_agent_is_down_are_unmounted() {
    if !need("volumes_of_a_pod_deleted_while_the_agent_is_down_are_unmounted", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    attach_and_run(&rig, "p").await;
    rig.kill_agent().await;
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.start_agent().await;
    unstaged(&rig).await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), [names.unpublish(&uid), names.unstage()]);
    rig.until("released", async || rig.in_use().await.is_empty()).await;
    rig.until("the pod's directory is gone", async || !rig.root().join("pods").join(&uid).exists())
        .await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_second_pod_waits_for_a_driver_that_restarts() {
    if !need("a_second_pod_waits_for_a_driver_that_restarts", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    let a = rig.pod("a", STAY, quick()).await;
    rig.wait_phase("a", "Running").await;
    rig.driver_down().await;
    let b = rig.pod("b", STAY, quick()).await;
    let text = "MountVolume.SetUp failed for volume \"pv-data\" : rpc error: code = Unavailable";
    rig.until("said", async || rig.has_event("FailedMount", text).await).await;
    rig.driver_up();
    rig.wait_phase("b", "Running").await;
    rig.end("a").await;
    rig.end("b").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), names.shared_life(&a, &b));
    rig.stop(true).await;
}

#[tokio::test]
async fn a_missing_stage_secret_delays_the_first_call() {
    if !need("a_missing_stage_secret_delays_the_first_call", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    let reference = json!({"name": "sec", "namespace": "default"});
    volume(&rig, json!({"nodeStageSecretRef": reference})).await;
    let names = Names { secrets: json!({"user": "u", "pass": "p"}), ..Names::new(&rig, false) };
    let uid = rig.pod("p", STAY, quick()).await;
    rig.until("said", async || {
        rig.has_event("FailedMount", "MountVolume.MountDevice failed").await
    })
    .await;
    assert!(heard(&rig).is_empty(), "the driver is not asked without them");
    assert!(rig.staged_dirs().is_empty());
    secret(&rig).await;
    rig.wait_phase("p", "Running").await;
    let mut publish = names.publish(&uid);
    publish.1.as_object_mut().unwrap().remove("secrets");
    assert_eq!(heard(&rig), [names.stage(), publish.clone()]);
    rig.end("p").await;
    unstaged(&rig).await;
    // A driver that does not stage needs no secret for it.
    rig.api.delete::<Secret>(&ObjectKey::new("default", "sec"), &Default::default()).await.unwrap();
    rig.driver.configure(|config| config.node.remove(NodeCapability::StageUnstageVolume));
    rig.heard.clear();
    rig.pod("q", STAY, quick()).await;
    rig.wait_phase("q", "Running").await;
    assert_eq!(rig.heard.names(), ["NodePublishVolume"]);
    rig.end("q").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn selinux_labels_are_not_sent_from_a_node_without_selinux() {
    if !need("selinux_labels_are_not_sent_from_a_node_without_selinux", &[Need::Root]) {
        return;
    }
    let rig = Rig::start_tweaked(false, json!({"seLinuxMount": true}), |settings| {
        settings.selinux = false
    })
    .await;
    rig.driver.configure(|config| config.node.insert(NodeCapability::SingleNodeMultiWriter));
    volume(&rig, json!({})).await;
    let mut pod = pod_of("p", &["data"], STAY);
    pod["spec"]["securityContext"] = json!({"seLinuxOptions": {"level": "s0:c0"}});
    whole_life(&rig, &Names::new(&rig, false), pod).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn failed_calls_for_a_device_are_retried() {
    if !need("failed_calls_for_a_device_are_retried", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({"podInfoOnMount": true})).await;
    volume(&rig, json!({"volumeMode": "Block", "mountOptions": ["noatime"]})).await;
    rig.driver.script(Call::NodePublishVolume, [Fault::before(Code::Internal)]);
    rig.driver.script(Call::NodeUnpublishVolume, [Fault::before(Code::Internal)]);
    let uid = rig.create_pod(block::pod("p")).await;
    rig.wait_phase("p", "Running").await;
    let text = "MapVolume.MapPodDevice failed for volume \"pv-data\" : rpc error: code = Internal";
    rig.until("said", async || rig.has_event("FailedMapVolume", text).await).await;
    rig.end("p").await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    rig.until("gone", async || !root.join("pv-data").exists()).await;
    let calls = heard(&rig);
    let order: Vec<&str> = calls.iter().map(|call| call.0).collect();
    assert_eq!(
        order,
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
    );
    // Pods are named for devices too; mount options make no sense for them.
    assert_eq!(calls[1].1["volume_context"]["csi.storage.k8s.io/pod.uid"], uid.as_str());
    assert_eq!(
        calls[0].1["capability"],
        json!({"block": true, "mode": "SINGLE_NODE_MULTI_WRITER"})
    );
    rig.stop(true).await;
}

#[tokio::test]
async fn a_device_unknown_to_its_driver_is_unmapped() {
    if !need("a_device_unknown_to_its_driver_is_unmapped", &[Need::Root]) {
        return;
    }
    let rig = hasty_rig().await;
    volume(&rig, json!({"volumeMode": "Block"})).await;
    rig.create_pod(block::pod("p")).await;
    rig.wait_phase("p", "Running").await;
    rig.driver.always(Call::NodeUnpublishVolume, Fault::before(Code::NotFound));
    rig.driver.always(Call::NodeUnstageVolume, Fault::before(Code::NotFound));
    rig.end("p").await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    rig.until("gone", async || !root.join("pv-data").exists()).await;
    assert_eq!(rig.heard.of("NodeUnpublishVolume").len(), ANSWERS as usize);
    rig.stop(true).await;
}

#[tokio::test]
async fn volumes_of_a_succeeded_pod_are_unstaged() {
    if !need("volumes_of_a_succeeded_pod_are_unstaged", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    let mut pod = pod_of("p", &["data"], "true");
    pod["spec"]["restartPolicy"] = "Never".into();
    let uid = rig.create_pod(pod).await;
    rig.wait_phase("p", "Succeeded").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), names.life(&uid));
    let pod = rig.api.get_raw::<Pod>(&ObjectKey::new("default", "p")).await.unwrap();
    assert!(pod.is_some(), "the object stays");
    assert!(!tree(&rig.root()).iter().any(|line| line.contains("pv-data")));
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_pod_deleted_during_staging_leaves_nothing_staged() {
    if !need("a_pod_deleted_during_staging_leaves_nothing_staged", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    let slow = Fault::Delay(std::time::Duration::from_secs(1));
    rig.driver.script(Call::NodeStageVolume, [slow]);
    let uid = rig.pod("p", STAY, quick()).await;
    rig.until("staging", async || !rig.heard.of("NodeStageVolume").is_empty()).await;
    rig.end("p").await;
    unstaged(&rig).await;
    // What was begun is finished, and then taken down.
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), names.life(&uid));
    rig.stop(true).await;
}

#[tokio::test]
async fn a_claim_under_two_names_in_one_pod_is_published_once() {
    if !need("a_claim_under_two_names_in_one_pod_is_published_once", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    let mut pod =
        pod_of("p", &["data"], "test -d /data && test -d /again && echo both; sleep 1000");
    let spec = &mut pod["spec"];
    spec["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "again", "persistentVolumeClaim": {"claimName": "data"}}));
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "again", "mountPath": "/again"}));
    let uid = rig.create_pod(pod).await;
    rig.wait_phase("p", "Running").await;
    rig.until("it sees both", async || rig.log(&uid) == "both\n").await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), names.life(&uid));
    rig.stop(true).await;
}

#[tokio::test]
async fn an_ephemeral_claim_is_used_only_if_the_pod_owns_it() {
    if !need("an_ephemeral_claim_is_used_only_if_the_pod_owns_it", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    // One that somebody else made is not taken.
    volume_named(&rig, "p-v", json!({})).await;
    let mut pod = pod_of("p", &[], STAY);
    pod["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let uid = rig.create_pod(pod).await;
    rig.until("refused", async || {
        rig.has_event("FailedMount", "failed to process volumes=[v]").await
    })
    .await;
    assert!(heard(&rig).is_empty());
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
    let patch = json!({"metadata": {"ownerReferences": owner}});
    let key = ObjectKey::new("default", "p-v");
    rig.api.patch::<Claim>(&key, Patch::Merge(&patch)).await.unwrap();
    rig.wait_phase("p", "Running").await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names { claim: "p-v", ..Names::new(&rig, false) };
    assert_eq!(heard(&rig), names.life(&uid));
    rig.stop(true).await;
}
