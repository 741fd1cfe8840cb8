//! Three nodes and a volume that only one of them may have: it moves, it is waited for, and it outlives
//! the node that had it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;
mod exclusive;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use common::*;
use exclusive::Watcher;
use longshore_cluster::{Api, Patch, config::ClientConfig};
use longshore_core::model::{ObjectKey, kinds::Node};
use serde_json::{Value, json};

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Writes numbers for ever. A number is printed when the file that has it is on the disk.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i >> /data/numbers; \
                       sync /data/numbers && echo $i; sleep 0.02; done";
/// Shows the numbers, then stays.
const READER: &str = "cat /data/numbers; echo end; sleep 1000";

fn running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// Changes the out-of-service taint of a node and leaves the others alone.
fn out_of_service(up: &Instance, node: &str, wanted: bool) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = ClientConfig::from_kubeconfig(&up.kubeconfig).client().await.unwrap();
        let (api, key) = (Api::new(client), ObjectKey::cluster(node));
        let stored = api.get_raw::<Node>(&key).await.unwrap().unwrap();
        let mut taints = stored["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.retain(|taint| taint["key"] != OUT_OF_SERVICE);
        if wanted {
            taints.push(
                json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}),
            );
        }
        let patch = json!({"spec": {"taints": taints}});
        api.patch::<Node>(&key, Patch::Merge(&patch)).await.unwrap();
    });
}

fn node_is(up: &Instance, node: &str, ready: &str) {
    up.wait("node", node, &format!("was ready: {ready}"), |node| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == *ready)
    });
}

/// The nodes of the attachments there are.
fn attached(up: &Instance) -> Vec<String> {
    let done = up.cli(&["get", "volumeattachments", "-o", "json"]);
    let list: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let all = list["items"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| one["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
}

/// What a pod printed, from its node's files: those stay when the pod is gone from the API.
fn printed(root: &Path, uid: &str) -> Vec<u32> {
    fn files(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => files(&path, found),
                Ok(kind) if kind.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    files(root, &mut found);
    found.retain(|path| {
        path.display().to_string().contains(uid) && path.extension().is_some_and(|one| one == "log")
    });
    let text: String = found.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    numbers(&text)
}

fn numbers(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.split_whitespace().last()?.parse().ok()).collect()
}

fn uid(up: &Instance, pod: &str) -> String {
    up.json("pod", pod)["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Ends the process of a node as a crash would.
fn kill_node(up: &Instance, node: &str) {
    let file = up.data_dir.join("nodes").join(node).join("pid");
    let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_volume_has_one_node_whatever_happens_to_its_nodes() {
    if !can_run("attach-nodes") {
        return;
    }
    let home = Home::new("attach-nodes");
    let up = Instance::start(&home, "data", &["up", "--nodes", "3", "--node-name", "n"]);
    let watcher = Watcher::start(&up.data_dir);
    let root = |node: &str| up.data_dir.join("nodes").join(node);

    // It moves with its data.
    up.apply(&claim("moving", "longshore-shared"));
    up.apply(&on_node(&pod("first", "moving", "echo 0 > /data/numbers; sync; sleep 1000"), "n-1"));
    up.wait("pod", "first", "ran", running);
    up.delete("pod", "first");
    up.apply(&on_node(&pod("second", "moving", COUNTER), "n-2"));
    up.wait("pod", "second", "ran on the other node", running);
    assert_eq!(attached(&up), ["n-2"]);

    // Whoever wants it too is told who has it.
    up.apply(&on_node(&pod("third", "moving", READER), "n-3"));
    let told = up.event("third", &["second", "n-2"]);
    assert!(told.contains("used by pod(s) second"), "{told}");

    // A node that is down keeps it, even when its pod is unwanted.
    let second = uid(&up, "second");
    eventually("the pod writes", || printed(&root("n-2"), &second).len() > 10);
    kill_node(&up, "n-2");
    node_is(&up, "n-2", "Unknown");
    assert!(up.cli(&["delete", "pod", "second", "--wait=false"]).status.success());
    let before = printed(&root("n-2"), &second).len();
    eventually("the pod goes on", || printed(&root("n-2"), &second).len() > before + 10);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(attached(&up), ["n-2"]);
    assert_eq!(up.json("pod", "third")["status"]["phase"], "Pending");
    assert!(!mounts_below(&root("n-2")).is_empty());

    // Out of service: its pods end, its mounts go, and only then the volume moves.
    out_of_service(&up, "n-2", true);
    up.wait("pod", "third", "ran", running);
    assert_eq!(attached(&up), ["n-3"]);
    assert_eq!(mounts_below(&root("n-2")), Vec::<String>::new());
    assert_eq!(processes_of(&root("n-2")), Vec::<u32>::new());
    assert!(up.json("pod", "second").is_null());
    up.event("n-2", &["NodeFenced", "1 pod(s) ended"]);
    let flushed = printed(&root("n-2"), &second);
    let mut found = Vec::new();
    eventually("the pod has read everything", || {
        text(&up.cli(&["logs", "third"])).lines().any(|line| line.ends_with("end"))
    });
    found.extend(numbers(&text(&up.cli(&["logs", "third"]))));
    let lost: Vec<_> = flushed.iter().filter(|one| !found.contains(one)).collect();
    assert!(flushed.len() > 20 && lost.is_empty(), "{lost:?} of {} are lost", flushed.len());

    // Back in service, it takes pods and volumes again.
    out_of_service(&up, "n-2", false);
    node_is(&up, "n-2", "True");
    up.delete("pod", "third");
    up.apply(&on_node(&pod("fourth", "moving", READER), "n-2"));
    up.wait("pod", "fourth", "ran on the node that is back", running);
    watcher.finish(&["n-1", "n-2", "n-3"]);

    up.delete("pod", "fourth");
    up.delete("pvc", "moving");
    eventually("no image is left", || images_below(&up.data_dir).is_empty());
    up.stop_without_a_trace(&home);
}

#[test]
fn stopping_ends_what_a_dead_node_left() {
    if !can_run("dead-node") {
        return;
    }
    let home = Home::new("dead-node");
    let up = Instance::start(&home, "data", &["up", "--nodes", "2", "--node-name", "n"]);
    up.apply(&claim("shared", "longshore-shared"));
    up.apply(&on_node(&pod("shared", "shared", "sleep 1000"), "n-2"));
    up.apply(&claim("files", "longshore-local"));
    up.apply(&on_node(&pod("files", "files", "sleep 1000"), "n-2"));
    up.wait("pod", "shared", "ran", running);
    up.wait("pod", "files", "ran", running);
    kill_node(&up, "n-2");
    node_is(&up, "n-2", "Unknown");
    assert_eq!(loops_below(home.path()).len(), 2);
    up.stop_without_a_trace(&home);
}
