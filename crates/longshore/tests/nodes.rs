//! Several nodes, and drivers that are not ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use longshore_csi::v1::{CreateSnapshotRequest, DeleteSnapshotRequest};

fn running(pod: &serde_json::Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// The controller of the shared driver, in the main process, has the node whose pod uses a volume hold
/// it still.
fn snapshot_in_use(up: &Instance, claim: &str) {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let volume = text(&up.json("pvc", claim)["spec"]["volumeName"]);
    let source_volume_id = text(&up.json("pv", &volume)["spec"]["csi"]["volumeHandle"]);
    let socket = up.data_dir.join("shared-controller.sock").display().to_string();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = longshore_csi::Client::connect(socket.into()).await.unwrap();
        let name = "cut".to_owned();
        let request = CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
        let made = client.create_snapshot(request).await.unwrap().snapshot.unwrap();
        assert!(made.ready_to_use);
        let snapshot_id = made.snapshot_id;
        let request = DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        client.delete_snapshot(request).await.unwrap();
    });
}

#[test]
fn a_shared_volume_moves_between_nodes_and_local_ones_stay() {
    if !can_run("two-nodes") {
        return;
    }
    let home = Home::new("two-nodes");
    let up = Instance::start(&home, "data", &["up", "--nodes", "2", "--node-name", "n"]);
    for node in ["n-1", "n-2"] {
        let pid =
            std::fs::read_to_string(up.data_dir.join("nodes").join(node).join("pid")).unwrap();
        assert!(std::path::Path::new("/proc").join(pid.trim()).exists(), "{node} has a process");
        let name = format!("local-{node}");
        up.apply(&claim(&name, "longshore-local"));
        up.apply(&on_node(&pod(&format!("pod-{node}"), &name, "sleep 1000"), node));
    }
    for node in ["n-1", "n-2"] {
        up.wait("pod", &format!("pod-{node}"), "ran", running);
        let pool = up.data_dir.join("pool").join(node);
        assert_eq!(images_below(&pool).len(), 1, "one image in the pool of {node}");
    }

    up.apply(&claim("moving", "longshore-shared"));
    up.apply(&on_node(&pod("first", "moving", "echo kept > /data/file; sync; sleep 1000"), "n-1"));
    up.wait("pod", "first", "ran", running);
    assert!(up.cli(&["delete", "pod", "first"]).status.success());
    up.apply(&on_node(&pod("second", "moving", "grep -q kept /data/file && sleep 1000"), "n-2"));
    up.wait("pod", "second", "ran on the other node", running);
    let attached = text(&up.cli(&["get", "volumeattachments"]));
    assert!(attached.contains("n-2") && !attached.contains("n-1"), "{attached}");
    snapshot_in_use(&up, "moving");
    assert!(running(&up.json("pod", "second")));

    for name in ["pod-n-1", "pod-n-2", "second"] {
        assert!(up.cli(&["delete", "pod", name]).status.success());
    }
    for name in ["local-n-1", "local-n-2", "moving"] {
        assert!(up.cli(&["delete", "pvc", name]).status.success());
    }
    eventually("no image is left", || images_below(&up.data_dir).is_empty());
    up.stop_without_a_trace(&home);
}

#[test]
fn a_foreign_driver_is_served_by_its_socket() {
    if !can_run("foreign") {
        return;
    }
    let home = Home::new("foreign");
    let mut driver = foreign_driver(&home);
    eventually("the driver's socket is there", || foreign_socket(&home).exists());
    let up = up_with_foreign_driver(&home);
    assert_eq!(up.json("csidriver", "foreign.example.com")["spec"]["attachRequired"], true);
    let class = up.json("storageclass", "foreign.example.com");
    assert_eq!(class["volumeBindingMode"], "WaitForFirstConsumer");

    start_worker(&up);
    assert_eq!(images_below(&home.path().join("foreign-pool")).len(), 1);
    end_worker(&home, up, &mut driver);
}

fn foreign_socket(home: &Home) -> PathBuf {
    home.path().join("foreign.sock")
}

fn up_with_foreign_driver(home: &Home) -> Instance {
    let endpoint = format!("unix://{}", foreign_socket(home).display());
    Instance::start(home, "data", &["up", "--node-name", "n", "--csi-endpoint", &endpoint])
}

/// A pod with a claim of the foreign driver.
fn start_worker(up: &Instance) {
    up.apply(&claim("data", "foreign.example.com"));
    up.apply(&pod("worker", "data", "echo kept > /data/file; sleep 1000"));
    up.wait("pod", "worker", "ran", running);
}

/// The end of that pod, its claim, the instance and the driver, without a trace.
fn end_worker(home: &Home, up: Instance, driver: &mut Child) {
    assert!(up.cli(&["delete", "pod", "worker"]).status.success());
    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    eventually("no image is left", || images_below(home.path()).is_empty());
    assert_eq!(up.stop(), Some(0));
    driver.kill().unwrap();
    driver.wait().unwrap();
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}

/// A driver of ours as another process, under a name of its own.
fn foreign_driver(home: &Home) -> Child {
    let endpoint = format!("unix://{}", foreign_socket(home).display());
    let log = home.path().join("driver.log");
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    Command::new(binary())
        .args(["driver", "--endpoint", &endpoint, "--node-id", "n", "--kind", "shared"])
        .args(["--driver-name", "foreign.example.com", "--pool"])
        .arg(home.path().join("foreign-pool"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

#[test]
fn a_foreign_driver_that_is_late_and_restarts_is_served() {
    if !can_run("late") {
        return;
    }
    let home = Home::new("late");
    let up = up_with_foreign_driver(&home);
    let known = || up.cli(&["get", "csidriver", "foreign.example.com"]).status.success();
    assert!(!known());
    assert!(up.log_text().contains("no driver answers on this socket yet"), "{}", up.log_text());
    let mut driver = foreign_driver(&home);
    eventually("the late driver is known", known);

    start_worker(&up);
    driver.kill().unwrap();
    driver.wait().unwrap();
    end_worker(&home, up, &mut foreign_driver(&home));
}

/// A pod without volumes.
fn plain(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: host\n    \
         command: [sleep, '1000']\n"
    )
}

/// Lets the process of a node go on, however the test ends.
struct Stopped(rustix::process::Pid);

impl Stopped {
    fn node(up: &Instance, node: &str) -> Self {
        let file = up.data_dir.join("nodes").join(node).join("pid");
        let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

#[test]
fn a_node_whose_process_hangs_is_not_ready_and_gets_no_new_pods_until_it_goes_on() {
    if !can_run("hung-node") {
        return;
    }
    let home = Home::new("hung-node");
    let up = Instance::start(&home, "data", &["up", "--nodes", "2", "--node-name", "n"]);
    let ready = |status: &'static str, reason: &'static str| {
        move |node: &serde_json::Value| {
            let conditions = node["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|one| {
                one["type"] == "Ready" && one["status"] == status && one["reason"] == reason
            })
        }
    };
    for node in ["n-1", "n-2"] {
        up.wait("node", node, "is ready", ready("True", "KubeletReady"));
    }
    up.apply(&on_node(&plain("before"), "n-1"));
    up.wait("pod", "before", "ran", running);
    let stopped = Stopped::node(&up, "n-1");
    // It is heard from no more; that takes as long as its lease holds.
    let given_up = longshore_testing::holds_within(Duration::from_secs(180), || {
        ready("Unknown", "NodeStatusUnknown")(&up.json("node", "n-1"))
    });
    assert!(given_up, "the node is given up; {}", up.log_text());
    let tainted = |effect: &str| {
        let node = up.json("node", "n-1");
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints
            .iter()
            .any(|one| one["key"] == "node.kubernetes.io/unreachable" && one["effect"] == effect)
    };
    eventually("tainted", || tainted("NoSchedule") && tainted("NoExecute"));
    // The pod there runs on.
    assert!(running(&up.json("pod", "before")));
    for name in ["one", "two", "three"] {
        up.apply(&plain(name));
        up.wait("pod", name, "ran", running);
        assert_eq!(up.json("pod", name)["spec"]["nodeName"], "n-2", "{name}");
    }
    assert!(ready("True", "KubeletReady")(&up.json("node", "n-2")));
    drop(stopped);
    up.wait("node", "n-1", "is back", ready("True", "KubeletReady"));
    eventually("no taint", || {
        up.json("node", "n-1")["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
    });
    up.apply(&plain("after"));
    up.wait("pod", "after", "ran", running);
    assert_eq!(up.json("pod", "after")["spec"]["nodeName"], "n-1", "the emptier one");
    for name in ["before", "one", "two", "three", "after"] {
        assert!(up.cli(&["delete", "pod", name]).status.success());
    }
    up.stop_without_a_trace(&home);
}
