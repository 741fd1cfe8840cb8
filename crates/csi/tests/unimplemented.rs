//! Drivers whose responses do not fit what they advertise. One test in a process of its own, because it counts lines of
//! the log and subscribers share state between threads.

use std::collections::BTreeMap;

use longshore_csi::capabilities::{ControllerCapability, NodeCapability};
use longshore_csi::fake::{self, Driver, Version};
use longshore_csi::{Call, Client, SnapshotLookup, v1};
use longshore_testing::Captured;

fn lines_with(log: &Captured, part: &str) -> usize {
    log.text().lines().filter(|line| line.contains(part)).count()
}

async fn snapshot_of_new_volume(client: &Client) -> String {
    let volume = client.create_volume(fake::create_request("pvc-1", 1 << 20)).await.expect("made");
    let request = v1::CreateSnapshotRequest {
        name: "snap".into(),
        source_volume_id: volume.volume.expect("a volume").volume_id,
        ..Default::default()
    };
    client.take_snapshot(request).await.expect("cut").snapshot.expect("a snapshot").snapshot_id
}

/// case: csi-1.13/C7
async fn advertised_but_unimplemented_calls_are_not_used(log: &Captured) {
    let driver = Driver::new("boastful.test");
    driver.speak(Version::V1_13).configure(|config| config.version = Version::V1_9);
    let client = driver.client();
    let mut losses = client.connection_losses();
    let id = snapshot_of_new_volume(&client).await;
    let count = |call| driver.calls_of(call).len();
    for round in 1..=2 {
        for _ in 0..3 {
            let found = client.find_snapshot(&id, BTreeMap::new()).await.expect("listed instead");
            assert!(matches!(found, SnapshotLookup::Found(_)), "{found:?}");
            let advertised = client.controller_capabilities().await.expect("response");
            assert!(!advertised.has(ControllerCapability::GetSnapshot));
            assert!(!client.supports(Call::GetSnapshot).await.expect("response"));
        }
        assert_eq!((count(Call::GetSnapshot), count(Call::ListSnapshots)), (round, 3 * round));
        assert_eq!(lines_with(log, "/csi.v1.Controller/GetSnapshot"), round, "once per connection");
        driver.sever();
        losses.changed().await.expect("the client lives");
    }
    // Half of a pair that is missing does not take the other half along.
    let request = v1::NodeGetStorageHealthRequest::default();
    client.node_capabilities().await.expect("response");
    client.node_get_storage_health(request).await.expect_err("not in 1.9");
    let node = client.node_capabilities().await.expect("response");
    assert!(!node.has(NodeCapability::GetStorageHealth));
    assert!(
        node.has(NodeCapability::GetVolumeHealth) && node.has(NodeCapability::StageUnstageVolume)
    );
}

async fn calls_that_were_never_advertised_are_not_logged(log: &Captured) {
    let driver = Driver::new("modest.test");
    driver.speak(Version::V1_9);
    let client = driver.client();
    assert!(!client.supports(Call::ControllerGetVolumeHealth).await.expect("response"));
    let request = v1::ControllerGetVolumeHealthRequest::default();
    client.controller_get_volume_health(request).await.expect_err("not there");
    assert_eq!(lines_with(log, "ControllerGetVolumeHealth"), 0);
}

/// case: csi-1.13/C17
async fn a_topology_without_the_capability_is_ignored(log: &Captured) {
    let driver = Driver::new("stray.test");
    driver.speak(Version::V1_12);
    let client = driver.client();
    let id = snapshot_of_new_volume(&client).await;
    let topology = v1::Topology { segments: [("zone".to_owned(), "a".to_owned())].into() };
    driver.edit(|state| {
        let snapshot = state.snapshots.get_mut(&id).expect("there");
        snapshot.message.accessible_topology = vec![topology];
    });
    for _ in 0..3 {
        let found = client.find_snapshot(&id, BTreeMap::new()).await.expect("response");
        let SnapshotLookup::Found(snapshot) = found else { panic!("{found:?}") };
        assert_eq!(snapshot.accessible_topology, []);
    }
    assert_eq!(lines_with(log, "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"), 1);
}

async fn a_list_with_a_token_that_repeats_ends_in_an_error() {
    let driver = Driver::new("stuck.test");
    driver.speak(Version::V1_13).configure(|config| config.stuck_token = Some("again".into()));
    let client = driver.client();
    let volumes = client.list_all_volumes(Default::default(), |_| ()).await;
    let error = volumes.expect_err("it would go on for ever").to_string();
    assert!(error.contains(r#"next_token "again" twice"#), "{error}");
    client.list_all_volume_health(Default::default(), |_| ()).await.expect_err("as well");
    assert_eq!(driver.calls_of(Call::ControllerListVolumeHealth).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_advertises_wrongly_does_no_harm() {
    let log = Captured::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    advertised_but_unimplemented_calls_are_not_used(&log).await;
    calls_that_were_never_advertised_are_not_logged(&log).await;
    a_topology_without_the_capability_is_ignored(&log).await;
    a_list_with_a_token_that_repeats_ends_in_an_error().await;
}
