//! Whatever an instance does not do, it says: on the object, with the next step.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::*;
use longshore_real_kube::tools::{self, Tool};
use longshore_testing::without_volumes_of_others;
use serde_json::Value;

/// Events with this reason about objects of a kind, with their messages.
fn events(up: &Instance, kind: &str, name: &str, reason: &str) -> Vec<String> {
    let done = up.cli(&["get", "events", "-o", "json"]);
    let list: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let fits = |event: &&Value| {
        let about = &event["involvedObject"];
        event["reason"] == reason && about["kind"] == kind && about["name"] == name
    };
    let fitting = items.iter().filter(fits);
    fitting.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

fn bound(claim: &Value) -> bool {
    claim["status"]["phase"] == "Bound"
}

fn running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// A volume of a driver that is not here, made by hand, and its claim of this size.
fn far(size: &str, more: &str) -> String {
    let claim = claim("data", "far").replace("16Mi", size);
    format!("{claim}  volumeName: by-hand\n{more}")
}

const BY_HAND: &str = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: by-hand}\nspec:\n  \
    capacity: {storage: 16Mi}\n  accessModes: [ReadWriteOnce]\n  storageClassName: far\n  \
    csi: {driver: far.example, volumeHandle: h}\n";

#[test]
fn requests_that_no_program_serves_get_one_event_each() {
    if !can_run("unserved") {
        return;
    }
    let home = Home::new("unserved");
    let up = Instance::up(&home, "data");
    up.apply(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: far}\n\
         provisioner: far.example\nallowVolumeExpansion: true\n",
    );
    up.apply(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {name: gold}\n\
         driverName: far.example\nparameters: {a: b}\n",
    );
    up.apply(BY_HAND);
    up.apply(&far("16Mi", ""));
    up.wait("pvc", "data", "bound", bound);
    up.apply(&far("32Mi", "  volumeAttributesClassName: gold\n"));
    up.apply(&claim("far", "far"));
    let of = |kind: &str, name: &str| events(&up, kind, name, "NotServed");
    eventually("all objects are told", || {
        of("PersistentVolumeClaim", "data").len() == 2
            && of("PersistentVolumeClaim", "far").len() == 1
    });
    let texts = of("PersistentVolumeClaim", "data");
    for part in
        ["The expansion from 16Mi to 32Mi waits", "The change to VolumeAttributesClass \"gold\""]
    {
        let how = "no csi-resizer runs for far.example, and no driver of that name is here (there are: \
                   local.csi.longshore.dev, shared.csi.longshore.dev). Start both";
        let told = texts.iter().any(|text| text.contains(part) && text.contains(how));
        assert!(told, "{part}: {texts:?}");
    }
    let far = of("PersistentVolumeClaim", "far");
    assert!(far[0].contains("no driver of that name is here (there are: local.csi"), "{far:?}");
    let address = up.address();
    assert_eq!(up.stop(), Some(0));
    // The next start finds what was said, and says nothing twice.
    let up = Instance::start_at(&home, "data", &["up"], &address);
    up.apply(&claim("later", "far"));
    let of = |kind: &str, name: &str| events(&up, kind, name, "NotServed");
    eventually("a new claim is told", || of("PersistentVolumeClaim", "later").len() == 1);
    assert_eq!(of("PersistentVolumeClaim", "data"), texts);
    assert_eq!(up.stop(), Some(0));
}

/// A process with a mount namespace of its own, which keeps copies of the mounts below a directory; ended
/// with the value.
struct Pinner(Child);

impl Pinner {
    fn new(dir: &std::path::Path) -> Self {
        let script = without_volumes_of_others(dir) + "exec sleep 1000";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let name = format!("/proc/{}/comm", child.id());
        let sleeps = || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep");
        eventually("the namespace is made", sleeps);
        Self(child)
    }
}

impl Drop for Pinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn pinned_volume_names_its_holder_to_the_pod_and_to_whoever_stops_the_instance() {
    if !can_run("pinned") {
        return;
    }
    let home = Home::new("pinned");
    let up = Instance::up(&home, "data");
    up.apply(&claim("data", "longshore-local"));
    up.apply(&pod("web", "data", "trap 'exit 0' TERM; sleep 1000 & wait"));
    up.wait("pod", "web", "ran", running);
    let pinner = Pinner::new(home.path());
    let holder = format!("pid {} (sleep)", pinner.0.id());
    assert!(up.cli(&["delete", "pod", "web", "--wait=false"]).status.success());
    eventually("the pod is told who holds its volume", || {
        let texts = events(&up, "Pod", "web", "FailedUnmount");
        texts.iter().any(|text| {
            text.contains("of driver local.csi.longshore.dev at /") && text.contains(&holder)
        })
    });
    let log = home.path().join("data.log");
    let began = Instant::now();
    assert_eq!(up.stop(), Some(1), "something is left");
    let took = began.elapsed();
    let log = std::fs::read_to_string(log).unwrap();
    let waits = format!(" of pod default/web (driver local.csi.longshore.dev), held by {holder}");
    assert!(log.contains("the stop waits for volume pvc-"), "{log}");
    assert!(log.contains(&waits), "{log}");
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains("something of it is left: still mounted: volume pvc-"), "{last}");
    assert!(took < Duration::from_secs(20), "a hopeless stop took {took:?}");
    drop(pinner);
    let up = Instance::up(&home, "data");
    eventually("the pod has ended", || up.json("pod", "web").is_null());
    up.stop_without_a_trace(&home);
}

#[test]
fn nodes_that_are_not_started_again_are_marked_and_their_pods_told() {
    if !can_run("fewer-nodes") {
        return;
    }
    let home = Home::new("fewer-nodes");
    let up = Instance::start(&home, "data", &["up", "--nodes", "2", "--node-name", "n"]);
    up.apply(&claim("data", "longshore-local"));
    up.apply(&on_node(&pod("web", "data", "sleep 1000"), "n-2"));
    up.wait("pod", "web", "ran", running);
    up.apply(&claim("old", "longshore-local"));
    up.apply(&on_node(&pod("old", "old", "true"), "n-2"));
    let bound = |claim: &Value| claim["status"]["phase"] == "Bound";
    up.wait("pvc", "old", "is bound", bound);
    let volume = up.json("pvc", "data")["spec"]["volumeName"].as_str().unwrap().to_owned();
    let old = up.json("pvc", "old")["spec"]["volumeName"].as_str().unwrap().to_owned();
    let address = up.address();
    assert_eq!(up.stop(), Some(0));
    let up = Instance::start_at(&home, "data", &["up", "--node-name", "n"], &address);
    let ready = |node: &Value| {
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    assert!(ready(&up.json("node", "n")));
    for node in ["n-1", "n-2"] {
        assert!(!ready(&up.json("node", node)), "{node}");
        assert_eq!(events(&up, "Node", node, "NodeNotStarted").len(), 1, "{node}");
    }
    let told = events(&up, "Node", "n-2", "NodeNotStarted");
    assert!(told[0].contains("its pods wait: ") && told[0].contains("default/web"), "{told:?}");
    assert!(told[0].contains("only it can reach: ") && told[0].contains(&volume), "{told:?}");
    assert!(up.log_text().contains("Node n-2 ran at an earlier start"), "{}", up.log_text());
    let told = events(&up, "Pod", "web", "NodeNotReady");
    assert!(told[0].contains("kubectl delete pod web -n default --force"), "{told:?}");
    // Its own volumes come and go; that of the absent node waits, and its image is not forgotten.
    for command in [["delete", "pod", "old", "--force"], ["delete", "pvc", "old", "--wait=false"]] {
        assert!(up.cli(&command).status.success(), "{command:?}");
    }
    up.apply(&claim("new", "longshore-local-immediate"));
    up.wait("pvc", "new", "is bound", bound);
    let new = up.json("pvc", "new")["spec"]["volumeName"].as_str().unwrap().to_owned();
    assert!(up.cli(&["delete", "pvc", "new"]).status.success());
    eventually("the node's own volume is gone", || up.json("pv", &new).is_null());
    assert_eq!(up.json("pv", &old)["status"]["phase"], "Released");
    assert_eq!(up.stop(), Some(0));
    // With all of them the pod runs again.
    let args = ["up", "--nodes", "2", "--node-name", "n"];
    let up = Instance::start_at(&home, "data", &args, &address);
    up.wait("node", "n-2", "is ready again", ready);
    let untainted =
        |node: &Value| node["spec"]["taints"].as_array().is_none_or(|taints| taints.is_empty());
    up.wait("node", "n-2", "takes pods again", untainted);
    up.wait("pod", "web", "ran again", running);
    assert!(!ready(&up.json("node", "n")), "now the single node is absent");
    eventually("its released volume is gone", || up.json("pv", &old).is_null());
    up.stop_without_a_trace(&home);
}

/// csi-driver-host-path, on a socket and with a state of its own.
fn official_driver(home: &Home) -> Beside {
    let dir = home.path();
    let mut command = Command::new(tools::path(Tool::Hostpath).unwrap());
    command.arg(format!("--endpoint=unix://{}", dir.join("official.sock").display()));
    command.arg(format!("--statedir={}", dir.join("official-state").display()));
    command.args(["--nodeid=n", "--enable-topology=false"]);
    Beside::start_command(home, "official", &mut command)
}

#[test]
fn pod_ends_although_its_driver_was_started_anew_and_forgot_the_mount() {
    if !can_run("forgetful") || !tools::need(&[Tool::Hostpath]) {
        return;
    }
    // Outside of `/tmp`: the driver makes its volumes where it finds its state.
    let home = Home::outside_tmp("forgetful");
    let driver = official_driver(&home);
    let endpoint = format!("unix://{}", home.path().join("official.sock").display());
    let args = ["up", "--node-name", "n", "--csi-endpoint", &endpoint];
    let up = Instance::start(&home, "data", &args);
    up.apply(&claim("data", "hostpath.csi.k8s.io"));
    up.apply(&pod("web", "data", "trap 'exit 0' TERM; sleep 1000 & wait"));
    up.wait("pod", "web", "ran", running);
    drop(driver);
    assert!(up.cli(&["delete", "pod", "web", "--wait=false"]).status.success());
    eventually("the pod is told that its driver is away", || {
        let texts = events(&up, "Pod", "web", "FailedUnmount");
        texts.iter().any(|text| text.contains("of driver hostpath.csi.k8s.io at /"))
    });
    // Its state knows the volumes, and not where they are mounted.
    let state = home.path().join("official-state/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    let mut known: Value = serde_json::from_str(&text).unwrap();
    for volume in known["Volumes"].as_array_mut().unwrap() {
        volume["Published"] = Value::Null;
        volume["Staged"] = Value::Null;
    }
    std::fs::write(&state, known.to_string()).unwrap();
    let driver = official_driver(&home);
    eventually("the pod has ended", || up.json("pod", "web").is_null());
    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    assert_eq!(up.stop(), Some(0));
    driver.stop();
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}
