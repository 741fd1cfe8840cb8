//! The whole agent over a real API server in memory, a driver on a socket and real processes.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod rig;

use longshore_cluster::Patch;
use longshore_core::model::kinds::{Node, Pod};
use longshore_core::model::{ObjectKey, PodPhase};
use longshore_csi::Call;
use longshore_csi::capabilities::NodeCapability;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use rig::{DRIVER, Rig, calls};
use serde_json::json;

#[tokio::test]
async fn a_pod_runs_with_its_volume_and_leaves_nothing() {
    if !need("a_pod_runs_with_its_volume_and_leaves_nothing", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    let uid = rig
        .pod(
            "p",
            "echo kept > /data/file; cat /data/file; rm /data/file",
            json!({"restartPolicy": "Never", "securityContext": {"fsGroup": 3000}}),
        )
        .await;
    let pod = rig.wait_phase("p", "Succeeded").await;
    let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["exitCode"], &state["reason"]), (&json!(0), &json!("Completed")));
    assert_eq!(rig.log(&uid), "kept\n");
    // case: node/N3
    assert_eq!(calls(&rig.driver)[..2], ["NodeStageVolume", "NodePublishVolume"]);
    // case: node/N8 (a driver without the capability is not told the group)
    assert!(!rig.driver.calls_of(Call::NodeStageVolume)[0].request.contains("3000"));
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.until("unstaged", async || rig.staged_dirs().is_empty()).await;
    // case: node/N26
    let expected =
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(calls(&rig.driver), expected);
    // A pod that is over is deleted at once; its directory follows.
    rig.until("pod directory gone", async || !rig.root().join("pods").join(&uid).exists()).await;
    assert_eq!(rig.driver.violations(), Vec::<String>::new());
    rig.stop(true).await;
}

#[tokio::test]
async fn registration_fills_node_and_csi_node() {
    if !need("registration_fills_node_and_csi_node", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    // case: node/N41
    let node = rig.api.get_raw::<Node>(&ObjectKey::cluster("n1")).await.unwrap().unwrap();
    let ids = node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str().unwrap();
    assert_eq!(ids, format!("{{\"{DRIVER}\":\"n1\"}}"));
    let csi = rig.csi_node().await;
    assert_eq!(csi["spec"]["drivers"][0]["name"], DRIVER);
    assert_eq!(csi["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    rig.stop(true).await;
}

#[tokio::test]
async fn an_attachable_volume_waits_for_the_node_object() {
    if !need("an_attachable_volume_waits_for_the_node_object", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(true).await;
    rig.volume("data").await;
    rig.pod("p", "sleep 1000", json!({"terminationGracePeriodSeconds": 0})).await;
    let unique = rig.unique("data");
    rig.until("volumesInUse lists it", async || rig.in_use().await == [unique.clone()]).await;
    assert_eq!(calls(&rig.driver), Vec::<String>::new());
    rig.attach("data").await;
    rig.wait_phase("p", "Running").await;
    let stage = rig.driver.calls_of(Call::NodeStageVolume);
    assert_eq!(stage.len(), 1);
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.until("volumesInUse is empty", async || rig.in_use().await.is_empty()).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn an_uncertain_stage_is_unstaged_when_the_pod_goes() {
    if !need("an_uncertain_stage_is_unstaged_when_the_pod_goes", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    rig.driver.always(Call::NodeStageVolume, Fault::after(tonic::Code::DeadlineExceeded));
    rig.pod("p", "true", json!({"terminationGracePeriodSeconds": 0})).await;
    rig.until("a FailedMount event", async || {
        rig.has_event("FailedMount", "MountVolume.MountDevice failed").await
    })
    .await;
    assert!(!rig.staged_dirs().is_empty(), "an uncertain stage keeps its files");
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    // case: node/N55
    rig.until("one NodeUnstage", async || rig.driver.calls_of(Call::NodeUnstageVolume).len() == 1)
        .await;
    rig.until("nothing staged", async || rig.staged_dirs().is_empty()).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_final_publish_error_removes_the_files_and_is_retried() {
    if !need("a_final_publish_error_removes_the_files_and_is_retried", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    rig.driver.script(Call::NodePublishVolume, [Fault::before(tonic::Code::Internal)]);
    let uid = rig.pod("p", "sleep 1000", json!({"terminationGracePeriodSeconds": 0})).await;
    rig.until("a FailedMount event", async || {
        rig.has_event("FailedMount", "MountVolume.SetUp failed").await
    })
    .await;
    rig.wait_phase("p", "Running").await;
    // Staged once, published twice.
    let names = calls(&rig.driver);
    assert_eq!(names, ["NodeStageVolume", "NodePublishVolume", "NodePublishVolume"]);
    assert!(rig.publish_dir(&uid, "data").join("vol_data.json").exists());
    rig.stop(true).await;
}

#[tokio::test]
async fn a_restarted_agent_adopts_running_pods_and_their_volumes() {
    if !need("a_restarted_agent_adopts_running_pods_and_their_volumes", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.volume("data").await;
    let uid = rig.pod("p", "sleep 1000", json!({"terminationGracePeriodSeconds": 0})).await;
    rig.wait_phase("p", "Running").await;
    let before = rig.pids(&uid);
    rig.kill_agent().await;
    assert_eq!(rig.pids(&uid), before, "the container outlives the agent");
    rig.driver.clear_calls();
    rig.start_agent().await;
    // Both are sent again, because nobody knows what the old agent had in flight.
    rig.until("stage and publish again", async || calls(&rig.driver).len() >= 2).await;
    assert_eq!(calls(&rig.driver), ["NodeStageVolume", "NodePublishVolume"]);
    assert_eq!(rig.pids(&uid), before);
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.until("unstaged", async || rig.staged_dirs().is_empty()).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_volume_that_was_only_staged_is_unstaged_after_a_restart() {
    if !need("a_volume_that_was_only_staged_is_unstaged_after_a_restart", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.volume("data").await;
    rig.driver.script(Call::NodePublishVolume, [Fault::Hang]);
    rig.pod("p", "true", json!({"terminationGracePeriodSeconds": 0})).await;
    rig.until("publish in flight", async || calls(&rig.driver).len() == 2).await;
    rig.kill_agent().await;
    rig.force_delete_pod("p").await;
    rig.driver.clear_faults();
    rig.start_agent().await;
    rig.until("unstaged", async || rig.staged_dirs().is_empty()).await;
    assert_eq!(rig.driver.calls_of(Call::NodeUnstageVolume).len(), 1);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_foreign_image_is_refused_with_an_event() {
    if !need("a_foreign_image_is_refused_with_an_event", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.create_pod(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "busybox", "command": ["true"]}],
    }}))
    .await;
    rig.until("an event", async || rig.has_event("Failed", "image \"busybox\" is not run").await)
        .await;
    let pod = rig.api.get::<Pod>(&ObjectKey::new("default", "p")).await.unwrap().unwrap();
    assert_eq!(pod.status.phase, PodPhase::Pending);
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn pod_fails_when_its_active_deadline_is_over_and_keeps_its_grace_period() {
    if !need("active_deadline", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    let script = "trap 'echo asked; exit 7' TERM; echo on; while :; do sleep 0.05; done";
    let uid = rig
        .pod("p", script, json!({"restartPolicy": "OnFailure", "activeDeadlineSeconds": 2}))
        .await;
    let pod = rig.wait_phase("p", "Failed").await;
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
    let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["exitCode"], 7, "{pod}");
    assert_eq!(rig.log(&uid), "on\nasked\n");
    let text = "active on the node longer than the specified deadline";
    rig.until("an event", async || rig.has_event("DeadlineExceeded", text).await).await;
    rig.until("unstaged", async || rig.staged_dirs().is_empty()).await;
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn pod_is_ready_when_its_readiness_gates_are_open() {
    if !need("readiness_gates", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let key = ObjectKey::new("default", "p");
    rig.create_pod(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "readinessGates": [{"conditionType": "example.com/open"}],
        "containers": [{"name": "c", "image": "host", "command": ["sleep", "1000"]}],
    }}))
    .await;
    let condition = async |kind: &str| {
        let pod = rig.api.get_raw::<Pod>(&key).await.unwrap().unwrap();
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["type"] == kind).unwrap_or_default()
    };
    rig.until("containers ready", async || condition("ContainersReady").await["status"] == "True")
        .await;
    let ready = condition("Ready").await;
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("ReadinessGatesNotReady"))
    );
    let why = "corresponding condition of pod readiness gate \"example.com/open\" does not exist.";
    assert_eq!(ready["message"], why);
    for (status, then) in [("False", "False"), ("True", "True")] {
        let open =
            json!({"status": {"conditions": [{"type": "example.com/open", "status": status}]}});
        rig.api.patch_status::<Pod>(&key, Patch::Strategic(&open)).await.unwrap();
        rig.until("the gate was seen", async || {
            let ready = condition("Ready").await;
            ready["status"] == then && (then == "True" || ready["message"] != why)
        })
        .await;
        assert_eq!(condition("example.com/open").await["status"], status, "kept");
    }
    rig.end("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn init_containers_config_maps_and_restarts() {
    if !need("init_containers_config_maps_and_restarts", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.config_map("settings", json!({"color": "blue"})).await;
    let uid = rig
        .create_pod(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 0, "restartPolicy": "OnFailure",
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "settings", "configMap": {"name": "settings"}}],
            "initContainers": [{"name": "i", "image": "host", "command": ["sh", "-c", "echo made by init > /scratch/f"],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
            "containers": [{"name": "main", "image": "host",
                "command": ["sh", "-c", "cat /scratch/f /settings/color; echo; echo $WHO; test -e /scratch/second || { touch /scratch/second; exit 3; }"],
                "env": [{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "settings", "mountPath": "/settings"}]}],
        }}))
        .await;
    let pod = rig.wait_phase("p", "Succeeded").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(rig.log(&uid), "made by init\nblue\np\n");
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn requests_carry_options_group_attributes_and_pod_info() {
    if !need("requests_carry_options_group_attributes_and_pod_info", &[Need::Root]) {
        return;
    }
    let rig = Rig::start_with(false, json!({"podInfoOnMount": true})).await;
    rig.driver.configure(|config| config.node.insert(NodeCapability::VolumeMountGroup));
    rig.volume_with(
        "data",
        json!({"mountOptions": ["test-op"], "volumeAttributes": {"foo": "bar"}}),
    )
    .await;
    let grace = json!({"terminationGracePeriodSeconds": 0, "securityContext": {"fsGroup": 3000}});
    let uid = rig.pod("p", "sleep 1000", grace).await;
    rig.wait_phase("p", "Running").await;
    let stage = rig.driver.calls_of(Call::NodeStageVolume)[0].request.clone();
    let publish = rig.driver.calls_of(Call::NodePublishVolume)[0].request.clone();
    for (case, request, part) in [
        ("case: node/N4", &stage, "test-op"),
        ("case: node/N8", &stage, "3000"),
        ("case: node/N12 attributes", &publish, "foo"),
        ("name", &publish, "csi.storage.k8s.io/pod.name"),
        ("namespace", &publish, "csi.storage.k8s.io/pod.namespace"),
        ("uid", &publish, uid.as_str()),
        ("account", &publish, "csi.storage.k8s.io/serviceAccount.name"),
        ("ephemeral", &publish, "csi.storage.k8s.io/ephemeral"),
    ] {
        assert!(request.contains(part), "{case}: {part} in {request}");
    }
    assert!(!stage.contains("pod.name"), "pod facts come with publish only: {stage}");
    rig.stop(true).await;
}

#[tokio::test]
async fn a_driver_that_does_not_stage_is_not_asked_to() {
    if !need("a_driver_that_does_not_stage_is_not_asked_to", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.driver.configure(|config| config.node.remove(NodeCapability::StageUnstageVolume));
    rig.volume("data").await;
    rig.pod("p", "sleep 1000", json!({"terminationGracePeriodSeconds": 0})).await;
    rig.wait_phase("p", "Running").await;
    // case: node/N6
    assert_eq!(calls(&rig.driver), ["NodePublishVolume"]);
    assert!(!rig.staged_dirs()[0].join("vol_data.json").exists());
    // case: node/N11
    assert!(!rig.driver.calls_of(Call::NodePublishVolume)[0].request.contains("pod.name"));
    rig.delete_pod("p").await;
    // case: node/N10
    rig.until("the empty directories are removed too", async || rig.staged_dirs().is_empty()).await;
    assert_eq!(calls(&rig.driver), ["NodePublishVolume", "NodeUnpublishVolume"]);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_missing_attachment_is_waited_for_without_a_call() {
    if !need("a_missing_attachment_is_waited_for_without_a_call", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(true).await;
    rig.volume("data").await;
    let status =
        json!({"status": {"volumesAttached": [{"name": rig.unique("data"), "devicePath": ""}]}});
    let node = ObjectKey::cluster("n1");
    rig.api.patch_status::<Node>(&node, longshore_cluster::Patch::Merge(&status)).await.unwrap();
    rig.pod("p", "sleep 1000", json!({"terminationGracePeriodSeconds": 0})).await;
    // case: node/N5
    rig.until("an event", async || {
        rig.has_event("FailedMount", "MountVolume.WaitForAttach failed").await
    })
    .await;
    assert_eq!(calls(&rig.driver), Vec::<String>::new());
    rig.attach("data").await;
    rig.wait_phase("p", "Running").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn logs_are_read_and_followed() {
    use futures::StreamExt;
    if !need("logs_are_read_and_followed", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let script = "echo one; echo two; sleep 0.3; echo three";
    rig.create_pod(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", script]}],
    }}))
    .await;
    rig.wait_phase("p", "Running").await;
    let logs = longshore_node::NodeLogs::new(rig.api.clone(), rig.root());
    let query = |follow, tail_lines| longshore_core::model::streams::LogRequest {
        namespace: "default".into(),
        pod: "p".into(),
        follow,
        tail_lines,
        ..Default::default()
    };
    let all: Vec<bytes::Bytes> = logs.open(query(true, None)).await.unwrap().collect().await;
    assert_eq!(all.concat(), b"one\ntwo\nthree\n");
    let tail: Vec<bytes::Bytes> = logs.open(query(false, Some(2))).await.unwrap().collect().await;
    assert_eq!(tail.concat(), b"two\nthree\n");
    rig.stop(true).await;
}

#[tokio::test]
async fn a_sub_path_is_a_part_of_the_volume_and_never_leaves_it() {
    if !need("a_sub_path_is_a_part_of_the_volume_and_never_leaves_it", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let pod = |name: &str, init: &str, part: &str| {
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "initContainers": [{"name": "i", "image": "host", "command": ["sh", "-c", init],
                "volumeMounts": [{"name": "scratch", "mountPath": "/all"}]}],
            "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", "ls /part"],
                "volumeMounts": [{"name": "scratch", "mountPath": "/part", "subPath": part}]}],
        }})
    };
    let uid = rig.create_pod(pod("p", "mkdir -p /all/a/b; touch /all/a/b/inside", "a/b")).await;
    rig.wait_phase("p", "Succeeded").await;
    assert_eq!(rig.log(&uid), "inside\n");
    rig.delete_pod("p").await;
    rig.until("directory gone", async || !rig.root().join("pods").join(&uid).exists()).await;
    // A link to the host's /etc stays inside the volume, where there is no such directory.
    let uid = rig.create_pod(pod("q", "ln -s /etc /all/link", "link/part")).await;
    rig.until("refused", async || rig.has_event("Failed", "failed to prepare subPath").await).await;
    assert_eq!(rig.log(&uid), "");
    rig.delete_pod("q").await;
    rig.wait_gone("q").await;
    rig.stop(true).await;
}
