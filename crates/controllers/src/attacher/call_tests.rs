//! What the driver is told about a volume.

use std::collections::BTreeMap;

use longshore_core::model::{
    ObjectKey,
    kinds::{Secret, Volume, VolumeAttachment},
};
use longshore_csi::{
    Call,
    capabilities::ControllerCapability,
    v1::{ControllerPublishVolumeRequest, volume_capability::AccessType},
};
use serde_json::{Value, json};

use super::{Config, request::describe, tests::*};
use crate::testing::{Bench, DRIVER};

const READ_ONLY: ControllerCapability = ControllerCapability::PublishReadonly;

/// A volume whose spec is changed by `over`, and whose CSI source by `csi`.
async fn odd_volume(bench: &Bench, over: Value, csi: Value) {
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": DRIVER, "volumeHandle": "h1"}});
    let extend = |into: &mut Value, more: &Value| {
        into.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    };
    extend(&mut spec["csi"], &csi);
    extend(&mut spec, &over);
    bench.create::<Volume>(json!({"metadata": {"name": "pv1"}, "spec": spec})).await;
}

/// What would be sent for the attachment `va1` of that volume.
async fn request<const N: usize>(
    bench: &Bench,
    config: Config,
    capabilities: [ControllerCapability; N],
) -> Result<ControllerPublishVolumeRequest, String> {
    let (process, driver) = (bench.process(), driver());
    let sidecar = by_hand(&process, &driver, config, capabilities);
    process.caches.synced().await;
    let va = bench.get::<VolumeAttachment>(&ObjectKey::cluster("va1")).await.expect("there");
    let volume = sidecar.volume_of(&va).await.map_err(|error| error.to_string())?;
    let attached = describe(&va, volume).map_err(|error| error.to_string())?;
    let built = sidecar.publish_request(&"n1".into(), &attached).await;
    built.map_err(|error| error.to_string())
}

async fn with_volume(over: Value, csi: Value) -> Bench {
    let bench = Bench::start().await;
    bench.node("n1").await;
    odd_volume(&bench, over, csi).await;
    attachment(&bench, of_pv1()).await;
    bench
}

#[tokio::test(start_paused = true)]
async fn read_only_is_said_to_drivers_that_understand_it() {
    // case: attacher/21
    let bench = with_volume(json!({}), json!({"readOnly": true})).await;
    let sent = request(&bench, Config::default(), [READ_ONLY]).await.expect("built");
    assert!(sent.readonly);
    let sent = request(&bench, Config::default(), []).await.expect("built");
    assert!(!sent.readonly);
    let bench = with_volume(json!({}), json!({})).await;
    let sent = request(&bench, Config::default(), [READ_ONLY]).await.expect("built");
    assert!(!sent.readonly);
}

#[tokio::test(start_paused = true)]
async fn file_systems_have_a_default_and_blocks_have_none() {
    // case: attacher/22
    let ext4 = || Config { default_fstype: "ext4".to_owned(), ..Config::default() };
    let cases = [
        (json!({}), json!({}), Some("ext4")),
        (json!({}), json!({"fsType": "xfs"}), Some("xfs")),
        (json!({"volumeMode": "Block"}), json!({}), None),
    ];
    for (over, csi, want) in cases {
        let bench = with_volume(over, csi).await;
        let sent = request(&bench, ext4(), []).await.expect("built");
        let access = sent.volume_capability.and_then(|one| one.access_type).expect("a type");
        match (access, want) {
            (AccessType::Mount(mount), Some(want)) => assert_eq!(mount.fs_type, want),
            (AccessType::Block(_), None) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn mount_options_are_passed_on() {
    // case: attacher/23
    let over = json!({"mountOptions": ["noatime", "discard"]});
    let bench = with_volume(over, json!({"volumeAttributes": {"kind": "fast"}})).await;
    let sent = request(&bench, Config::default(), []).await.expect("built");
    assert_eq!(sent.volume_context, BTreeMap::from([("kind".to_owned(), "fast".to_owned())]));
    let access = sent.volume_capability.and_then(|one| one.access_type).expect("a type");
    let AccessType::Mount(mount) = access else { panic!("{access:?}") };
    assert_eq!(mount.mount_flags, ["noatime", "discard"]);
}

#[tokio::test(start_paused = true)]
async fn modes_that_do_not_go_together_are_refused() {
    // case: attacher/24
    let (bench, driver) = (Bench::start().await, driver());
    bench.node("n1").await;
    let modes = json!({"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]});
    odd_volume(&bench, modes, json!({})).await;
    let _process = start(&bench, &driver, Config::default());
    let key = attachment(&bench, of_pv1()).await;
    let text = until_error(&bench, &key).await;
    assert_eq!(
        text,
        "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume"
    );
    let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
    assert_eq!(va.status.attach_error.and_then(|error| error.error_code), None);
    assert!(driver.calls_of(Call::ControllerPublishVolume).is_empty());
}

#[tokio::test(start_paused = true)]
async fn secrets_are_read_anew_for_each_call() {
    // case: attacher/25
    let of = json!({"controllerPublishSecretRef": {"name": "keys", "namespace": "default"}});
    let bench = with_volume(json!({}), of).await;
    let key = ObjectKey::new("default", "keys");
    bench.create::<Secret>(json!({"metadata": {"name": "keys", "namespace": "default"}})).await;
    let sent = async || request(&bench, Config::default(), []).await.expect("built").secrets;
    assert_eq!(sent().await, BTreeMap::new());
    let text = |value: &str| BTreeMap::from([("user".to_owned(), value.to_owned())]);
    bench.merge::<Secret>(&key, json!({"data": {"user": "bWU="}})).await;
    assert_eq!(sent().await, text("me"));
    bench.merge::<Secret>(&key, json!({"data": {"user": "eW91"}})).await;
    assert_eq!(sent().await, text("you"));
    bench.merge::<Secret>(&key, json!({"data": {"user": "/v8="}})).await;
    let refused = request(&bench, Config::default(), []).await.expect_err("not UTF-8");
    assert_eq!(
        refused,
        "failed to load secret \"default/keys\": the value of \"user\" is not text"
    );
    let bench = with_volume(json!({}), json!({})).await;
    let none = request(&bench, Config::default(), []).await.expect("built").secrets;
    assert_eq!(none, BTreeMap::new());
}
