//! Streams that carry much, or nothing for a long time, and the containers they reach.

use std::io::{Read as _, Write as _};

use super::common::*;
use super::{SERVE, plain, spawn, start, stdout};

fn long() -> bool {
    std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1")
}

/// The most memory that a process has ever had, in MiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

// case: workloads/W112
/// 1 GiB with `LONGSHORE_LONG=1`, 128 MiB else.
#[test]
fn a_gibibyte_of_input_is_echoed_whole_and_memory_stays_flat() {
    if !can_kubectl("a_gibibyte_of_input_is_echoed_whole_and_memory_stays_flat") {
        return;
    }
    let home = Home::new("echo");
    let up = Instance::up(&home, "data");
    start(&up, &plain("web", SERVE, "", ""), &["web"]);
    let mib: u32 = if long() { 1024 } else { 128 };
    let mut client = spawn(&up, &["exec", "-i", "web", "--", "cat"]);
    let (mut input, mut output) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    // Every 4 bytes are another number, so that nothing can be lost or swapped unseen.
    let block = |nth: u32| -> Vec<u8> {
        (0..1u32 << 18).flat_map(|word| (nth << 18 | word).to_le_bytes()).collect()
    };
    let writer = std::thread::spawn(move || {
        for nth in 0..mib {
            input.write_all(&block(nth)).unwrap();
        }
    });
    let mut heard = vec![0; 1 << 20];
    let mut before = 0;
    for nth in 0..mib {
        output.read_exact(&mut heard).unwrap();
        assert!(heard == block(nth), "MiB {nth} differs");
        // What the first sixteenth needs, the rest needs, too.
        if nth == mib / 16 {
            before = peak(up.pid());
        }
    }
    writer.join().unwrap();
    assert_eq!(output.read(&mut heard).unwrap(), 0, "nothing comes after the last byte");
    assert!(client.wait().unwrap().success());
    let grown = peak(up.pid()) - before;
    assert!(grown <= 32, "{grown} MiB more after {mib} MiB");
    up.stop_without_a_trace(&home);
}

// case: workloads/W115
/// 5 min with `LONGSHORE_LONG=1`; else long enough for kubectl to ping twice.
#[test]
fn a_silent_command_outlives_the_pings_of_its_client() {
    if !can_kubectl("a_silent_command_outlives_the_pings_of_its_client") {
        return;
    }
    let home = Home::new("silent");
    let up = Instance::up(&home, "data");
    start(&up, &plain("web", SERVE, "", ""), &["web"]);
    let seconds = if long() { 300 } else { 12 };
    let script = format!("sleep {seconds}; echo alive");
    let done = up.kubectl(&["exec", "web", "--", "sh", "-c", &script]);
    assert_eq!(stdout(&done), "alive\n", "{}", text(&done));
    up.stop_without_a_trace(&home);
}

/// Ephemeral containers, which `up` does not run, are left of W118.
#[test]
fn commands_reach_init_containers_and_sidecars_while_they_run() {
    if !can_kubectl("commands_reach_init_containers_and_sidecars_while_they_run") {
        return;
    }
    let home = Home::new("inits");
    let up = Instance::up(&home, "data");
    let spec = "  initContainers:\n  \
                - {name: side, image: host, restartPolicy: Always, command: [/bin/sh, -c, \"trap 'exit 0' TERM; while true; do sleep 0.1; done\"]}\n  \
                - {name: first, image: host, command: [/bin/sh, -c, 'until [ -e /tmp/go ]; do sleep 0.1; done']}\n";
    up.apply(&plain("web", SERVE, "", spec));
    let running = |list: &str, nth: usize| {
        up.wait("pod", "web", "the container to run", |pod| {
            !pod["status"][list][nth]["state"]["running"].is_null()
        });
    };
    running("initContainerStatuses", 1);
    let told = up.kubectl(&["exec", "web", "-c", "main", "--", "true"]);
    assert!(text(&told).contains("container not found (\"main\")"), "{}", text(&told));
    let said = up.kubectl(&["exec", "web", "-c", "side", "--", "echo", "from the side"]);
    assert_eq!(stdout(&said), "from the side\n", "{}", text(&said));
    let told = up.kubectl(&["exec", "web", "-c", "first", "--", "touch", "/tmp/go"]);
    assert!(told.status.success(), "{}", text(&told));
    running("containerStatuses", 0);
    let over = up.kubectl(&["exec", "web", "-c", "first", "--", "true"]);
    assert!(text(&over).contains("container not found (\"first\")"), "{}", text(&over));
    for container in ["side", "main"] {
        let said = up.kubectl(&["exec", "web", "-c", container, "--", "echo", "here"]);
        assert_eq!(stdout(&said), "here\n", "{}", text(&said));
    }
    up.stop_without_a_trace(&home);
}
