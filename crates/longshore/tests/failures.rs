//! What goes wrong at start gets one clear sentence and the right exit code.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output},
};

use common::*;

/// Checks the exit code, that stdout is empty, and that stderr says it in one line with these words.
fn refused(done: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    assert_eq!(done.status.code(), Some(code), "{said}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "", "nothing on stdout");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("longshore: "), "{said}");
    for word in words {
        assert!(last.contains(word), "{word:?} is missing in {last:?}");
    }
}

#[test]
fn a_busy_port() {
    if !can_run("busy-port") {
        return;
    }
    let home = Home::new("busy-port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = Command::new(binary())
        .args(["up", "--listen", &address, "--data-dir"])
        .arg(home.path().join("data"))
        .output()
        .unwrap();
    refused(&done, 1, &[&address, "in use"]);
}

#[test]
fn a_locked_data_dir() {
    if !can_run("locked") {
        return;
    }
    let home = Home::new("locked");
    let up = Instance::up(&home, "data");
    let done = Command::new(binary())
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&up.data_dir)
        .output()
        .unwrap();
    refused(&done, 1, &["in use by process", &up.pid().to_string()]);
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn a_missing_mkfs() {
    if !can_run("missing-mkfs") {
        return;
    }
    let home = Home::new("missing-mkfs");
    let mkfs = longshore_testing::find_tool("mkfs.ext4").unwrap().canonicalize().unwrap();
    // In a mount namespace of its own the tool is covered by something that is no program.
    let script = format!(
        "mount --bind /dev/null {} && exec {} up --listen 127.0.0.1:0 --data-dir {}",
        mkfs.display(),
        binary().display(),
        home.path().join("data").display()
    );
    let done = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    refused(&done, 1, &["mkfs.ext4", "e2fsprogs"]);
}

#[test]
fn another_user_than_root() {
    if !can_run("not-root") {
        return;
    }
    let home = Home::new("not-root");
    fs_open(home.path());
    let copy = home.path().join("longshore");
    std::fs::copy(binary(), &copy).unwrap();
    for program in ["up", "demo"] {
        let done = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .arg(program)
            .output()
            .unwrap();
        refused(&done, 1, &["root"]);
    }
}

fn fs_open(dir: &std::path::Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn wrong_usage() {
    for (args, words) in [
        (vec!["up", "--data-dirr", "x"], vec!["--data-dirr", "--data-dir"]),
        (vec!["up", "--listen", "nowhere"], vec!["nowhere"]),
        (vec!["up", "--stop-timeout", "3"], vec!["duration"]),
        (vec!["upp"], vec!["upp"]),
    ] {
        let done = Command::new(binary()).args(&args).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", text(&done));
        for word in words {
            assert!(text(&done).contains(word), "{args:?}: {word:?} is missing in {}", text(&done));
        }
    }
}
