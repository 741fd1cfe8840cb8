//! What the driver says to callers of CSI 1.13, and to those that know only 1.12.

mod common;

use common::*;
use longshore_csi::capabilities::PluginService;
use longshore_csi::v1::*;
use longshore_csi::{Call, SnapshotLookup};
use longshore_driver::config::DriverKind;
use tonic::Code;

const KINDS: [DriverKind; 2] = [DriverKind::Local, DriverKind::Shared];

/// A caller that asks for capabilities first never meets a call that is not there, and one that does not ask gets
/// `Unimplemented` for each call that is not advertised.
#[tokio::test(flavor = "multi_thread")]
async fn health_calls_are_neither_advertised_nor_implemented() {
    if !able("health_calls_are_neither_advertised_nor_implemented") {
        return;
    }
    for kind in KINDS {
        let world = World::new();
        let running = start(world.config(kind, "n1")).await;
        let client = &running.client;
        let health = [
            Call::ControllerListVolumeHealth,
            Call::ControllerGetVolumeHealth,
            Call::NodeGetVolumeHealth,
            Call::NodeGetStorageHealth,
        ];
        for call in health {
            assert!(!client.supports(call).await.unwrap(), "{call} on {kind}");
        }
        let codes = [
            refused(client.controller_list_volume_health(Default::default()).await),
            refused(client.controller_get_volume_health(Default::default()).await),
            refused(client.node_get_volume_health(Default::default()).await),
            refused(client.node_get_storage_health(Default::default()).await),
        ];
        assert_eq!(codes, [Code::Unimplemented; 4], "{kind}");
        stop(running).await;
    }
}

/// The topology of snapshots is not advertised yet, so no caller may ask for one. One that does is
/// not lied to: a snapshot that only this node has is not given to a caller who needs it on another
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_for_another_node_is_refused() {
    if !able("a_snapshot_for_another_node_is_refused") {
        return;
    }
    let key = "topology.local.csi.longshore.dev/node";
    let at = |node: &str| Topology { segments: [(key.to_owned(), node.to_owned())].into() };
    let wanted = |node: &str, name: &str, source: &str| CreateSnapshotRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![at(node)],
            preferred: vec![at(node)],
        }),
        ..snapshot(name, source)
    };
    for (kind, here, elsewhere) in [
        (DriverKind::Local, None, Code::ResourceExhausted),
        (DriverKind::Shared, Some(Code::InvalidArgument), Code::InvalidArgument),
    ] {
        let world = World::new();
        let running = start(world.config(kind, "n1")).await;
        let client = &running.client;
        let service = PluginService::SnapshotAccessibilityConstraints;
        assert!(!client.has_service(service).await.unwrap());
        let id = make(client, "a", 1 << 20, writer()).await;
        let other = client.create_snapshot(wanted("n2", "other", &id)).await;
        assert_eq!(refused(other), elsewhere, "{kind}");
        let own = client.create_snapshot(wanted("n1", "own", &id)).await;
        assert_eq!(own.as_ref().err().map(|error| error.code()), here, "{kind}");
        // Our own client knows better than to send the field.
        let sent = client.take_snapshot(wanted("n2", "plain", &id)).await.unwrap();
        let snapshot = sent.snapshot.expect("a snapshot");
        assert_eq!(snapshot.accessible_topology, []);
        let found = client.find_snapshot(&snapshot.snapshot_id, Default::default()).await.unwrap();
        assert_eq!(found, SnapshotLookup::Found(snapshot));
        stop(running).await;
    }
}
