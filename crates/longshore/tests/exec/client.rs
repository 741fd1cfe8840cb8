//! `longshore exec`, `attach` and `logs`, for people without kubectl.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::common::*;
use super::{SERVE, on_a_terminal, plain, start, stdout};

fn ours(up: &Instance, args: &[&str], stdin: &str) -> Output {
    run_with(Command::new(binary()).env("KUBECONFIG", &up.kubeconfig).args(args), stdin)
}

#[test]
fn our_own_exec_has_streams_codes_and_a_terminal() {
    if !can_run("our_own_exec_has_streams_codes_and_a_terminal") {
        return;
    }
    let home = Home::new("own-exec");
    let up = Instance::up(&home, "data");
    start(&up, &plain("web", SERVE, "", ""), &["web"]);
    let done = ours(&up, &["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], "");
    assert_eq!((stdout(&done).as_str(), done.status.code()), ("out\n", Some(3)));
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(err, "err\ncommand terminated with exit code 3\n");
    let done = ours(&up, &["exec", "-i", "web", "--", "sort"], "b\na\n");
    assert_eq!(stdout(&done), "a\nb\n", "{}", text(&done));
    let large = "0123456789abcde\n".repeat(1 << 21);
    let done = ours(&up, &["exec", "-i", "web", "--", "cat"], &large);
    assert!(done.stdout == large.as_bytes(), "{} bytes came back", done.stdout.len());
    let line = format!("{} exec -it web -- sh -c 'sleep 1; stty size'", binary().display());
    let seen = stdout(&on_a_terminal(&up, &line));
    assert!(seen.contains("33 111"), "{seen:?}");
    for (args, words) in [
        (
            &["exec", "none", "--", "true"][..],
            "cannot run a command in pod none: pods \"none\" not found",
        ),
        (
            &["exec", "web", "-c", "zzz", "--", "true"],
            "cannot run a command in pod web: container zzz is not valid for pod web",
        ),
        (&["attach", "none"], "cannot attach to pod none: pods \"none\" not found"),
        (&["exec", "web", "--", "no-such-program"], "executable file not found"),
    ] {
        let done = ours(&up, args, "");
        assert!(done.status.code() == Some(1) && text(&done).contains(words), "{}", text(&done));
    }
    up.stop_without_a_trace(&home);
}

#[test]
fn without_a_node_the_client_says_so_at_once() {
    if !can_run("without_a_node_the_client_says_so_at_once") {
        return;
    }
    let home = Home::new("no-node");
    let api = Instance::start(&home, "data", &["apiserver"]);
    api.apply(&plain("web", SERVE, "", "  nodeName: nowhere\n"));
    for args in [&["logs", "web", "-f"][..], &["exec", "web", "--", "true"], &["attach", "web"]] {
        let began = Instant::now();
        let done = ours(&api, args, "");
        assert_eq!(done.status.code(), Some(1), "{args:?}: {}", text(&done));
        assert!(text(&done).contains("no node of this server"), "{args:?}: {}", text(&done));
        assert!(began.elapsed() < Duration::from_secs(30), "{args:?} waited");
    }
    assert_eq!(api.stop(), Some(0));
}
