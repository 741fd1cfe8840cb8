//! `longshore demo --csi-endpoint`: drivers that are not part of the instance, walked through a volume's life; and a
//! demo that is told to stop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::*;
use longshore_real_kube::tools::{self, Tool};

fn demo(socket: &str, more: &[&str]) -> Output {
    Command::new(binary())
        .args(["demo", "--csi-endpoint", socket])
        .args(more)
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

/// Our own driver, started as somebody else's would be.
fn driver(home: &Home, name: &str, kind: &str) -> (Beside, String) {
    let pool = home.path().join(format!("pool-{kind}"));
    std::fs::create_dir_all(&pool).unwrap();
    let socket = home.path().join(format!("{kind}.sock"));
    let args = [
        "driver",
        "--kind",
        kind,
        "--node-id",
        "foreign-node",
        "--driver-name",
        name,
        "--pool",
        pool.to_str().unwrap(),
        "--endpoint",
        socket.to_str().unwrap(),
    ];
    let running = Beside::start(home, kind, &args);
    eventually("the driver listens", || socket.exists());
    (running, format!("unix://{}", socket.display()))
}

#[test]
fn a_foreign_driver_is_walked_through_a_volumes_life() {
    if !can_run("demo-foreign") {
        return;
    }
    let home = Home::new("demo-foreign");
    for (kind, calls, skipped) in [
        (
            "shared",
            &["CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"][..],
            None,
        ),
        (
            "local",
            &["CreateVolume", "NodeStageVolume"],
            Some("attach     skipped: the driver has no PUBLISH"),
        ),
    ] {
        let (driver, socket) = driver(&home, &format!("{kind}.walked.example.com"), kind);
        let done = demo(&socket, &["--size", "32Mi"]);
        let said = text(&done);
        assert_eq!(done.status.code(), Some(0), "{kind}:\n{said}");
        let undone = [
            "NodeUnpublishVolume",
            "NodeUnstageVolume",
            "CreateSnapshot",
            "from the snapshot: the checksum matches",
            "DeleteSnapshot",
            "DeleteVolume",
            "verdict: ok; ",
            "32Mi",
        ];
        for word in calls.iter().chain(&undone) {
            assert!(said.contains(word), "{kind}: {word} is missing in\n{said}");
        }
        match skipped {
            Some(skipped) => assert!(said.contains(skipped), "{kind}:\n{said}"),
            None => assert!(!said.contains("skipped"), "{kind}:\n{said}"),
        }
        assert_eq!(images_below(home.path()), Vec::<std::path::PathBuf>::new(), "{kind}");
        assert_eq!(driver.stop(), Some(0));
    }
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
}

#[test]
fn a_driver_that_fails_is_named_with_its_call_and_code() {
    if !can_run("demo-refused") {
        return;
    }
    let home = Home::new("demo-refused");
    let (_driver, socket) = driver(&home, "refusing.example.com", "shared");
    let done = demo(&socket, &["--parameter", "colour=blue"]);
    let said = text(&done);
    assert_eq!(done.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    for part in [
        "longshore: the driver did not get through; CreateVolume answered InvalidArgument",
        "colour",
        "step write",
    ] {
        assert!(last.contains(part), "{part} is missing in\n{said}");
    }
}

#[test]
fn nobody_at_the_socket_and_a_name_of_ours_are_refused() {
    if !can_run("demo-nobody") {
        return;
    }
    let home = Home::new("demo-nobody");
    let (_driver, socket) = driver(&home, "local.csi.longshore.dev", "local");
    let said = text(&demo(&socket, &[]));
    assert!(said.contains("which is a driver of `longshore up` itself"), "{said}");
    assert!(said.contains("--driver-name"), "{said}");
    let done = demo("unix:///nonexistent/csi.sock", &[]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done).contains("no driver answers on /nonexistent/csi.sock"), "{}", text(&done));
}

#[test]
fn the_official_example_driver_is_walked() {
    if !can_run("demo-hostpath") || !tools::need(&[Tool::Hostpath]) {
        return;
    }
    let home = Home::outside_tmp("demo-hostpath");
    let program = tools::path(Tool::Hostpath).unwrap();
    let socket = home.path().join("csi.sock");
    let state = home.path().join("state");
    let args = [
        "--drivername=hostpath.csi.k8s.io".to_owned(),
        format!("--endpoint=unix://{}", socket.display()),
        "--nodeid=foreign-node".to_owned(),
        format!("--statedir={}", state.display()),
    ];
    std::fs::create_dir_all(&state).unwrap();
    let _driver = Beside::start_command(&home, "hostpath", Command::new(program).args(args));
    eventually("the driver listens", || socket.exists());
    let done = demo(&format!("unix://{}", socket.display()), &[]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    for part in ["CreateSnapshot", "from the snapshot: the checksum matches", "verdict: ok; "] {
        assert!(text(&done).contains(part), "{part}: {}", text(&done));
    }
}

/// Also in the middle: the instance that it started stops, and nothing stays.
#[test]
fn a_demo_that_is_told_to_stop_leaves_nothing_behind() {
    if !can_run("demo-stopped") {
        return;
    }
    for step in ["ok   node", "ok   claim", "ok   write"] {
        let mut demo = Command::new(binary()).arg("demo").stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
        let home = said.find_map(|line| {
            let (_, kubeconfig) = line.split_once("kubeconfig=")?;
            Some(PathBuf::from(kubeconfig.strip_suffix("/data/kubeconfig")?))
        });
        let home = home.expect("the demo says where it is");
        assert!(said.any(|line| line.contains(step)), "the demo never said {step}");
        let pid = rustix::process::Pid::from_child(&demo);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let rest: Vec<String> = said.collect();
        assert_eq!(demo.wait().unwrap().code(), Some(1), "{step}: {rest:#?}");
        assert!(rest.iter().any(|line| line.contains("stopped by a signal")), "{step}: {rest:#?}");
        assert!(!home.exists(), "{step}: {rest:#?}");
        assert_eq!(processes_of(&home), Vec::<u32>::new(), "{step}");
        assert_eq!(loops_below(&home), Vec::<String>::new(), "{step}");
        assert_eq!(mounts_below(&home), Vec::<String>::new(), "{step}");
    }
}
