//! `kill -9` at many moments: what was answered is there, and work goes on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::time::Duration;

use common::*;

/// The moments after the pod was created at which the whole instance is killed.
fn moments() -> Vec<u64> {
    if std::env::var("LONGSHORE_LONG").is_ok() {
        return (0..60).map(|step| step * 7).collect();
    }
    vec![0, 15, 40, 80, 150, 300]
}

fn killed_while_starting_a_pod(test: &str, class: &str) {
    if !can_run(test) {
        return;
    }
    let home = Home::new(test);
    for (round, moment) in moments().into_iter().enumerate() {
        let (name, worker) = (format!("data-{round}"), format!("worker-{round}"));
        let up = Instance::up(&home, "data");
        up.apply(&claim(&name, class));
        up.apply(&pod(&worker, &name, "echo kept > /data/file; sync; sleep 1000"));
        std::thread::sleep(Duration::from_millis(moment));
        up.kill();

        let up = Instance::up(&home, "data");
        up.wait("pod", &worker, "ran after the crash", |pod| pod["status"]["phase"] == "Running");
        assert!(up.cli(&["delete", "pod", &worker]).status.success());
        up.wait("pod", &worker, "went", serde_json::Value::is_null);
        assert!(up.cli(&["delete", "pvc", &name]).status.success());
        up.wait("pvc", &name, "went", serde_json::Value::is_null);
        eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
        assert_eq!(up.stop(), Some(0), "round {round}");
        assert_eq!(mounts_below(home.path()), Vec::<String>::new(), "killed after {moment} ms");
        assert_eq!(loops_below(home.path()), Vec::<String>::new(), "killed after {moment} ms");
        println!("fault point: killed {moment} ms after the pod was made ({class}): recovered");
    }
}

#[test]
fn killed_while_starting_a_pod_without_attach() {
    killed_while_starting_a_pod("crash-local", "longshore-local");
}

#[test]
fn killed_while_starting_a_pod_with_attach() {
    killed_while_starting_a_pod("crash-shared", "longshore-shared");
}

#[test]
fn killed_while_a_claim_goes_away() {
    if !can_run("crash-delete") {
        return;
    }
    let home = Home::new("crash-delete");
    for (round, moment) in moments().into_iter().enumerate() {
        let name = format!("data-{round}");
        let up = Instance::up(&home, "data");
        up.apply(&claim(&name, "longshore-local-immediate"));
        up.wait("pvc", &name, "was bound", |claim| claim["status"]["phase"] == "Bound");
        assert!(up.cli(&["delete", "pvc", &name]).status.success());
        std::thread::sleep(Duration::from_millis(moment / 4));
        up.kill();

        let up = Instance::up(&home, "data");
        up.wait("pvc", &name, "went", serde_json::Value::is_null);
        eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
        assert_eq!(up.stop(), Some(0), "round {round}");
        println!("fault point: killed {} ms after the claim was deleted: recovered", moment / 4);
    }
}

#[test]
fn a_running_pod_survives_and_is_adopted() {
    if !can_run("adopt") {
        return;
    }
    let home = Home::new("adopt");
    let up = Instance::up(&home, "data");
    up.apply(&claim("data", "longshore-local"));
    let script = "while :; do date +%s%N >> /data/ticks; sleep 0.05; done";
    up.apply(&pod("ticker", "data", script));
    up.wait("pod", "ticker", "ran", |pod| pod["status"]["phase"] == "Running");
    let before = up.json("pod", "ticker")["status"]["containerStatuses"][0]["restartCount"].clone();
    up.kill();
    std::thread::sleep(Duration::from_millis(500));
    let up = Instance::up(&home, "data");
    up.wait("pod", "ticker", "is running again", |pod| pod["status"]["phase"] == "Running");
    let status = &up.json("pod", "ticker")["status"]["containerStatuses"][0];
    assert_eq!(status["restartCount"], before, "the container was adopted, not restarted");
    assert!(up.cli(&["delete", "pod", "ticker"]).status.success());
    up.wait("pod", "ticker", "went", serde_json::Value::is_null);
    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
}
