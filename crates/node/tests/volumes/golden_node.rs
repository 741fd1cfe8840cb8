//! Recorded scenarios about the node's own life: G18, G20, G23, and what lies on disk in G01 to G03.

use std::collections::BTreeMap;

use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Node;
use longshore_core::names::{attachment_name, inline_handle};
use longshore_csi::Call;
use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::recorded::{
    Names, attach_and_run, context, detach, heard_of, pod_of, recorded, unstaged, volume,
    volume_named,
};
use crate::rig::proxy::tree;
use crate::rig::{DRIVER, Rig, mounts_below};
use crate::{STAY, block, quick};

fn read(path: impl AsRef<std::path::Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// One line, keys in alphabetical order.
fn published(rig: &Rig, name: &str) -> String {
    let handle = rig.handle(name);
    let va = attachment_name(&handle, &DRIVER.into(), &"n1".into());
    format!(
        "{{\"attachmentID\":\"{va}\",\"driverName\":\"{DRIVER}\",\"nodeName\":\"n1\",\"specVolID\":\"pv-{name}\",\
         \"volumeHandle\":\"{handle}\",\"volumeLifecycleMode\":\"Persistent\"}}"
    )
}

#[tokio::test]
async fn g01_g03_metadata_and_two_pods() {
    if !need("g01_g03_metadata_and_two_pods", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let a = rig.pod("a", STAY, quick()).await;
    attach_and_run(&rig, "a").await;
    let b = rig.pod("b", STAY, quick()).await;
    rig.wait_phase("b", "Running").await;
    let handle = rig.handle("data");
    let staged = format!("{{\"driverName\":\"{DRIVER}\",\"volumeHandle\":\"{handle}\"}}");
    assert_eq!(read(rig.staged_dirs()[0].join("vol_data.json")), staged);
    for uid in [&a, &b] {
        let dir = rig.publish_dir(uid, "data");
        assert_eq!(read(dir.join("vol_data.json")), published(&rig, "data"));
    }
    // The first pod's directory goes with it; what is staged stays for the second.
    rig.end("a").await;
    assert_eq!(rig.staged_dirs().len(), 1);
    assert!(rig.publish_dir(&b, "data").exists());
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    assert!(rig.heard.of("NodeUnstageVolume").is_empty());
    rig.end("b").await;
    unstaged(&rig).await;
    assert!(rig.root().join("plugins/kubernetes.io/csi").join(DRIVER).exists(), "stays for ever");
    assert_eq!(rig.event_count("SuccessfulMountVolume", "").await, 0);
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g02_metadata_of_a_device() {
    if !need("g02_metadata_of_a_device", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"volumeMode": "Block"})).await;
    let uid = rig.create_pod(block::pod("p")).await;
    rig.wait_phase("p", "Running").await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    let expected = published(&rig, "data").replace(",\"volumeLifecycleMode\":\"Persistent\"", "");
    assert_eq!(read(root.join("pv-data/data/vol_data.json")), expected);
    for (place, path) in [
        ("globalMapPath", root.join("pv-data/dev")),
        ("volumeMapPath", rig.root().join(format!("pods/{uid}/volumeDevices/kubernetes.io~csi"))),
    ] {
        let text = format!(
            "MapVolume.MapPodDevice succeeded for volume \"pv-data\" {place} \"{}\"",
            path.display()
        );
        rig.until("an event", async || rig.has_event("SuccessfulMountVolume", &text).await).await;
    }
    rig.end("p").await;
    rig.until("gone", async || !root.join("pv-data").exists()).await;
    let left: Vec<String> =
        tree(&rig.root()).into_iter().filter(|line| line.contains("volumeDevices/")).collect();
    let kept = ["publish", "staging"]
        .map(|name| format!("plugins/kubernetes.io/csi/volumeDevices/{name} dir 0750"));
    assert_eq!(left, kept);
    rig.stop(true).await;
}

fn inline_pod(name: &str) -> Value {
    let mut pod = pod_of(name, &[], STAY);
    pod["spec"]["volumes"] = json!([{"name": "v", "csi": {"driver": DRIVER, "fsType": "ext4"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    pod
}

#[tokio::test]
async fn g18_killed_with_all_kinds_of_volumes() {
    if !need("g18_killed_with_all_kinds_of_volumes", &[Need::Root]) {
        return;
    }
    let modes = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    let mut rig = recorded(true, modes).await;
    volume(&rig, json!({"volumeMode": "Block"})).await;
    volume_named(&rig, "files", json!({})).await;
    rig.create_pod(block::pod("device")).await;
    rig.create_pod(pod_of("files", &["files"], STAY)).await;
    let inline = rig.create_pod(inline_pod("inline")).await;
    let mut both = [rig.unique("data"), rig.unique("files")];
    both.sort();
    rig.until("in use", async || rig.in_use().await == both).await;
    rig.attach("data").await;
    rig.attach("files").await;
    let ids =
        [rig.handle("data"), rig.handle("files"), inline_handle(&inline.as_str().into(), "v")];
    for name in ["device", "files", "inline"] {
        rig.wait_phase(name, "Running").await;
    }
    let first: BTreeMap<_, _> = ids.iter().map(|id| (id, heard_of(&rig, id))).collect();
    let before = tree(&rig.root());
    rig.kill_agent().await;
    rig.start_agent().await;
    assert_eq!(rig.in_use().await, both, "never written anew");
    // The same calls with the same contents, once: stage and publish, or publish for the inline one.
    rig.until("told again", async || rig.heard.names().len() >= 5).await;
    for (id, calls) in first {
        assert_eq!(heard_of(&rig, id), calls);
    }
    assert_eq!(tree(&rig.root()), before);
    rig.until("said again", async || rig.event_count("SuccessfulMountVolume", "").await == 4).await;
    assert_eq!(rig.metric("reconstruct_volume_operations_total "), 3.0);
    assert_eq!(rig.metric("reconstruct_volume_operations_errors_total "), 0.0);
    assert_eq!(rig.metric("force_cleaned_failed_volume_operations_total "), 0.0);
    for name in ["device", "files", "inline"] {
        let pod = rig.wait_phase(name, "Running").await;
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{name}");
        rig.heard.clear();
        rig.end(name).await;
        let expected: &[&str] = match name {
            "inline" => &["NodeUnpublishVolume"],
            _ => &["NodeUnpublishVolume", "NodeUnstageVolume"],
        };
        rig.until(name, async || rig.heard.names() == expected).await;
    }
    rig.until("released", async || rig.in_use().await.is_empty()).await;
    rig.stop(true).await;
}

async fn names(rig: &Rig) -> Vec<String> {
    let drivers = rig.csi_node().await["spec"]["drivers"].as_array().cloned().unwrap_or_default();
    drivers.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

async fn node(rig: &Rig) -> Value {
    rig.api.get_raw::<Node>(&ObjectKey::cluster("n1")).await.unwrap().unwrap()
}

async fn node_ids(rig: &Rig) -> String {
    let node = node(rig).await;
    let ids = &node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"];
    ids.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn g20_registration_and_registration_again() {
    if !need("g20_registration_and_registration_again", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(false, json!({})).await;
    rig.kill_agent().await;
    let key = "topology.hostpath.csi/node".to_owned();
    let segments = BTreeMap::from([(key.clone(), "n1".to_owned())]);
    rig.driver.with_pools([(segments.clone(), None)]);
    rig.driver.on_node("n1", segments);
    rig.start_agent().await;
    volume(&rig, json!({})).await;
    rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let calls = rig.heard.names();
    let told = |name: &str| rig.notes.lock().iter().filter(|note| note.0 == name && note.1).count();

    // Appended, not sorted; the ids are sorted.
    let (stop, _) = rig.introduce_mortal("alpha.csi.test-reg.sock", "alpha.csi.test", "CSIPlugin");
    rig.until("told", async || told("alpha.csi.test") == 1).await;
    assert_eq!(names(&rig).await, [DRIVER, "alpha.csi.test"], "written before it was told");
    assert_eq!(node_ids(&rig).await, format!("{{\"alpha.csi.test\":\"n1\",\"{DRIVER}\":\"n1\"}}"));
    assert_eq!(node(&rig).await["metadata"]["labels"][&key], "n1");
    let csi_node = rig.csi_node().await;
    assert_eq!(csi_node["spec"]["drivers"][1]["nodeID"], "n1");
    assert_eq!(csi_node["spec"]["drivers"][1]["topologyKeys"], json!([key]));
    assert!(csi_node["spec"]["drivers"][1]["allocatable"].is_null());
    let owner = &csi_node["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], node(&rig).await["metadata"]["uid"]);
    let socket = rig.root().join("plugins_registry/alpha.csi.test-reg.sock");
    let counted = |state: &str| {
        format!(
            "plugin_manager_total_plugins{{socket_path=\"{}\",state=\"{state}\"}}",
            socket.display()
        )
    };
    for state in ["actual_state_of_world", "desired_state_of_world"] {
        rig.until(state, async || rig.metric(&counted(state)) == 1.0).await;
    }

    // Ended by TERM: it removes its socket.
    stop.cancel();
    rig.until("gone", async || names(&rig).await == [DRIVER]).await;
    rig.until("its id too", async || node_ids(&rig).await == format!("{{\"{DRIVER}\":\"n1\"}}"))
        .await;
    assert_eq!(node(&rig).await["metadata"]["labels"][&key], "n1", "labels stay");
    assert_eq!(rig.metric(&counted("desired_state_of_world")), 0.0);

    // Back again, killed: the socket stays, and so does the driver.
    let (_, task) = rig.introduce_mortal("alpha.csi.test-reg.sock", "alpha.csi.test", "CSIPlugin");
    rig.until("told", async || told("alpha.csi.test") == 2).await;
    task.abort();
    let _ = task.await;
    assert!(socket.exists());
    let version = rig.csi_node().await["metadata"]["resourceVersion"].clone();
    // A second driver comes and goes meanwhile, so that the agent surely had a look.
    let (other, _) = rig.introduce_mortal("beta-reg.sock", "beta.csi.test", "CSIPlugin");
    rig.until("told", async || told("beta.csi.test") == 1).await;
    assert_eq!(names(&rig).await, [DRIVER, "alpha.csi.test", "beta.csi.test"]);
    assert_ne!(rig.csi_node().await["metadata"]["resourceVersion"], version);

    // On the same path again: off and on, which moves it to the end.
    let (_again, _) =
        rig.introduce_mortal("alpha.csi.test-reg.sock", "alpha.csi.test", "CSIPlugin");
    rig.until("told", async || told("alpha.csi.test") == 3).await;
    assert_eq!(names(&rig).await, [DRIVER, "beta.csi.test", "alpha.csi.test"]);
    other.cancel();
    rig.until("gone", async || names(&rig).await == [DRIVER, "alpha.csi.test"]).await;
    assert_eq!(rig.heard.names(), calls, "running pods are not touched");
    assert!(rig.driver.calls_of(Call::NodeGetInfo).len() >= 4);
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g23_a_directory_used_as_a_device() {
    if !need("g23_a_directory_used_as_a_device", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    rig.create_pod(block::pod("p")).await;
    rig.attach("data").await;
    let text = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to \
        process volumes=[v]: volume v has volumeMode Filesystem, but is specified in volumeDevices";
    rig.until("an event", async || rig.has_event("FailedMount", text).await).await;
    // Attached as it is, it is not in use and nobody stages it.
    assert!(rig.in_use().await.is_empty());
    assert!(rig.heard.all().is_empty());
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g03_g10_one_pod_with_two_volumes_and_a_part() {
    if !need("g03_g10_one_pod_with_two_volumes_and_a_part", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    for name in ["one", "two"] {
        volume_named(&rig, name, json!({})).await;
    }
    let mut pod = pod_of("p", &["one", "two"], STAY);
    pod["spec"]["containers"][0]["volumeMounts"][1]["subPath"] = "a/b".into();
    let uid = rig.create_pod(pod).await;
    rig.wait_phase("p", "Running").await;
    // The index is that of the container's mount.
    let part = rig.root().join(format!("pods/{uid}/volume-subpaths/pv-two/main/1"));
    assert_eq!(mounts_below(&part), 1);
    assert!(!rig.root().join(format!("pods/{uid}/volume-subpaths/pv-one")).exists());
    let modes: Vec<String> =
        tree(&rig.root()).into_iter().filter(|line| line.contains("volume-subpaths")).collect();
    for dir in ["volume-subpaths", "volume-subpaths/pv-two", "volume-subpaths/pv-two/main"] {
        assert!(modes.contains(&format!("pods/{uid}/{dir} dir 0750")), "{dir} in {modes:?}");
    }
    rig.end("p").await;
    unstaged(&rig).await;
    for claim in ["one", "two"] {
        let names = Names { claim, ..Names::new(&rig, false) };
        let expected = names.life(&uid);
        assert_eq!(heard_of(&rig, &rig.handle(claim)), expected);
    }
    assert_eq!(rig.heard.of("NodeStageVolume")[0]["volume_context"], context());
    rig.stop(true).await;
}
