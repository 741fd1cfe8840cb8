//! `longshore apiserver`: the official Python client, and flags.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::*;
use longshore_testing::{Need, need};

/// Where `cargo xtask test` keeps the client, under the name of its pins.
fn python() -> PathBuf {
    std::env::var_os("LONGSHORE_PYTHON").map(PathBuf::from).unwrap_or_default()
}

#[test]
fn the_python_client_goes_through_the_life_of_objects() {
    let python = python();
    if !python.is_file() {
        let missing = "a Python with the client (LONGSHORE_PYTHON; `cargo xtask test` makes one)";
        // There is no program of this name: this says what is missing, or fails when it may not be.
        assert!(!need("python", &[Need::Tool(missing)]));
        return;
    }
    let home = Home::new("python");
    let server = Instance::start(&home, "api", &["apiserver"]);
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/python/lifecycle.py");
    let done = Command::new(python)
        .arg(script)
        .arg(&server.kubeconfig)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}\n{errors}\n{}", server.log_text());
    assert!(text.ends_with("all done\n"), "{text}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn flags_of_the_api_are_honoured() {
    if !can_kubectl("api flags") {
        return;
    }
    let home = Home::new("api-flags");
    let server =
        Instance::start(&home, "api", &["apiserver", "--event-ttl=1s", "--store-limit=1Mi"]);
    let large = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{a: {}}}\n",
        "x".repeat(1 << 20)
    );
    let refused = server.kubectl_with(&["create", "-f", "-"], &large);
    assert!(text(&refused).contains("the store is full"), "{}", text(&refused));
    let event = "apiVersion: v1\nkind: Event\nmetadata: {name: e}\n\
                 involvedObject: {namespace: default}\nreason: Test\n";
    let done = server.kubectl_with(&["create", "-f", "-"], event);
    assert!(done.status.success(), "{}", text(&done));
    let began = std::time::Instant::now();
    loop {
        let left = server.kubectl(&["get", "events", "-o", "name"]);
        assert!(left.status.success(), "{}", text(&left));
        if left.stdout.is_empty() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the event stays: {}", text(&left));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(server.stop(), Some(0));
    for (flag, word) in [
        ("--request-timeout=0", "--request-timeout"),
        ("--event-ttl=-1s", "--event-ttl"),
        ("--max-requests-inflight=-1", "--max-requests-inflight"),
        ("--store-limit=-1", "--store-limit"),
        ("--store-limit=much", "--store-limit"),
        ("--max-mutating-requests-inflight=x", "--max-mutating-requests-inflight"),
    ] {
        let refused = Command::new(binary()).args(["apiserver", flag]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{flag}: {}", text(&refused));
        assert!(text(&refused).contains(word), "{flag}: {}", text(&refused));
    }
}
