use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::Code;

use super::*;
use crate::Call;
use crate::v1::volume_capability::access_mode::Mode;

const GIB: i64 = 1 << 30;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn capability(mode: Mode) -> v1::VolumeCapability {
    let access_mode = v1::volume_capability::AccessMode { mode: mode.into() };
    v1::VolumeCapability { access_mode: Some(access_mode), ..mount_capability() }
}

async fn create(client: &Client, name: &str) -> String {
    let response = client.create_volume(create_request(name, GIB)).await.expect("created");
    response.volume.expect("a volume").volume_id
}

fn attach(volume: &str, node: &str) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        volume_capability: Some(mount_capability()),
        ..Default::default()
    }
}

fn detach(volume: &str, node: &str) -> v1::ControllerUnpublishVolumeRequest {
    v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        ..Default::default()
    }
}

fn stage(volume: &str, mode: Mode) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: volume.into(),
        staging_target_path: "/stage".into(),
        volume_capability: Some(capability(mode)),
        ..Default::default()
    }
}

fn publish(volume: &str, target: &str, mode: Mode) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: volume.into(),
        staging_target_path: "/stage".into(),
        target_path: target.into(),
        volume_capability: Some(capability(mode)),
        ..Default::default()
    }
}

fn unpublish(volume: &str, target: &str) -> v1::NodeUnpublishVolumeRequest {
    v1::NodeUnpublishVolumeRequest { volume_id: volume.into(), target_path: target.into() }
}

fn unstage(volume: &str) -> v1::NodeUnstageVolumeRequest {
    let staging_target_path = "/stage".into();
    v1::NodeUnstageVolumeRequest { volume_id: volume.into(), staging_target_path }
}

fn code<T: std::fmt::Debug>(result: Result<T, crate::CsiError>) -> Code {
    result.expect_err("a failure").code()
}

#[tokio::test(start_paused = true)]
async fn a_volume_lives_and_every_step_may_be_repeated() {
    let driver = Driver::new("fake.test");
    let client = driver.client();
    let id = create(&client, "pvc-1").await;
    assert_eq!(create(&client, "pvc-1").await, id);
    let mode = Mode::SingleNodeWriter;
    for _ in 0..2 {
        let response = client.controller_publish_volume(attach(&id, "node-1")).await.expect("ok");
        assert_eq!(response.publish_context["device"], format!("fake-{id}"));
        client.node_stage_volume(stage(&id, mode)).await.expect("staged");
        client.node_publish_volume(publish(&id, "/t", mode)).await.expect("published");
    }
    let state = driver.state();
    assert!(state.volumes[&id].published.contains_key("node-1"));
    assert!(state.nodes["node-1"].volumes[&id].targets.contains_key("/t"));

    let gone = v1::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    assert_eq!(code(client.delete_volume(gone.clone()).await), Code::FailedPrecondition);
    for _ in 0..2 {
        client.node_unpublish_volume(unpublish(&id, "/t")).await.expect("unpublished");
        client.node_unstage_volume(unstage(&id)).await.expect("unstaged");
        client.controller_unpublish_volume(detach(&id, "node-1")).await.expect("detached");
        client.delete_volume(gone.clone()).await.expect("deleted");
    }
    assert!(driver.volumes().is_empty());
    assert!(driver.state().nodes["node-1"].volumes.is_empty());
    assert_eq!(driver.violations().len(), 1, "only the early delete: {:?}", driver.violations());
}

#[tokio::test(start_paused = true)]
async fn create_refuses_what_the_protocol_refuses() {
    let driver = Driver::new("fake.test");
    driver.configure(|config| {
        config.pools[0].capacity = Some(4 * GIB);
        config.max_volume_size = Some(8 * GIB);
        config.refused_parameters = vec!["bad".into()];
    });
    let client = driver.client();
    create(&client, "taken").await;
    let base = || create_request("new", GIB);
    let range =
        |required_bytes, limit_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes });
    let volume_source = |id: &str| {
        use v1::volume_content_source::{Type, VolumeSource};
        let from = VolumeSource { volume_id: id.into() };
        Some(v1::VolumeContentSource { r#type: Some(Type::Volume(from)) })
    };
    let rows = [
        (v1::CreateVolumeRequest { name: "".into(), ..base() }, Code::InvalidArgument),
        (v1::CreateVolumeRequest { name: "a\0".into(), ..base() }, Code::InvalidArgument),
        (v1::CreateVolumeRequest { volume_capabilities: vec![], ..base() }, Code::InvalidArgument),
        (
            v1::CreateVolumeRequest {
                volume_capabilities: vec![v1::VolumeCapability::default()],
                ..base()
            },
            Code::InvalidArgument,
        ),
        (
            v1::CreateVolumeRequest { mutable_parameters: map(&[("bad", "1")]), ..base() },
            Code::InvalidArgument,
        ),
        (create_request("taken", 2 * GIB), Code::AlreadyExists),
        (
            v1::CreateVolumeRequest {
                parameters: map(&[("a", "b")]),
                ..create_request("taken", GIB)
            },
            Code::AlreadyExists,
        ),
        (v1::CreateVolumeRequest { capacity_range: range(2, 1), ..base() }, Code::OutOfRange),
        (v1::CreateVolumeRequest { capacity_range: range(-1, 0), ..base() }, Code::InvalidArgument),
        (create_request("new", 9 * GIB), Code::OutOfRange),
        (create_request("new", 4 * GIB), Code::ResourceExhausted),
        (
            v1::CreateVolumeRequest { volume_content_source: volume_source("nope"), ..base() },
            Code::NotFound,
        ),
        (
            v1::CreateVolumeRequest {
                volume_content_source: volume_source("vol-1"),
                capacity_range: range(GIB / 2, 0),
                ..base()
            },
            Code::OutOfRange,
        ),
    ];
    for (request, expected) in rows {
        assert_eq!(code(client.create_volume(request.clone()).await), expected, "{request:?}");
    }
    assert_eq!(driver.volumes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn volumes_go_where_they_are_wanted_and_where_there_is_room() {
    let zone = |name: &str| map(&[("zone", name)]);
    let driver = Driver::with_node("fake.test", "n1", zone("a"));
    driver.with_pools([(zone("a"), Some(2 * GIB)), (zone("b"), Some(GIB))]);
    let client = driver.client();
    let topology = |name: &str| v1::Topology { segments: zone(name) };
    let wish = |requisite: &[&str], preferred: &[&str]| v1::TopologyRequirement {
        requisite: requisite.iter().map(|name| topology(name)).collect(),
        preferred: preferred.iter().map(|name| topology(name)).collect(),
    };
    let rows = [
        ("one", wish(&["a", "b"], &["b", "a"]), Ok("b")),
        ("two", wish(&["a", "b"], &["b", "a"]), Ok("a")),
        ("three", wish(&["b"], &[]), Err(Code::ResourceExhausted)),
        ("four", wish(&["c"], &[]), Err(Code::ResourceExhausted)),
        ("five", wish(&[], &[]), Err(Code::InvalidArgument)),
    ];
    for (name, requirement, expected) in rows {
        let request = v1::CreateVolumeRequest {
            accessibility_requirements: Some(requirement),
            ..create_request(name, GIB)
        };
        let got = client.create_volume(request).await.map(|response| {
            response.volume.expect("volume").accessible_topology[0].segments["zone"].clone()
        });
        let got = got.map_err(|error| error.code());
        assert_eq!(got.as_deref().map_err(|code| *code), expected, "{name}");
    }
    let room = |name: &str| {
        let request = v1::GetCapacityRequest {
            accessible_topology: Some(topology(name)),
            ..Default::default()
        };
        let client = client.clone();
        async move { client.get_capacity(request).await.expect("capacity").available_capacity }
    };
    assert_eq!((room("a").await, room("b").await, room("c").await), (GIB, 0, 0));
    let info = client.node_get_info(v1::NodeGetInfoRequest {}).await.expect("info");
    assert_eq!(info.accessible_topology.expect("topology").segments, zone("a"));
}

#[tokio::test(start_paused = true)]
async fn publishing_to_nodes_follows_the_rules() {
    let driver = Driver::new("fake.test");
    driver.on_node("node-2", BTreeMap::new());
    driver.configure(|config| config.max_volumes_per_node = 1);
    let client = driver.client();
    let (one, two) = (create(&client, "one").await, create(&client, "two").await);
    client.controller_publish_volume(attach(&one, "node-1")).await.expect("published");
    let readonly = v1::ControllerPublishVolumeRequest { readonly: true, ..attach(&one, "node-1") };
    let foreign = v1::ControllerPublishVolumeRequest {
        volume_context: map(&[("a", "b")]),
        ..attach(&two, "node-2")
    };
    let rows = [
        (attach("nope", "node-1"), Code::NotFound),
        (attach(&one, "nope"), Code::NotFound),
        (attach(&one, ""), Code::InvalidArgument),
        (readonly, Code::AlreadyExists),
        (attach(&one, "node-2"), Code::FailedPrecondition),
        (attach(&two, "node-1"), Code::ResourceExhausted),
        (foreign, Code::InvalidArgument),
    ];
    for (request, expected) in rows {
        let got = client.controller_publish_volume(request.clone()).await;
        assert_eq!(code(got), expected, "{request:?}");
    }
    let everywhere = detach(&one, "");
    client.controller_unpublish_volume(everywhere).await.expect("detached");
    assert!(driver.volumes()[&one].published.is_empty());
    client.controller_unpublish_volume(detach("nope", "nope")).await.expect("already so");
}

/// The table of second publications: same or other path, same or other arguments.
#[tokio::test(start_paused = true)]
async fn a_second_publication_follows_the_table() {
    use Code::{AlreadyExists, FailedPrecondition};
    let rows = [
        (Mode::MultiNodeMultiWriter, [None, Some(AlreadyExists), None, None]),
        (Mode::SingleNodeMultiWriter, [None, Some(AlreadyExists), None, None]),
        (
            Mode::SingleNodeSingleWriter,
            [None, Some(AlreadyExists), Some(FailedPrecondition), Some(FailedPrecondition)],
        ),
        (
            Mode::SingleNodeWriter,
            [None, Some(AlreadyExists), Some(FailedPrecondition), Some(FailedPrecondition)],
        ),
    ];
    for (mode, expected) in rows {
        for (column, expected) in expected.into_iter().enumerate() {
            let client = Driver::new("fake.test").client();
            let id = create(&client, "v").await;
            client.node_stage_volume(stage(&id, mode)).await.expect("staged");
            client.node_publish_volume(publish(&id, "/t", mode)).await.expect("published");
            let (target, readonly) =
                [("/t", false), ("/t", true), ("/u", false), ("/u", true)][column];
            let second = v1::NodePublishVolumeRequest { readonly, ..publish(&id, target, mode) };
            let got = client.node_publish_volume(second).await.map_err(|error| error.code());
            assert_eq!(got.err(), expected, "{mode:?} column {column}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn breaches_of_the_order_are_noted() {
    let driver = Driver::new("fake.test");
    let client = driver.client();
    let id = create(&client, "v").await;
    let mode = Mode::SingleNodeWriter;
    let early = client.node_publish_volume(publish(&id, "/t", mode)).await;
    assert_eq!(code(early), Code::FailedPrecondition);
    client.node_stage_volume(stage(&id, mode)).await.expect("staged");
    client.node_publish_volume(publish(&id, "/t", mode)).await.expect("published");
    client.controller_unpublish_volume(detach(&id, "node-1")).await.expect("detached");
    client.node_unstage_volume(unstage(&id)).await.expect("unstaged");
    assert_eq!(
        driver.violations(),
        [
            format!("NodePublishVolume: {id} is not published to node-1"),
            format!("NodePublishVolume: {id} is not staged on node-1"),
            format!("NodeStageVolume: {id} is not published to node-1"),
            format!("NodePublishVolume: {id} is not published to node-1"),
            format!("ControllerUnpublishVolume: {id} is still used on node-1"),
            format!("NodeUnstageVolume: {id} is still published on node-1"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn sizes_grow_on_both_sides() {
    let driver = Driver::new("fake.test");
    driver.configure(|config| config.pools[0].capacity = Some(3 * GIB));
    let client = driver.client();
    let id = create(&client, "v").await;
    let grow = |bytes| v1::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    let response = client.controller_expand_volume(grow(2 * GIB)).await.expect("grown");
    assert_eq!((response.capacity_bytes, response.node_expansion_required), (2 * GIB, true));
    let response = client.controller_expand_volume(grow(GIB)).await.expect("already larger");
    assert_eq!(response.capacity_bytes, 2 * GIB);
    assert_eq!(code(client.controller_expand_volume(grow(4 * GIB)).await), Code::ResourceExhausted);

    let on_node = v1::NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: "/t".into(),
        ..Default::default()
    };
    assert_eq!(code(client.node_expand_volume(on_node.clone()).await), Code::NotFound);
    let mode = Mode::SingleNodeWriter;
    client.node_stage_volume(stage(&id, mode)).await.expect("staged");
    client.node_publish_volume(publish(&id, "/t", mode)).await.expect("published");
    client.node_expand_volume(on_node).await.expect("grown");
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: "/t".into(),
        ..Default::default()
    };
    let usage = client.node_get_volume_stats(stats).await.expect("stats").usage;
    assert_eq!(usage[0].total, 2 * GIB);
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages() {
    let driver = Driver::new("fake.test");
    let client = driver.client();
    for name in ["a", "b", "c"] {
        create(&client, name).await;
    }
    let page = |token: &str| {
        client.list_volumes(v1::ListVolumesRequest { max_entries: 2, starting_token: token.into() })
    };
    let first = page("").await.expect("first");
    let second = page(&first.next_token).await.expect("second");
    assert_eq!((first.entries.len(), second.entries.len()), (2, 1));
    assert_eq!(second.next_token, "");
    assert_eq!(code(page("junk").await), Code::Aborted);
    let mut listed = 0;
    client.list_all_volumes(Default::default(), |_| listed += 1).await.expect("all");
    assert_eq!(listed, 3);
    driver.configure(|config| config.page_entries = 1);
    driver.clear_calls();
    client.list_all_volumes(Default::default(), |_| listed += 1).await.expect("all");
    assert_eq!((listed, driver.calls_of(Call::ListVolumes).len()), (6, 3));
}

#[tokio::test(start_paused = true)]
async fn snapshots_become_ready_and_can_be_restored() {
    let driver = Driver::new("fake.test");
    driver.configure(|config| config.snapshot_polls = 1);
    let client = driver.client();
    let id = create(&client, "v").await;
    let cut = v1::CreateSnapshotRequest {
        source_volume_id: id.clone(),
        name: "s".into(),
        ..Default::default()
    };
    let take = || async {
        client.create_snapshot(cut.clone()).await.expect("cut").snapshot.expect("snapshot")
    };
    let (first, second) = (take().await, take().await);
    assert_eq!((first.ready_to_use, second.ready_to_use), (false, true));
    assert_eq!(first.snapshot_id, second.snapshot_id);
    let other = create(&client, "other").await;
    let stolen = v1::CreateSnapshotRequest { source_volume_id: other, ..cut.clone() };
    assert_eq!(code(client.create_snapshot(stolen).await), Code::AlreadyExists);

    use v1::volume_content_source::{SnapshotSource, Type};
    let source = Type::Snapshot(SnapshotSource { snapshot_id: first.snapshot_id.clone() });
    let restore = v1::CreateVolumeRequest {
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(source) }),
        ..create_request("restored", GIB)
    };
    let restored = client.create_volume(restore).await.expect("restored").volume.expect("volume");
    assert!(restored.content_source.is_some());
    let gone = v1::DeleteSnapshotRequest { snapshot_id: first.snapshot_id, ..Default::default() };
    for _ in 0..2 {
        client.delete_snapshot(gone.clone()).await.expect("deleted");
    }
    let list = client.list_snapshots(v1::ListSnapshotsRequest::default()).await.expect("list");
    assert!(list.entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn missing_capabilities_close_their_calls() {
    let driver = Driver::new("fake.test");
    driver.configure(|config| {
        config.controller = ControllerCapabilities::default();
        config.node = NodeCapabilities::default();
    });
    let client = driver.client();
    assert!(client.controller_capabilities().await.expect("set").is_empty());
    assert!(client.node_capabilities().await.expect("set").is_empty());
    let closed = [
        code(client.create_volume(create_request("v", 1)).await),
        code(client.controller_publish_volume(attach("v", "n")).await),
        code(client.list_volumes(v1::ListVolumesRequest::default()).await),
        code(client.get_capacity(v1::GetCapacityRequest::default()).await),
        code(client.node_stage_volume(stage("v", Mode::SingleNodeWriter)).await),
        code(client.group_capabilities().await),
    ];
    assert_eq!(closed, [Code::Unimplemented; 6]);
}

#[tokio::test(start_paused = true)]
async fn faults_strike_before_or_after_the_effect() {
    let driver = Driver::new("fake.test");
    let client = driver
        .client_with(Options { timeout: Some(Duration::from_secs(10)), ..Options::default() });
    driver.script(
        Call::CreateVolume,
        [
            Fault::before(Code::Internal),
            Fault::Hang,
            Fault::Delay(Duration::from_secs(9)),
            Fault::after(Code::Unavailable),
            Fault::HangAfter,
        ],
    );
    let mut seen = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let result = client.create_volume(create_request(name, 1)).await;
        let code = result.map_or_else(|error| error.code(), |_| Code::Ok);
        seen.push((name, code, driver.volume_named(name).is_some()));
    }
    assert_eq!(
        seen,
        [
            ("a", Code::Internal, false),
            ("b", Code::DeadlineExceeded, false),
            ("c", Code::Ok, true),
            ("d", Code::Unavailable, true),
            ("e", Code::DeadlineExceeded, true),
            ("f", Code::Ok, true),
        ]
    );
    driver.always(Call::Probe, Fault::before(Code::FailedPrecondition));
    for _ in 0..2 {
        let probe = client.probe(v1::ProbeRequest {}).await;
        assert_eq!(code(probe), Code::FailedPrecondition);
    }
    driver.clear_faults();
    client.probe(v1::ProbeRequest {}).await.expect("cured");
}

#[tokio::test(start_paused = true)]
async fn calls_are_remembered_without_secrets() {
    let driver = Driver::new("fake.test");
    let client = driver.client();
    let request = v1::CreateVolumeRequest {
        secrets: map(&[("password", "hunter2")]),
        ..create_request("v", GIB)
    };
    client.create_volume(request).await.expect("created");
    driver.script(Call::DeleteVolume, [Fault::before(Code::Internal)]);
    let gone = v1::DeleteVolumeRequest { volume_id: "vol-1".into(), ..Default::default() };
    client.delete_volume(gone).await.expect_err("scripted");
    let calls = driver.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!((calls[0].call, calls[0].node.as_str()), (Call::CreateVolume, "node-1"));
    assert!(calls[0].request.contains(r#""secrets":"***stripped***""#), "{}", calls[0].request);
    assert!(!format!("{calls:?}").contains("hunter2"));
    assert!(matches!(&calls[0].result, Some(Ok(text)) if text.contains("vol-1")));
    let failure = "rpc error: code = Internal desc = scripted failure".to_owned();
    assert_eq!(driver.calls_of(Call::DeleteVolume)[0].result, Some(Err(failure)));
    driver.clear_calls();
    assert!(driver.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_hook_sees_both_sides_of_the_effect_and_may_step_in() {
    let driver = Driver::new("fake.test");
    let client = driver.client();
    let moments = Arc::new(AtomicUsize::new(0));
    let (count, watched) = (moments.clone(), driver.clone());
    driver.hook(move |moment| {
        count.fetch_add(1, Ordering::SeqCst);
        let there = watched.volume_named("v").is_some();
        assert_eq!(there, moment.phase == Phase::After, "{moment:?}");
        match moment.phase {
            Phase::Before => Action::Delay(Duration::from_secs(1)),
            Phase::After => Action::Fail(tonic::Status::aborted("crashed")),
        }
    });
    let crashed = client.create_volume(create_request("v", 1)).await;
    assert_eq!(code(crashed), Code::Aborted);
    assert_eq!(moments.load(Ordering::SeqCst), 2);
    assert!(driver.volume_named("v").is_some());
    driver.clear_hook();
    create_again(&client).await;
}

async fn create_again(client: &Client) {
    client.create_volume(create_request("v", 1)).await.expect("the same volume");
}

#[tokio::test(start_paused = true)]
async fn a_crash_mid_call_is_no_verdict_and_the_client_comes_back() {
    let driver = Driver::new("fake.test");
    let client = driver.client();
    driver.script(Call::CreateVolume, [Fault::HangAfter]);
    let calling = tokio::spawn({
        let client = client.clone();
        async move { client.create_volume(create_request("v", 1)).await }
    });
    while driver.volume_named("v").is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    driver.crash();
    client.connection_lost().await;
    let error = calling.await.expect("joined").expect_err("crashed");
    assert!(!error.is_final(), "{error}");
    assert_eq!(error.code(), Code::Unavailable);

    let refused = client.probe(v1::ProbeRequest {}).await.expect_err("down");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    driver.restart();
    create_again(&client).await;
    driver.sever();
    tokio::time::timeout(Duration::from_secs(5), async {
        let mut losses = client.connection_losses();
        losses.wait_for(|losses| *losses == 2).await.expect("alive");
    })
    .await
    .expect("noticed");
    create_again(&client).await;
    assert_eq!(driver.volumes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nodes_share_the_storage_but_not_their_mounts() {
    let driver = Driver::new("fake.test");
    let other = driver.on_node("node-2", BTreeMap::new());
    let (first, second) = (driver.client(), other.client());
    let id = create(&first, "v").await;
    let mode = Mode::MultiNodeMultiWriter;
    first.node_stage_volume(stage(&id, mode)).await.expect("staged");
    assert_eq!(driver.state().used_on(&id), ["node-1"]);
    second.node_stage_volume(stage(&id, mode)).await.expect("staged");
    assert_eq!(driver.state().used_on(&id), ["node-1", "node-2"]);
    let info = second.node_get_info(v1::NodeGetInfoRequest {}).await.expect("info");
    assert_eq!((info.node_id.as_str(), info.accessible_topology), ("node-2", None));
}

#[tokio::test]
async fn target_paths_can_be_real() {
    let dir = tempfile::tempdir().expect("directory");
    let target = dir.path().join("mount").display().to_string();
    let driver = Driver::new("fake.test");
    driver.configure(|config| config.touch_paths = true);
    let client = driver.client();
    let id = create(&client, "v").await;
    let mode = Mode::SingleNodeWriter;
    client.node_stage_volume(stage(&id, mode)).await.expect("staged");
    for _ in 0..2 {
        client.node_publish_volume(publish(&id, &target, mode)).await.expect("published");
    }
    assert!(std::path::Path::new(&target).is_dir());
    for _ in 0..2 {
        client.node_unpublish_volume(unpublish(&id, &target)).await.expect("unpublished");
    }
    assert!(!std::path::Path::new(&target).exists());
}
