//! The `shared` driver: one pool, several nodes, recorded exclusive attachment.

mod common;

use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::{DriverKind, Mode as DriverMode};
use tonic::Code;

async fn two_nodes(world: &World) -> (Running, Running) {
    let first = start(world.config(DriverKind::Shared, "n1")).await;
    let mut config = world.config(DriverKind::Shared, "n2");
    config.mode = DriverMode::Node;
    (first, start(config).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_at_a_time() {
    if !able("one_node_at_a_time") {
        return;
    }
    let world = World::new();
    let (first, second) = two_nodes(&world).await;
    let controller = &first.client;
    let id = make(controller, "a", 4 * MIB, writer()).await;
    let (s1, s2) = (world.dir("s1"), world.dir("s2"));

    // Without leave nobody stages.
    assert_eq!(
        refused(first.client.node_stage_volume(stage(&id, &s1, writer())).await),
        Code::FailedPrecondition
    );
    for _ in 0..2 {
        controller.controller_publish_volume(attach(&id, "n1", writer())).await.unwrap();
    }
    assert_eq!(
        refused(controller.controller_publish_volume(attach(&id, "n2", writer())).await),
        Code::FailedPrecondition
    );
    let other = ControllerPublishVolumeRequest { readonly: true, ..attach(&id, "n1", writer()) };
    assert_eq!(refused(controller.controller_publish_volume(other).await), Code::AlreadyExists);
    assert_eq!(
        refused(second.client.node_stage_volume(stage(&id, &s2, writer())).await),
        Code::FailedPrecondition
    );

    first.client.node_stage_volume(stage(&id, &s1, writer())).await.unwrap();
    std::fs::write(Path::new(&s1).join("f"), "from n1").unwrap();
    // The leave does not end while the node has the volume.
    assert_eq!(
        refused(controller.controller_unpublish_volume(detach(&id, "n1")).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        refused(controller.controller_unpublish_volume(detach(&id, "")).await),
        Code::FailedPrecondition
    );
    first.client.node_unstage_volume(unstage(&id, &s1)).await.unwrap();
    assert_eq!(refused(controller.delete_volume(delete(&id)).await), Code::FailedPrecondition);
    for _ in 0..2 {
        controller.controller_unpublish_volume(detach(&id, "n1")).await.unwrap();
    }

    // Now it is the other node's, with the data.
    controller.controller_publish_volume(attach(&id, "n2", writer())).await.unwrap();
    let listed = controller.list_volumes(ListVolumesRequest::default()).await.unwrap();
    assert_eq!(listed.entries[0].status.as_ref().unwrap().published_node_ids, ["n2"]);
    second.client.node_stage_volume(stage(&id, &s2, writer())).await.unwrap();
    assert_eq!(std::fs::read_to_string(Path::new(&s2).join("f")).unwrap(), "from n1");
    assert_eq!(
        refused(first.client.node_stage_volume(stage(&id, &s1, writer())).await),
        Code::FailedPrecondition
    );
    second.client.node_unstage_volume(unstage(&id, &s2)).await.unwrap();
    controller.controller_unpublish_volume(detach(&id, "")).await.unwrap();
    controller.delete_volume(delete(&id)).await.unwrap();
    world.assert_clean();
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers() {
    if !able("many_readers") {
        return;
    }
    let world = World::new();
    let (first, second) = two_nodes(&world).await;
    let controller = &first.client;
    let id = make(controller, "a", 4 * MIB, writer()).await;
    let (s1, s2) = (world.dir("s1"), world.dir("s2"));
    let reader = || mount(Mode::MultiNodeReaderOnly);

    // Blank: somebody has to write it first.
    controller.controller_publish_volume(attach(&id, "n1", reader())).await.unwrap();
    assert_eq!(
        refused(first.client.node_stage_volume(stage(&id, &s1, reader())).await),
        Code::FailedPrecondition
    );
    controller.controller_unpublish_volume(detach(&id, "n1")).await.unwrap();
    controller.controller_publish_volume(attach(&id, "n1", writer())).await.unwrap();
    first.client.node_stage_volume(stage(&id, &s1, writer())).await.unwrap();
    std::fs::write(Path::new(&s1).join("f"), "x").unwrap();
    first.client.node_unstage_volume(unstage(&id, &s1)).await.unwrap();
    controller.controller_unpublish_volume(detach(&id, "n1")).await.unwrap();

    for (running, node, staging) in [(&first, "n1", &s1), (&second, "n2", &s2)] {
        controller.controller_publish_volume(attach(&id, node, reader())).await.unwrap();
        for _ in 0..2 {
            running.client.node_stage_volume(stage(&id, staging, reader())).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(Path::new(staging).join("f")).unwrap(), "x");
        assert!(std::fs::write(Path::new(staging).join("f"), "y").is_err());
    }
    assert_eq!(world.loops().len(), 2);
    for (running, staging) in [(&first, &s1), (&second, &s2)] {
        running.client.node_unstage_volume(unstage(&id, staging)).await.unwrap();
    }
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_have_limits_that_survive_a_restart() {
    if !able("nodes_have_limits_that_survive_a_restart") {
        return;
    }
    let world = World::new();
    let mut config = world.config(DriverKind::Shared, "n1");
    config.max_volumes = 2;
    let mut running = start(config.clone()).await;
    let ids = [
        make(&running.client, "a", 4 * MIB, writer()).await,
        make(&running.client, "b", 4 * MIB, writer()).await,
        make(&running.client, "c", 4 * MIB, writer()).await,
    ];
    for id in &ids[..2] {
        running.client.controller_publish_volume(attach(id, "n1", writer())).await.unwrap();
    }
    for _ in 0..2 {
        let third = running.client.controller_publish_volume(attach(&ids[2], "n1", writer())).await;
        assert_eq!(refused(third), Code::ResourceExhausted);
        stop(running).await;
        running = start(config.clone()).await;
    }
    running.client.controller_unpublish_volume(detach(&ids[0], "n1")).await.unwrap();
    running.client.controller_publish_volume(attach(&ids[2], "n1", writer())).await.unwrap();
    assert_eq!(
        refused(
            running.client.controller_publish_volume(attach(&ids[0], "nowhere", writer())).await
        ),
        Code::NotFound
    );
}
