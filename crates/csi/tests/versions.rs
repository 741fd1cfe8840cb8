//! Every path of the client against drivers of every version of CSI.
//!
//! The client asks for capabilities and never for a version, so one client must do with each of these drivers what the
//! driver can do, and send it nothing else.

use std::collections::{BTreeMap, BTreeSet};

use longshore_csi::capabilities::{ControllerCapability, NodeCapability, PluginService};
use longshore_csi::fake::{self, Driver, Version};
use longshore_csi::{Call, Client, HealthSource, SnapshotLookup, v1};

const NODE: &str = "node-1";

fn driver(version: Version) -> Driver {
    let driver = Driver::new("versions.test");
    let zone = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    driver.with_pools([(zone, None)]).speak(version);
    driver
}

async fn volume(client: &Client, name: &str) -> String {
    let response = client.create_volume(fake::create_request(name, 1 << 20)).await.expect("made");
    response.volume.expect("a volume").volume_id
}

/// The calls that the driver was sent and did not have.
fn unimplemented(driver: &Driver) -> Vec<Call> {
    let refused = |result: &Option<Result<String, String>>| matches!(result, Some(Err(text)) if text.contains("code = Unimplemented"));
    driver.calls().iter().filter(|one| refused(&one.result)).map(|one| one.call).collect()
}

/// What `Call::requirement` has to come to for a driver that advertises all that its version has.
fn expected(version: Version, call: Call) -> bool {
    match call {
        // The fake has no SnapshotMetadata service.
        Call::GetMetadataAllocated | Call::GetMetadataDelta => false,
        Call::GroupControllerGetCapabilities
        | Call::CreateVolumeGroupSnapshot
        | Call::DeleteVolumeGroupSnapshot
        | Call::GetVolumeGroupSnapshot => version >= Version::V1_8,
        Call::ControllerModifyVolume => version >= Version::V1_9,
        Call::GetSnapshot => version >= Version::V1_12,
        Call::ControllerListVolumeHealth
        | Call::ControllerGetVolumeHealth
        | Call::NodeGetVolumeHealth
        | Call::NodeGetStorageHealth => version >= Version::V1_13,
        _ => true,
    }
}

/// Sends every call that the client says the driver supports, with requests that are well formed.
async fn send_all_supported(driver: &Driver, client: &Client) {
    let mut sent = BTreeSet::new();
    for call in Call::ALL {
        if client.supports(*call).await.expect("response") {
            sent.insert(*call);
        }
    }
    let id = volume(client, "pvc-1").await;
    volume_calls(client, &sent, &id).await;
    let published = v1::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: NODE.to_owned(),
        volume_capability: Some(fake::mount_capability()),
        ..Default::default()
    };
    client.controller_publish_volume(published).await.expect("published");
    node_calls(client, &sent, &id).await;
    snapshot_calls(client, &sent, &id).await;
    let mut received: BTreeSet<Call> = driver.calls().iter().map(|one| one.call).collect();
    received.extend([Call::Probe, Call::GetPluginInfo]);
    let quiet: Vec<&Call> = sent.iter().filter(|call| !received.contains(call)).collect();
    assert!(quiet.is_empty(), "supported, but not tried: {quiet:?}");
}

async fn volume_calls(client: &Client, sent: &BTreeSet<Call>, id: &str) {
    let volume_id = id.to_owned();
    let capabilities = vec![fake::mount_capability()];
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: capabilities,
        ..Default::default()
    };
    client.validate_volume_capabilities(validate).await.expect("valid");
    client.get_capacity(v1::GetCapacityRequest::default()).await.expect("capacity");
    let mut listed = 0;
    let request = v1::ListVolumesRequest { max_entries: 1, ..Default::default() };
    client.list_all_volumes(request, |_| listed += 1).await.expect("listed");
    assert_eq!(listed, 1);
    let get = v1::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
    client.controller_get_volume(get).await.expect("got");
    let grow = v1::ControllerExpandVolumeRequest {
        volume_id: volume_id.clone(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 21, limit_bytes: 0 }),
        ..Default::default()
    };
    client.controller_expand_volume(grow).await.expect("grown");
    if sent.contains(&Call::ControllerModifyVolume) {
        let request = v1::ControllerModifyVolumeRequest { volume_id, ..Default::default() };
        client.controller_modify_volume(request).await.expect("modified");
    }
    let passing = v1::DeleteVolumeRequest { volume_id: "gone".into(), ..Default::default() };
    client.delete_volume(passing).await.expect("deleted");
    let request =
        v1::ControllerUnpublishVolumeRequest { volume_id: id.into(), ..Default::default() };
    client.controller_unpublish_volume(request).await.expect("unpublished");
    client.list_all_snapshots(Default::default(), |_| ()).await.expect("listed");
    if sent.contains(&Call::ControllerListVolumeHealth) {
        let request =
            v1::ControllerListVolumeHealthRequest { max_entries: 1, ..Default::default() };
        client.list_all_volume_health(request, |_| ()).await.expect("listed");
    }
    if sent.contains(&Call::ControllerGetVolumeHealth) {
        let request =
            v1::ControllerGetVolumeHealthRequest { volume_id: id.into(), ..Default::default() };
        let got = client.controller_get_volume_health(request).await.expect("got");
        assert_eq!(got.volume_health.expect("health").volume_id, id);
    }
}

async fn node_calls(client: &Client, sent: &BTreeSet<Call>, id: &str) {
    let (volume_id, staging) = (id.to_owned(), "/staging".to_owned());
    let capability = Some(fake::mount_capability());
    client.node_get_info(v1::NodeGetInfoRequest {}).await.expect("info");
    let stage = v1::NodeStageVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging.clone(),
        volume_capability: capability.clone(),
        ..Default::default()
    };
    client.node_stage_volume(stage).await.expect("staged");
    let publish = v1::NodePublishVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging.clone(),
        target_path: "/target".into(),
        volume_capability: capability,
        ..Default::default()
    };
    client.node_publish_volume(publish).await.expect("published");
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: volume_id.clone(),
        volume_path: "/target".into(),
        ..Default::default()
    };
    client.node_get_volume_stats(stats).await.expect("stats");
    let grow = v1::NodeExpandVolumeRequest {
        volume_id: volume_id.clone(),
        volume_path: "/target".into(),
        ..Default::default()
    };
    client.node_expand_volume(grow).await.expect("grown");
    if sent.contains(&Call::NodeGetVolumeHealth) {
        let request =
            v1::NodeGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
        client.node_get_volume_health(request).await.expect("health");
    }
    if sent.contains(&Call::NodeGetStorageHealth) {
        client.node_get_storage_health(Default::default()).await.expect("health");
    }
    let target_path = "/target".to_owned();
    let request = v1::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path };
    client.node_unpublish_volume(request).await.expect("unpublished");
    let request = v1::NodeUnstageVolumeRequest { volume_id, staging_target_path: staging };
    client.node_unstage_volume(request).await.expect("unstaged");
}

async fn snapshot_calls(client: &Client, sent: &BTreeSet<Call>, id: &str) {
    let zone = v1::Topology { segments: [("zone".to_owned(), "a".to_owned())].into() };
    let wanted =
        v1::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone.clone()] };
    let request = v1::CreateSnapshotRequest {
        name: "snap".into(),
        source_volume_id: id.into(),
        accessibility_requirements: Some(wanted),
        ..Default::default()
    };
    let cut = client.take_snapshot(request).await.expect("cut").snapshot.expect("a snapshot");
    let constrained = client.has_service(PluginService::SnapshotAccessibilityConstraints).await;
    let topology = if constrained.expect("response") { vec![zone] } else { vec![] };
    assert_eq!(cut.accessible_topology, topology);
    let found = client.find_snapshot(&cut.snapshot_id, BTreeMap::new()).await.expect("found");
    assert_eq!(found, SnapshotLookup::Found(cut.clone()));
    let missing = client.find_snapshot("nowhere", BTreeMap::new()).await.expect("response");
    assert_eq!(missing, SnapshotLookup::Missing);
    let request = v1::DeleteSnapshotRequest { snapshot_id: cut.snapshot_id, ..Default::default() };
    client.delete_snapshot(request).await.expect("deleted");
    if !sent.contains(&Call::CreateVolumeGroupSnapshot) {
        return;
    }
    let request = v1::CreateVolumeGroupSnapshotRequest {
        name: "group".into(),
        source_volume_ids: vec![id.into()],
        ..Default::default()
    };
    let group = client.create_volume_group_snapshot(request).await.expect("cut");
    let group_snapshot_id = group.group_snapshot.expect("a group").group_snapshot_id;
    let request = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group_snapshot_id.clone(),
        ..Default::default()
    };
    client.get_volume_group_snapshot(request).await.expect("got");
    let request = v1::DeleteVolumeGroupSnapshotRequest { group_snapshot_id, ..Default::default() };
    client.delete_volume_group_snapshot(request).await.expect("deleted");
}

#[tokio::test(start_paused = true)]
async fn a_driver_of_any_version_is_sent_only_calls_that_it_has() {
    for version in Version::ALL {
        let driver = driver(version);
        let client = driver.client();
        for call in Call::ALL {
            let supported = client.supports(*call).await.expect("response");
            assert_eq!(supported, expected(version, *call), "{call} on {version:?}");
        }
        send_all_supported(&driver, &client).await;
        assert_eq!(unimplemented(&driver), [], "{version:?}");
        assert_eq!(driver.violations(), [""; 0], "{version:?}");
    }
}

/// case: csi-1.13/C6
#[tokio::test(start_paused = true)]
async fn one_snapshot_is_got_where_it_can_be_and_listed_elsewhere() {
    for version in Version::ALL {
        let driver = driver(version);
        let client = driver.client();
        client.find_snapshot("nowhere", BTreeMap::new()).await.expect("response");
        let count = |call| driver.calls_of(call).len();
        let gets = usize::from(version >= Version::V1_12);
        assert_eq!((count(Call::GetSnapshot), count(Call::ListSnapshots)), (gets, 1 - gets));
    }
    let neither = driver(Version::V1_13);
    neither.configure(|config| {
        config.controller.remove(ControllerCapability::GetSnapshot);
        config.controller.remove(ControllerCapability::ListSnapshots);
    });
    let found = neither.client().find_snapshot("nowhere", BTreeMap::new()).await;
    assert_eq!(found.expect("response"), SnapshotLookup::Unsupported);
}

/// case: csi-1.13/C8, case: csi-1.13/C9
#[tokio::test(start_paused = true)]
async fn a_driver_replaced_behind_its_socket_is_asked_again() {
    let driver = driver(Version::V1_13);
    let client = driver.client();
    let count = || driver.calls_of(Call::ControllerGetCapabilities).len();
    let mut losses = client.connection_losses();
    let source = async || {
        let advertised = client.controller_capabilities().await.expect("response");
        (HealthSource::of(&advertised), client.supports(Call::GetSnapshot).await.expect("response"))
    };
    let newest = (HealthSource::HealthList { confirm: true }, true);
    assert_eq!(source().await, newest);
    assert_eq!(source().await, newest);
    assert_eq!(count(), 1, "the response holds as long as the connection");
    for (version, expected) in [
        (Version::V1_9, (HealthSource::ConditionList, false)),
        (Version::V1_12, (HealthSource::ConditionList, true)),
        (Version::V1_13, newest),
        (Version::V1_5, (HealthSource::ConditionList, false)),
    ] {
        driver.speak(version).sever();
        losses.changed().await.expect("the client lives");
        assert_eq!(source().await, expected, "{version:?}");
    }
    assert_eq!(count(), 5);
    assert_eq!(unimplemented(&driver), []);
}

/// Node plugins may learn what they can do after they were registered, and the kubelet asks before every operation.
#[tokio::test(start_paused = true)]
async fn the_node_service_is_asked_every_time() {
    let driver = driver(Version::V1_12);
    let client = driver.client();
    assert!(client.supports(Call::NodeGetVolumeStats).await.expect("response"));
    driver.configure(|config| config.node.remove(NodeCapability::GetVolumeStats));
    assert!(!client.supports(Call::NodeGetVolumeStats).await.expect("response"));
    driver.configure(|config| config.node.insert(NodeCapability::GetVolumeStats));
    assert!(client.supports(Call::NodeGetVolumeStats).await.expect("response"));
    assert_eq!(driver.calls_of(Call::NodeGetCapabilities).len(), 3);
}
