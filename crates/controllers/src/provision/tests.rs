//! The provisioner over the real API server and a scriptable driver.

use std::time::Duration;

use longshore_cluster::Patch;
use longshore_core::model::{
    ObjectKey, ReclaimPolicy, VolumePhase,
    kinds::{Claim, ConfigMap, Node, Secret, Volume},
};
use longshore_csi::{Call, capabilities::ControllerCapability, fake::Fault};
use serde_json::json;
use tokio::time::Instant;
use tonic_code::*;

use super::Planted;
use super::testing::{Bench, DRIVER, Trap};
use crate::testing::{key, slow_secrets};

/// gRPC codes by their numbers: this crate does not know the transport.
mod tonic_code {
    pub(super) use longshore_csi::fake::Fault as F;
    pub(super) fn fails(code: i32) -> F {
        F::Before(code.into(), "scripted".into())
    }
    pub(super) fn loses(code: i32) -> F {
        F::After(code.into(), "scripted".into())
    }
    pub(super) const INVALID: i32 = 3;
    pub(super) const EXHAUSTED: i32 = 8;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_a_volume_and_gives_it_back() {
    let mut bench = Bench::new().await;
    bench.start();
    let claim = bench.claim("data", "fast").await;
    let volume = bench.until_bound("data").await;
    assert_eq!(volume.metadata.name, format!("pvc-{}", claim.metadata.uid));
    assert_eq!(volume.metadata.annotation("pv.kubernetes.io/provisioned-by"), Some(DRIVER));
    assert!(volume.metadata.has_finalizer("external-provisioner.volume.kubernetes.io/finalizer"));
    assert_eq!(volume.spec.storage_class_name, "fast");
    assert_eq!(volume.capacity().bytes(), 10 << 20);
    let bound = bench.get_claim("data").await.unwrap();
    for key in ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"] {
        assert_eq!(bound.metadata.annotation(key), Some("yes"), "{key}");
    }
    for key in [
        "volume.kubernetes.io/storage-provisioner",
        "volume.beta.kubernetes.io/storage-provisioner",
    ] {
        assert_eq!(bound.metadata.annotation(key), Some(DRIVER), "{key}");
    }
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1);
    bench.delete_claim("data").await;
    bench.until_clean().await;
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), 1);
    let events = bench.events("data").await;
    for want in
        ["Normal ExternalProvisioning", "Normal Provisioning", "Normal ProvisioningSucceeded"]
    {
        assert!(events.iter().any(|event| event == want), "{want} in {events:?}");
    }
    for counted in [
        "controller_persistentvolumeclaim_provision_total{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolume_delete_total{class=\"fast\"} 1",
    ] {
        bench.until(counted, || async { bench.metrics.render().contains(counted) }).await;
    }
}

/// While much else is under way a record outlives its volume for a moment, also a crash; nothing is made
/// twice for it.
#[tokio::test(start_paused = true)]
async fn in_a_burst_records_go_later() {
    let mut bench = Bench::new().await;
    bench.api = slow_secrets(&bench.api);
    bench.start();
    let under_way: Vec<_> = (0..5)
        .map(|_| {
            let api = bench.api.clone();
            tokio::spawn(async move { api.get::<Secret>(&key("slow")).await.map(drop) })
        })
        .collect();
    tokio::task::yield_now().await;
    bench.claim("kept", "fast").await;
    bench.until_bound("kept").await;
    assert_eq!(bench.intents().await, 1, "it waits for the others");
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    bench.claim("crashed", "fast").await;
    bench.until_bound("crashed").await;
    bench.crash().await;
    assert_eq!(bench.intents().await, 1, "it waits for the others");
    under_way.iter().for_each(tokio::task::JoinHandle::abort);
    bench.start();
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 2);
    bench.delete_claim("kept").await;
    bench.delete_claim("crashed").await;
    bench.until_clean().await;
}

/// case: csi-1.13/C8, case: csi-1.13/C9
#[tokio::test(start_paused = true)]
async fn a_driver_replaced_behind_its_socket_is_not_sent_what_it_lacks() {
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("first", "fast").await;
    bench.until_bound("first").await;
    let create = ControllerCapability::CreateDeleteVolume;
    bench.driver.configure(|config| config.controller.remove(create)).sever();
    bench.claim("second", "fast").await;
    let failed = "Warning ProvisioningFailed";
    let events = || async { bench.events("second").await };
    bench.until(failed, || async { events().await.iter().any(|event| event == failed) }).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1, "not even sent");
    bench.driver.configure(|config| config.controller.insert(create)).sever();
    bench.until_bound("second").await;
    bench.delete_claim("first").await;
    bench.delete_claim("second").await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_makes_no_second_volume() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE), Fault::HangAfter]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_bound("data").await;
    assert_eq!(bench.driver.volumes().len(), 1);
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 3);
    assert!(bench.events("data").await.iter().any(|event| event == "Warning ProvisioningFailed"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_deleted_in_flight_leaves_nothing() {
    // case: provisioner/17
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until("the call went out", || async { !bench.driver.volumes().is_empty() }).await;
    bench.delete_claim("data").await;
    bench.until("the claim is gone", || async { bench.get_claim("data").await.is_none() }).await;
    bench
        .until("the call is repeated", || async {
            bench.driver.calls_of(Call::CreateVolume).len() == 2
        })
        .await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_the_call_leaves_nothing() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    bench.crash().await;
    bench.delete_claim_now("data").await;
    assert_eq!(bench.intents().await, 1);
    bench.start();
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_guard_a_crash_leaks() {
    // The bug that the guard prevents, planted: the bench must see it.
    let mut bench = Bench::new().await;
    bench.config.planted = Some(Planted::Leak);
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    bench.crash().await;
    bench.delete_claim_now("data").await;
    bench.start();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.driver.volumes().len(), 1, "the planted leak did not leak");
}

#[tokio::test(start_paused = true)]
async fn a_restart_repeats_the_same_call() {
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.node("n2", "b").await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    bench.start();
    bench.claim("data", "late").await;
    bench.select_node("data", "n1").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    bench.crash().await;
    // The scheduler chooses anew while we are down: the volume at the old place must not stay.
    bench.select_node("data", "n2").await;
    bench.start();
    let volume = bench.until_bound("data").await;
    let labels = [("topology.test/zone".to_string(), "b".to_string())].into();
    assert!(volume.reachable_from("n2", &labels));
    assert_eq!(bench.driver.volumes().len(), 1);
    bench.delete_claim("data").await;
    bench.until_clean().await;
}

/// Makes a claim, crashes at the n-th request of the loops, deletes the claim while nobody runs,
/// starts again. True when the crash came before the claim was bound.
async fn crash_while_making(request: i64, after_effect: bool) -> bool {
    let mut bench = Bench::new().await;
    let trap = Trap::at(request, after_effect);
    bench.trap = Some(trap.clone());
    bench.start();
    bench.claim("data", "fast").await;
    let sprung = tokio::time::timeout(Duration::from_secs(60), trap.sprung.cancelled()).await;
    bench.crash().await;
    bench.delete_claim_now("data").await;
    bench.start();
    bench.until_clean().await;
    sprung.is_ok()
}

/// Makes and deletes a claim, crashes at the n-th request after the deletion, starts again.
async fn crash_while_deleting(request: i64, after_effect: bool) -> bool {
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_bound("data").await;
    bench.crash().await;
    bench.delete_claim("data").await;
    let trap = Trap::at(request, after_effect);
    bench.trap = Some(trap.clone());
    bench.start();
    let sprung = tokio::time::timeout(Duration::from_secs(60), trap.sprung.cancelled()).await;
    bench.crash().await;
    bench.start();
    bench.until_clean().await;
    sprung.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_request_of_making_leaves_nothing() {
    for after_effect in [false, true] {
        let mut request = 0;
        while crash_while_making(request, after_effect).await {
            request += 1;
        }
        assert!(request > 20, "only {request} requests were tried");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_request_of_deleting_leaves_nothing() {
    for after_effect in [false, true] {
        let mut request = 0;
        while crash_while_deleting(request, after_effect).await {
            request += 1;
        }
        assert!(request > 15, "only {request} requests were tried");
    }
}

#[tokio::test(start_paused = true)]
async fn a_final_no_drops_the_intent_and_is_retried() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [fails(INTERNAL)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench
        .until("the driver said no", || async {
            let told = bench.events("data").await;
            told.iter().any(|event| event == "Warning ProvisioningFailed")
        })
        .await;
    assert_eq!(bench.intents().await, 0);
    bench.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn infeasible_claims_rest() {
    // case: provisioner/27
    let mut bench = Bench::new().await;
    bench.config.retry_interval_max = Duration::from_secs(1);
    bench.driver.script(Call::CreateVolume, [fails(INVALID)]);
    bench.start();
    bench.claim("data", "fast").await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1);
    let all = bench.all::<longshore_core::model::kinds::Event>().await;
    let text = "Volume provisioning failed with infeasible error.";
    assert!(all.iter().any(|event| event.message.starts_with(text)), "{all:?}");
    // case: provisioner/29
    tokio::time::sleep(Duration::from_secs(200)).await;
    bench.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn a_full_node_is_given_up() {
    // case: provisioner/19
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.driver.script(Call::CreateVolume, [fails(EXHAUSTED)]);
    bench.start();
    bench.claim("data", "late").await;
    bench.select_node("data", "n1").await;
    bench
        .until("the choice is taken off", || async {
            let claim = bench.get_claim("data").await.unwrap();
            let call = bench.driver.calls_of(Call::CreateVolume).len() == 1;
            call && claim.metadata.annotation("volume.kubernetes.io/selected-node").is_none()
        })
        .await;
    assert_eq!(bench.intents().await, 0);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1, "nobody chose a node");
    bench.select_node("data", "n1").await;
    bench.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn late_binding_waits_for_the_scheduler() {
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.node("n2", "b").await;
    bench.start();
    bench.claim("data", "late").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
    let events = bench.events("data").await;
    assert!(events.iter().any(|event| event == "Normal WaitForFirstConsumer"), "{events:?}");
    bench.pod("pod", "data").await;
    bench
        .until("the pod is waited for", || async {
            let events = bench.events("data").await;
            events.iter().any(|event| event == "Normal WaitForPodScheduled")
        })
        .await;
    bench.select_node("data", "n2").await;
    let volume = bench.until_bound("data").await;
    let zone = |zone: &str| [("topology.test/zone".to_string(), zone.to_string())].into();
    assert!(volume.reachable_from("n2", &zone("b")) && !volume.reachable_from("n1", &zone("a")));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_node_still_has_staged_waits_for_it() {
    let mut bench = Bench::new().await;
    bench.config.check_volumes_in_use = true;
    bench.node("n1", "a").await;
    bench.start();
    bench.claim("data", "fast").await;
    let volume = bench.until_bound("data").await;
    report_in_use(&bench, "n1", &[&volume]).await;
    bench.delete_claim("data").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.driver.volumes().len(), 1, "the node has it");
    let name = &volume.metadata.name;
    assert_eq!(bench.events(name).await, [""; 0], "and that is nothing to report");
    // A node that does not come back to it is named.
    let text = format!(
        "persistentvolume {name} is still in use on node n1; it is deleted once that node has unmounted it"
    );
    bench.until_told(name, &text).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(bench.driver.volumes().len(), 1);
    let before = Instant::now();
    report_in_use(&bench, "n1", &[]).await;
    bench.until_clean().await;
    assert!(before.elapsed() < Duration::from_secs(5), "it goes as soon as the node lets go");
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_that_lists_a_volume_does_not_keep_it() {
    // As under csi-provisioner: only `--check-volumes-in-use` asks nodes. Such a node is watched all the same, for
    // the driver has topology.
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None)]);
    bench.node("n1", "a").await;
    bench.start();
    bench.claim("data", "fast").await;
    let volume = bench.until_bound("data").await;
    report_in_use(&bench, "n1", &[&volume]).await;
    bench.delete_claim("data").await;
    bench.until_clean().await;
    assert_eq!(bench.events(&volume.metadata.name).await, [""; 0]);
}

/// Makes a node list volumes in `status.volumesInUse`, and no others.
async fn report_in_use(bench: &Bench, node: &str, volumes: &[&Volume]) {
    let sources = volumes.iter().filter_map(|volume| volume.spec.csi.as_ref());
    let used: Vec<_> = sources
        .map(|source| format!("kubernetes.io/csi/{DRIVER}^{}", source.volume_handle))
        .collect();
    let status = json!({"status": {"volumesInUse": used}});
    let node = ObjectKey::cluster(node);
    bench.api.patch_status::<Node>(&node, Patch::Merge(&status)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attached_volume_stays() {
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("data", "fast").await;
    let volume = bench.until_bound("data").await.metadata.name;
    let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": "va"}, "spec": {"attacher": DRIVER, "nodeName": "n1",
            "source": {"persistentVolumeName": volume}}});
    type Attachment = longshore_core::model::kinds::VolumeAttachment;
    bench.api.create::<Attachment>(&attachment).await.unwrap();
    bench.delete_claim("data").await;
    bench
        .until("the deletion is refused", || async {
            let events = bench.events(&volume).await;
            events.iter().any(|event| event == "Warning VolumeFailedDelete")
        })
        .await;
    assert!(bench.driver.calls_of(Call::DeleteVolume).is_empty());
    let key = ObjectKey::cluster("va");
    bench.api.delete::<Attachment>(&key, &Default::default()).await.unwrap();
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn secrets_are_read_and_never_written_down() {
    // case: provisioner/69 case: provisioner/117 (secret missing: deleted without)
    let mut bench = Bench::new().await;
    let parameters = json!({"csi.storage.k8s.io/provisioner-secret-name": "key",
        "csi.storage.k8s.io/provisioner-secret-namespace": "default"});
    bench.class("locked", "Immediate", parameters).await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE)]);
    bench.start();
    bench.claim("data", "locked").await;
    bench
        .until("the secret is missed", || async {
            let events = bench.events("data").await;
            events.iter().any(|event| event == "Warning ProvisioningFailed")
        })
        .await;
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "default"},
        "stringData": {"password": "hunter2"}, "data": {"password": "aHVudGVyMg=="}});
    type Secret = longshore_core::model::kinds::Secret;
    bench.api.create::<Secret>(&secret).await.unwrap();
    bench.until("the call went out", || async { !bench.driver.volumes().is_empty() }).await;
    for map in bench.all::<ConfigMap>().await {
        let text = format!("{map:?}");
        assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    }
    bench.until_bound("data").await;
    bench
        .api
        .delete::<Secret>(&ObjectKey::new("default", "key"), &Default::default())
        .await
        .unwrap();
    bench.delete_claim("data").await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn retained_volumes_stay() {
    // case: provisioner/24 case: provisioner/41
    let mut bench = Bench::new().await;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "keep"},
        "provisioner": DRIVER, "volumeBindingMode": "Immediate", "reclaimPolicy": "Retain"});
    bench.api.create::<longshore_core::model::kinds::StorageClass>(&class).await.unwrap();
    bench.start();
    bench.claim("data", "keep").await;
    let volume = bench.until_bound("data").await;
    assert_eq!(volume.spec.persistent_volume_reclaim_policy, ReclaimPolicy::Retain);
    bench.delete_claim("data").await;
    let name = &volume.metadata.name;
    bench
        .until("the volume is released", || async {
            bench.get_volume(name).await.unwrap().status.phase == VolumePhase::Released
        })
        .await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(bench.get_volume(name).await.is_some());
    assert!(bench.driver.calls_of(Call::DeleteVolume).is_empty());
}

#[tokio::test(start_paused = true)]
async fn many_claims_at_once() {
    let mut bench = Bench::new().await;
    bench.start();
    for index in 0..50 {
        bench.claim(&format!("data-{index}"), "fast").await;
    }
    for index in 0..50 {
        bench.until_bound(&format!("data-{index}")).await;
    }
    let claims = bench.all::<Claim>().await;
    let names: std::collections::BTreeSet<_> =
        claims.iter().map(|claim| claim.spec.volume_name.clone()).collect();
    assert_eq!(names.len(), 50, "two claims share a volume");
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 50);
    for index in 0..50 {
        bench.delete_claim(&format!("data-{index}")).await;
    }
    bench.until_clean().await;
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), 50);
    assert!(bench.all::<Volume>().await.is_empty());
}

#[test]
fn create_errors_are_sorted_by_code() {
    // case: provisioner/78
    use longshore_csi::CsiError;
    use longshore_provisioner::ProvisionError;
    for code in 1..=16 {
        let code = tonic::Code::from(code);
        for movable in [false, true] {
            let error = CsiError::new(Call::CreateVolume, tonic::Status::new(code, "why"));
            let background = matches!(
                code,
                tonic::Code::Cancelled
                    | tonic::Code::DeadlineExceeded
                    | tonic::Code::Unavailable
                    | tonic::Code::Aborted
            );
            assert_eq!(error.is_final(), !background, "{code:?}");
            if background {
                continue;
            }
            let text = error.to_string();
            let refused = super::create::refusal(error, movable);
            assert_eq!(refused.to_string(), text, "the driver's words and code stay");
            let elsewhere = movable && code == tonic::Code::ResourceExhausted;
            match refused {
                ProvisionError::Elsewhere(_) => assert!(elsewhere, "{code:?}"),
                ProvisionError::Infeasible(_) => assert_eq!(code, tonic::Code::InvalidArgument),
                ProvisionError::Final(_) => {
                    assert!(!elsewhere && code != tonic::Code::InvalidArgument, "{code:?}");
                }
                other => panic!("{code:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_populator_fills_its_own_claims() {
    // case: provisioner/83
    let mut bench = Bench::new().await;
    bench.start();
    let source = json!({"kind": "MyPopulator", "name": "seed", "apiGroup": "example.com"});
    let spec = json!({"storageClassName": "fast", "dataSourceRef": source});
    bench.claim_with("data", spec).await;
    bench
        .until("it is told", || async {
            let all = bench.all::<longshore_core::model::kinds::Event>().await;
            let text = "Assuming an external populator will provision the volume";
            all.iter().any(|event| event.message == text)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
    assert_eq!(bench.intents().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_kind_is_not_deleted() {
    // case: provisioner/115
    let mut bench = Bench::new().await;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "odd", "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
            "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": "/srv"},
            "claimRef": {"namespace": "default", "name": "gone", "uid": "gone"}}});
    bench.api.create::<Volume>(&volume).await.unwrap();
    bench.start();
    bench
        .until("it is refused", || async {
            let all = bench.all::<longshore_core::model::kinds::Event>().await;
            all.iter().any(|event| event.message == "invalid CSI PV")
        })
        .await;
    assert!(bench.driver.calls_of(Call::DeleteVolume).is_empty());
    assert_eq!(bench.get_volume("odd").await.unwrap().status.phase, VolumePhase::Released);
}
