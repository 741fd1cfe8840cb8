//! Two provisioners; the leader is killed; the other takes over.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::process::{Child, Command, Stdio};

use common::*;

/// Ends the process when the test is over, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(home: &Home, name: &str, args: &[&str]) -> Ended {
    let log = std::fs::File::create(home.path().join(format!("{name}.log"))).unwrap();
    let child = Command::new(binary())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    Ended(child)
}

fn holder(api: &Instance) -> String {
    let done = api.cli(&["get", "leases", "-n", "default", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let leases = list["items"].as_array().cloned().unwrap_or_default();
    let ours = leases.iter().find(|lease| {
        lease["metadata"]["name"]
            .as_str()
            .is_some_and(|name| name.contains("local-csi-longshore-dev"))
    });
    ours.and_then(|lease| lease["spec"]["holderIdentity"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn the_other_provisioner_takes_over() {
    if !can_run("leaders") {
        return;
    }
    let home = Home::new("leaders");
    let api = Instance::start(&home, "api", &["apiserver"]);
    let kubeconfig = api.kubeconfig.display().to_string();
    let socket = format!("unix://{}/csi.sock", home.path().display());
    let pool = format!("default={}/pool", home.path().display());
    let _driver = start(
        &home,
        "driver",
        &[
            "driver",
            "--endpoint",
            &socket,
            "--node-id",
            "n1",
            "--kind",
            "shared",
            "--driver-name",
            "local.csi.longshore.dev",
            "--pool",
            &pool,
        ],
    );
    let _binder = start(
        &home,
        "controllers",
        &["controllers", "--kubeconfig", &kubeconfig, "--leader-elect=false"],
    );
    let flags = [
        "provisioner",
        "--kubeconfig",
        &kubeconfig,
        "--csi-address",
        &socket,
        "--leader-election",
        "--leader-election-namespace=default",
        "--leader-election-lease-duration=3s",
        "--leader-election-renew-deadline=2s",
        "--leader-election-retry-period=500ms",
    ];
    api.apply("apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: local.csi.longshore.dev\nreclaimPolicy: Delete\n");
    let first = start(&home, "first", &flags);
    eventually("the first provisioner leads", || !holder(&api).is_empty());
    let leader = holder(&api);
    let _second = start(&home, "second", &flags);
    api.apply(&claim("before", "fast"));
    api.wait("pvc", "before", "was bound", |claim| claim["status"]["phase"] == "Bound");

    drop(first); // SIGKILL: the lease is not released
    api.apply(&claim("after", "fast"));
    api.wait("pvc", "after", "was bound by the other", |claim| claim["status"]["phase"] == "Bound");
    // Both campaign under the host's name, as the official program does.
    assert_eq!(holder(&api), leader);
}
