//! Deleting volumes.

use std::time::Duration;

use super::*;
use crate::volumes::FRESH;

#[tokio::test(start_paused = true)]
async fn released_volumes_are_deleted() {
    let lab = Lab::new().await;
    let by = |who: &str| json!({"pv.kubernetes.io/provisioned-by": who});
    lab.volume("ours", "Released", by(NAME), json!({})).await;
    lab.volume("theirs", "Released", by("other"), json!({})).await;
    let keep = json!({"persistentVolumeReclaimPolicy": "Retain"});
    lab.volume("kept", "Released", by(NAME), keep).await;
    // case: provisioner/44
    let failing = Scripted { delete_fails: true, ..Scripted::default() };
    let controller = lab.controller(Config::new(NAME), failing);
    assert!(matches!(controller.inner.sync_volume(&"ours".into()).await, Outcome::Retry(_)));
    let events = lab.events().await;
    assert!(events.iter().any(|event| event == "VolumeFailedDelete: no"), "{events:?}");
    assert!(lab.counted("controller_persistentvolume_delete_failed_total{class=\"\"} 1"));
    // case: provisioner/53
    let ignoring = Scripted { delete_ignored: true, ..Scripted::default() };
    let controller = lab.controller(Config::new(NAME), ignoring);
    assert!(matches!(controller.inner.sync_volume(&"ours".into()).await, Outcome::Done));
    assert_eq!(lab.volumes().await.len(), 3);
    assert!(lab.counted("controller_persistentvolume_delete_total{class=\"\"} 1"));
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    for name in ["ours", "theirs", "kept", "unknown"] {
        assert!(matches!(controller.inner.sync_volume(&name.into()).await, Outcome::Done));
    }
    // case: provisioner/39
    assert_eq!(*controller.inner.provisioner.deleted.lock(), ["ours"]);
    lab.settle().await;
    let deleting: Vec<String> = lab
        .volumes()
        .await
        .into_values()
        .filter(|volume| volume.metadata.deleting())
        .map(|volume| volume.metadata.name)
        .collect();
    // Its protection is somebody else's to take off.
    assert_eq!(deleting, ["ours"]);
    assert!(lab.counted("controller_persistentvolume_delete_total{class=\"\"} 2"));
}

#[tokio::test(start_paused = true)]
async fn a_late_cache_deletes_nothing() {
    let lab = Lab::new().await;
    let by = json!({"pv.kubernetes.io/provisioned-by": NAME});
    lab.volume("ours", "Released", by, json!({})).await;
    let stale = lab.context.cache::<Volume>().get(&ObjectKey::cluster("ours")).unwrap();
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    // The watch has been silent for a while: nobody knows whether it still works.
    tokio::time::advance(FRESH + Duration::from_millis(1)).await;
    // Bound again by an administrator, and the cache has not heard of it.
    let key = ObjectKey::cluster("ours");
    let patch = json!({"status": {"phase": "Available"}});
    lab.api.patch_status::<Volume>(&key, Patch::Merge(&patch)).await.unwrap();
    assert_eq!(stale.status.phase, longshore_core::model::VolumePhase::Released);
    controller.inner.delete(&stale).await.unwrap();
    assert!(controller.inner.provisioner.deleted.lock().is_empty());
    // A watch that speaks is believed without another question, and knows better than the caller.
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(lab.context.cache::<Volume>().is_fresh(FRESH));
    controller.inner.delete(&stale).await.unwrap();
    assert!(controller.inner.provisioner.deleted.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_goes_wherever_it_is_by_now() {
    let lab = Lab::new().await;
    lab.volume("ours", "Released", json!({}), json!({})).await;
    let ours = "external-provisioner.volume.kubernetes.io/finalizer";
    let key = ObjectKey::cluster("ours");
    let patch = json!({"metadata": {"finalizers": ["a/b", "c/d", ours]}});
    lab.api.patch::<Volume>(&key, Patch::Merge(&patch)).await.unwrap();
    let uid = lab.volumes().await["ours"].metadata.uid.clone();
    let config = Config { add_finalizer: true, ..Config::new(NAME) };
    let controller = lab.controller(config, Scripted::default());
    let seen = || ["c/d", ours].map(str::to_owned).to_vec();
    // Another volume's finalizer stays, whatever its name.
    controller.inner.drop_finalizer(&key, &"another".into(), seen()).await.unwrap();
    assert!(lab.volumes().await["ours"].metadata.has_finalizer(ours));
    controller.inner.drop_finalizer(&key, &uid, seen()).await.unwrap();
    assert_eq!(lab.volumes().await["ours"].metadata.finalizers, ["a/b", "c/d"]);
    controller.inner.drop_finalizer(&ObjectKey::cluster("gone"), &uid, seen()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_object_cannot_be_deleted_keeps_its_finalizer() {
    // case: provisioner/45
    let lab = Lab::new().await;
    let ours = "external-provisioner.volume.kubernetes.io/finalizer";
    let by = json!({"pv.kubernetes.io/provisioned-by": NAME});
    lab.volume("ours", "Released", by, json!({})).await;
    let patch = json!({"metadata": {"finalizers": [ours]}});
    lab.api.patch::<Volume>(&ObjectKey::cluster("ours"), Patch::Merge(&patch)).await.unwrap();
    let rule = json!({"apiGroups": ["*"], "resources": ["*"],
        "verbs": ["get", "list", "watch", "patch", "create"]});
    lab.grant("all-but-delete", json!([rule])).await;
    lab.settle().await;
    let api = Api::new(lab.server.client_as("saver", ["system:authenticated"]));
    let config = Config { add_finalizer: true, ..Config::new(NAME) };
    let context = lab.context.with_api(api);
    let controller = ProvisionController::new(config, &context, Scripted::default());
    let inner = &controller.inner;
    assert!(matches!(inner.sync_volume(&"ours".into()).await, Outcome::Retry(_)));
    let volume = &lab.volumes().await["ours"];
    assert!(volume.metadata.has_finalizer(ours) && !volume.metadata.deleting());
    assert!(lab.counted("controller_persistentvolume_delete_failed_total{class=\"\"} 1"));
    // The storage is gone already, and is not asked about again.
    assert!(matches!(inner.sync_volume(&"ours".into()).await, Outcome::Retry(_)));
    assert_eq!(inner.provisioner.deleted.lock().len(), 1);
    let rule = json!({"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["delete"]});
    lab.grant("delete", json!([rule])).await;
    assert!(matches!(inner.sync_volume(&"ours".into()).await, Outcome::Done));
    assert!(lab.volumes().await.is_empty());
}
