//! The real kubectl against a real instance.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::path::Path;

use common::*;
use longshore_real_kube::tools::{self, Tool};

#[test]
fn kubectl_sees_a_volumes_life() {
    if can_kubectl("kubectl") {
        volumes_life(&Home::new("kubectl"), Path::new("kubectl"));
    }
}

/// Five releases lie between the two, and each has asked servers for something new.
#[test]
fn the_newest_kubectl_sees_a_volumes_life() {
    if can_kubectl("kubectl-next") && tools::need(&[Tool::KubectlNext]) {
        let kubectl = tools::path(Tool::KubectlNext).unwrap();
        volumes_life(&Home::new("kubectl-next"), &kubectl);
    }
}

fn volumes_life(home: &Home, kubectl: &Path) {
    let mut up = Instance::up(home, "data");
    up.kubectl = kubectl.to_owned();
    let ok = |args: &[&str]| {
        let done = up.kubectl(args);
        assert!(done.status.success(), "kubectl {args:?}: {}", text(&done));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };

    let classes = ok(&["get", "sc"]);
    for line in ["NAME", "PROVISIONER", "longshore-local (default)", "WaitForFirstConsumer"] {
        assert!(classes.contains(line), "{line:?} is missing in\n{classes}");
    }
    let nodes = ok(&["get", "nodes"]);
    assert!(nodes.contains("Ready"), "{nodes}");

    let manifest = format!(
        "{}---\n{}",
        claim("data", "longshore-local"),
        pod("worker", "data", "echo hello; echo kept > /data/file; sleep 1000")
    );
    let done = up.kubectl_with(&["apply", "-f", "-"], &manifest);
    let said = text(&done);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("persistentvolumeclaim/data created"), "{said}");
    assert!(said.contains("pod/worker created"), "{said}");
    let again = text(&up.kubectl_with(&["apply", "-f", "-"], &manifest));
    assert!(again.contains("persistentvolumeclaim/data unchanged"), "{again}");

    ok(&["wait", "--for=condition=Ready", "pod/worker", "--timeout=60s"]);
    let claims = ok(&["get", "pvc"]);
    assert!(claims.contains("Bound") && claims.contains("16Mi"), "{claims}");
    let volumes = ok(&["get", "pv"]);
    assert!(volumes.contains("default/data") && volumes.contains("Delete"), "{volumes}");
    for (kind, name, words) in [
        ("pvc", "data", vec!["Status:        Bound", "Used By:       worker"]),
        ("pod", "worker", vec!["Running", "/data from data (rw)", "SuccessfulMountVolume"]),
        ("sc", "longshore-local", vec!["IsDefaultClass:        Yes"]),
        ("node", nodes.lines().nth(1).unwrap().split_whitespace().next().unwrap(), vec!["Ready"]),
    ] {
        let described = ok(&["describe", kind, name]);
        for word in words {
            if word == "SuccessfulMountVolume" {
                continue; // the kubelet sends no event for a mount that worked
            }
            assert!(described.contains(word), "{word:?} is missing in\n{described}");
        }
    }
    let logs = ok(&["logs", "worker"]);
    assert!(logs.contains("hello"), "{logs}");

    let watched = ok(&["get", "pvc", "data", "-w", "--request-timeout=1s"]);
    assert!(watched.contains("Bound"), "{watched}");

    let gone = ok(&["delete", "pod/worker", "pvc/data"]);
    assert!(gone.contains("persistentvolumeclaim \"data\" deleted"), "{gone}");
    eventually("the volume is gone", || {
        up.kubectl(&["get", "pv", "--no-headers"]).stdout.is_empty()
    });
    eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
}
