//! The recorded scenarios of a real kubelet, played here: the driver hears the same calls with the same
//! contents, and finds the same directories. Equal neighbours are collapsed, as in the recording.

use longshore_core::names::{attachment_name, inline_handle, sha256_hex};
use longshore_csi::Call;
use longshore_csi::capabilities::NodeCapability;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use serde_json::json;
use tonic::Code;

use crate::recorded::{
    Names, attach_and_run, context, detach, heard, pod_info, recorded, secret, unstaged, volume,
};
use crate::rig::{DRIVER, Rig};
use crate::{STAY, block, grow, quick};

#[tokio::test]
async fn g01_g04_a_whole_life_twice() {
    if !need("g01_g04_a_whole_life_twice", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let names = Names::new(&rig, true);
    for _ in 0..2 {
        rig.heard.clear();
        let uid = rig.pod("p", STAY, quick()).await;
        rig.until("in use", async || rig.in_use().await == [rig.unique("data")]).await;
        rig.attach("data").await;
        rig.wait_phase("p", "Running").await;
        rig.end("p").await;
        unstaged(&rig).await;
        let expected = names.life(&uid);
        assert_eq!(heard(&rig), expected);
        tree_of_g01(&rig, &uid);
        detach(&rig).await;
    }
    rig.stop(true).await;
}

fn tree_of_g01(rig: &Rig, uid: &str) {
    let calls = rig.heard.all();
    let staged =
        format!("plugins/kubernetes.io/csi/{DRIVER}/{}", sha256_hex(&[&rig.handle("data")]));
    let published = format!("pods/{uid}/volumes/kubernetes.io~csi/pv-data");
    let has = |call: usize, line: String| {
        let tree = &calls[call].tree;
        assert!(tree.contains(&line), "{line} before call {call} in {tree:#?}");
    };
    for call in 0..4 {
        has(call, format!("plugins/kubernetes.io/csi/{DRIVER} dir 0750"));
        has(call, format!("{staged} dir 0750"));
        has(call, format!("{staged}/globalmount dir 0750"));
        has(call, format!("{staged}/vol_data.json file 0644"));
    }
    has(1, format!("{published} dir 0750"));
    has(1, format!("{published}/vol_data.json file 0644"));
    let below =
        |call: usize, part: &str| calls[call].tree.iter().any(|line| line.starts_with(part));
    assert!(!below(1, &format!("{published}/mount")), "the driver makes it");
    assert!(!below(0, &published), "nothing of the pod's before staging");
    assert!(!below(3, &published), "nothing of the pod's when unstaging");
}

#[tokio::test]
async fn g02_a_device() {
    if !need("g02_a_device", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({"volumeMode": "Block"})).await;
    let uid = rig.create_pod(block::pod("p")).await;
    attach_and_run(&rig, "p").await;
    rig.end("p").await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    rig.until("all gone", async || !root.join("pv-data").exists()).await;
    let (staging, target) = (root.join("staging/pv-data"), root.join("publish/pv-data").join(&uid));
    let common = json!({"volume_id": rig.handle("data"), "staging": staging, "volume_context": context(),
        "publish_context": {"golden/attach": "slot-7"},
        "capability": {"block": true, "mode": "SINGLE_NODE_MULTI_WRITER"}});
    let mut publish = common.clone();
    publish["target"] = json!(target);
    let id = rig.handle("data");
    let expected = [
        ("NodeStageVolume", common),
        ("NodePublishVolume", publish),
        ("NodeUnpublishVolume", json!({"volume_id": id, "target": target})),
        ("NodeUnstageVolume", json!({"volume_id": id, "staging": staging})),
    ];
    assert_eq!(heard(&rig), expected);
    let calls = rig.heard.all();
    let block = "plugins/kubernetes.io/csi/volumeDevices";
    for (call, line) in [
        (0, format!("{block}/pv-data/data/vol_data.json file 0644")),
        (0, format!("{block}/staging/pv-data dir 0750")),
        (1, format!("{block}/publish/pv-data dir 0750")),
    ] {
        assert!(calls[call].tree.contains(&line), "{line} in {:#?}", calls[call].tree);
    }
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g03_two_pods_one_claim() {
    if !need("g03_two_pods_one_claim", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let a = rig.pod("a", STAY, quick()).await;
    attach_and_run(&rig, "a").await;
    let b = rig.pod("b", STAY, quick()).await;
    rig.wait_phase("b", "Running").await;
    rig.end("a").await;
    rig.end("b").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.shared_life(&a, &b));
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g06_inline() {
    if !need("g06_inline", &[Need::Root]) {
        return;
    }
    let extra =
        json!({"podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    let rig = recorded(false, extra).await;
    secret(&rig).await;
    for (name, read_only) in [("p", false), ("q", true)] {
        rig.heard.clear();
        let uid = rig
            .create_pod(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "v", "csi": {"driver": DRIVER, "fsType": "ext4", "readOnly": read_only,
                    "volumeAttributes": {"foo": "bar"}, "nodePublishSecretRef": {"name": "sec"}}}],
                "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", STAY],
                    "volumeMounts": [{"name": "v", "mountPath": "/data"}]}],
            }}))
            .await;
        rig.wait_phase(name, "Running").await;
        let dir = rig.root().join(format!("pods/{uid}/volumes/kubernetes.io~csi/v"));
        let handle = inline_handle(&uid.as_str().into(), "v");
        let data = std::fs::read_to_string(dir.join("vol_data.json")).unwrap();
        let expected = json!({"attachmentID": attachment_name(&handle, &DRIVER.into(), &"n1".into()), "driverName": DRIVER,
            "nodeName": "n1", "specVolID": "v", "volumeHandle": handle, "volumeLifecycleMode": "Ephemeral"});
        assert_eq!(data, expected.to_string());
        rig.end(name).await;
        let mut context = pod_info(name, &uid, true);
        context["foo"] = "bar".into();
        let target = dir.join("mount");
        let mut publish = json!({"volume_id": handle, "target": target, "volume_context": context,
            "secrets": {"user": "u", "pass": "p"},
            "capability": {"mount": {"fs_type": "ext4"}, "mode": "SINGLE_NODE_MULTI_WRITER"}});
        if read_only {
            publish["readonly"] = true.into();
        }
        let unpublish = json!({"volume_id": handle, "target": target});
        assert_eq!(
            heard(&rig),
            [("NodePublishVolume", publish), ("NodeUnpublishVolume", unpublish)]
        );
    }
    rig.stop(true).await;
}

#[tokio::test]
async fn g07_without_attach_and_with_pod_info() {
    if !need("g07_without_attach_and_with_pod_info", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({"podInfoOnMount": true})).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    assert!(rig.in_use().await.is_empty());
    let data =
        std::fs::read_to_string(rig.publish_dir(&uid, "data").join("vol_data.json")).unwrap();
    assert!(
        data.contains(&attachment_name(&rig.handle("data"), &DRIVER.into(), &"n1".into())),
        "{data}"
    );
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names { pod_info: pod_info("p", &uid, false), ..Names::new(&rig, false) };
    assert_eq!(heard(&rig), names.life(&uid));
    rig.stop(true).await;
}

#[tokio::test]
async fn g08_a_driver_that_does_not_stage() {
    if !need("g08_a_driver_that_does_not_stage", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    rig.driver.configure(|config| config.node.remove(NodeCapability::StageUnstageVolume));
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    rig.end("p").await;
    let names = Names::new(&rig, false);
    let mut publish = names.publish(&uid);
    publish.1.as_object_mut().unwrap().remove("staging");
    assert_eq!(heard(&rig), [publish, names.unpublish(&uid)]);
    let tree = &rig.heard.all()[0].tree;
    assert!(tree.iter().any(|line| line.ends_with("/globalmount dir 0750")), "{tree:#?}");
    let staged = format!("{}/vol_data.json", sha256_hex(&[&rig.handle("data")]));
    assert!(!tree.iter().any(|line| line.contains(&staged)), "{tree:#?}");
    // The recording's empty directories are a weakness: here they go.
    unstaged(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g09_g13_options_secrets_and_growth() {
    if !need("g09_g13_options_secrets_and_growth", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    secret(&rig).await;
    let reference = json!({"name": "sec", "namespace": "default"});
    volume(
        &rig,
        json!({"request": "2Mi", "mountOptions": ["noatime", "discard"], "nodeStageSecretRef": reference,
            "nodePublishSecretRef": reference, "nodeExpandSecretRef": reference}),
    )
    .await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    grow::resize(&rig).await;
    rig.until("grown", async || !rig.heard.of("NodeExpandVolume").is_empty()).await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names {
        flags: json!(["noatime", "discard"]),
        secrets: json!({"user": "u", "pass": "p"}),
        ..Names::new(&rig, false)
    };
    let expand = json!({"volume_id": rig.handle("data"), "path": names.target(&uid),
        "staging": names.staging(), "required_bytes": 2 << 20, "capability": names.capability(),
        "secrets": names.secrets});
    let expected = [
        names.stage(),
        names.publish(&uid),
        ("NodeExpandVolume", expand),
        names.unpublish(&uid),
        names.unstage(),
    ];
    assert_eq!(heard(&rig), expected);
    rig.stop(true).await;
}

#[tokio::test]
async fn g10_a_part_of_a_volume() {
    if !need("g10_a_part_of_a_volume", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    let containers = json!([{"name": "main", "image": "host", "command": ["sh", "-c", STAY],
        "volumeMounts": [{"name": "v", "mountPath": "/data", "subPath": "a/b"}]}]);
    let mut extra = quick();
    extra["containers"] = containers;
    let uid = rig.pod("p", "", extra).await;
    rig.wait_phase("p", "Running").await;
    let part = format!("pods/{uid}/volume-subpaths/pv-data/main/0");
    assert_eq!(crate::rig::mounts_below(rig.root().join(&part)), 1);
    let inside = rig.publish_dir(&uid, "data").join("mount/a/b");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(inside.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), names.life(&uid));
    let tree = &rig.heard.all()[2].tree;
    assert!(!tree.iter().any(|line| line.contains("volume-subpaths/pv-data")), "{tree:#?}");
    rig.stop(true).await;
}

/// Fails the same call three times and then not; whether `dir` was there after each failure.
async fn fails(call: Call, code: Code, kept: bool) {
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    rig.driver.script(call, std::iter::repeat_n(Fault::before(code), 3));
    let uid = rig.pod("p", STAY, quick()).await;
    let dir = match call {
        Call::NodeStageVolume => {
            let sha = sha256_hex(&[&rig.handle("data")]);
            rig.root().join("plugins/kubernetes.io/csi").join(DRIVER).join(sha)
        }
        _ => rig.publish_dir(&uid, "data"),
    };
    let name = format!("{call:?}");
    rig.until("refused", async || !rig.heard.of(&name).is_empty()).await;
    if kept {
        assert!(dir.join("vol_data.json").exists(), "{call:?} {code:?}");
    } else {
        rig.until("removed", async || !dir.exists()).await;
    }
    rig.wait_phase("p", "Running").await;
    let step = if call == Call::NodeStageVolume { "MountDevice" } else { "SetUp" };
    let text = format!(
        "MountVolume.{step} failed for volume \"pv-data\" : rpc error: code = {code:?} desc = scripted failure"
    );
    rig.until("all three are said", async || rig.event_count("FailedMount", &text).await == 3)
        .await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    let expected = names.life(&uid);
    assert_eq!(heard(&rig), expected, "{call:?} {code:?}");
    assert_eq!(rig.heard.of(&name).len(), 4);
    let repeated = rig.heard.all().into_iter().filter(|one| one.name == name).nth(1).unwrap();
    assert!(repeated.tree.iter().any(|line| line.contains("vol_data.json")));
    rig.stop(true).await;
}

#[tokio::test]
async fn g14_g15_g16_calls_that_fail() {
    if !need("g14_g15_g16_calls_that_fail", &[Need::Root]) {
        return;
    }
    tokio::join!(
        fails(Call::NodeStageVolume, Code::Internal, false),
        fails(Call::NodeStageVolume, Code::Aborted, true),
        fails(Call::NodePublishVolume, Code::Internal, false),
        fails(Call::NodePublishVolume, Code::DeadlineExceeded, true),
    );
}

#[tokio::test]
async fn g18_a_killed_node_manager() {
    if !need("g18_a_killed_node_manager", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(false, json!({})).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let before = crate::rig::proxy::tree(&rig.root());
    rig.kill_agent().await;
    rig.start_agent().await;
    rig.until("told again", async || rig.heard.names().len() >= 2).await;
    let names = Names::new(&rig, false);
    assert_eq!(heard(&rig), [names.stage(), names.publish(&uid)]);
    assert_eq!(crate::rig::proxy::tree(&rig.root()), before);
    rig.end("p").await;
    unstaged(&rig).await;
    assert_eq!(heard(&rig)[2..], [names.unpublish(&uid), names.unstage()]);
    rig.stop(true).await;
}

#[tokio::test]
async fn g19_killed_while_staging() {
    if !need("g19_killed_while_staging", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    rig.driver.script(Call::NodeStageVolume, [Fault::HangAfter]);
    let uid = rig.pod("p", STAY, quick()).await;
    rig.until("in use", async || rig.in_use().await == [rig.unique("data")]).await;
    rig.attach("data").await;
    rig.until("staging", async || !rig.heard.of("NodeStageVolume").is_empty()).await;
    let first = heard(&rig);
    rig.kill_agent().await;
    let tree = crate::rig::proxy::tree(&rig.root());
    assert!(tree.iter().any(|line| line.ends_with("/globalmount dir 0750")), "{tree:#?}");
    rig.start_agent().await;
    // The recording's weakness is not here: the volume counts as in use all the time.
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    rig.wait_phase("p", "Running").await;
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    let names = Names::new(&rig, true);
    assert_eq!(first, [names.stage()]);
    assert_eq!(heard(&rig), [names.stage(), names.publish(&uid)]);
    rig.end("p").await;
    unstaged(&rig).await;
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g23_what_the_node_refuses() {
    if !need("g23_what_the_node_refuses", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"volumeMode": "Block"})).await;
    rig.pod("p", "true", quick()).await;
    let text = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to \
        process volumes=[v]: volume v has volumeMode Block, but is specified in volumeMounts";
    rig.until("an event", async || rig.has_event("FailedMount", text).await).await;
    // A claim that no container uses is no trouble and is not mounted.
    let mut extra = quick();
    extra["containers"] = json!([{"name": "main", "image": "host", "command": ["sh", "-c", STAY]}]);
    rig.pod("q", "", extra).await;
    rig.wait_phase("q", "Running").await;
    assert!(rig.heard.all().is_empty());
    assert!(rig.in_use().await.is_empty());
    rig.stop(true).await;
}
