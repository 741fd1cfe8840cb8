//! A command has the isolation of its container, and no less.

use std::process::Output;

use super::common::*;
use super::{SERVE, plain, start, stdout};

/// What the kernel says of a process: rights, limits, groups, namespaces.
const SHOW: &str = "cd /proc/$1 && grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' status && cat limits cgroup && \
                    readlink root && for one in mnt pid ipc uts net cgroup user; do readlink ns/$one; done; \
                    tr '\\0' '\\n' < environ | grep -E '^(FOO|PATH)='";

/// A command in a pod, with all that it printed.
fn exec(up: &Instance, pod: &str, command: &[&str]) -> Output {
    // A kubectl before 1.36 reads before it knows its streams, and on a busy machine drops what comes first.
    for _ in 0..5 {
        let done = up.kubectl(&[&["exec", pod, "--"], command].concat());
        if !text(&done).contains("Unknown stream id") {
            return done;
        }
    }
    panic!("{pod}: kubectl drops output again and again");
}

/// The command's view of a process.
fn view(up: &Instance, pod: &str, pid: &str) -> String {
    let done = exec(up, pod, &["sh", "-c", SHOW, "sh", pid]);
    assert!(done.status.success(), "{pod}: {}", text(&done));
    stdout(&done)
}

// case: workloads/W122
#[test]
fn a_command_is_isolated_as_its_container() {
    if !can_kubectl("a_command_is_isolated_as_its_container") {
        return;
    }
    let home = Home::new("exec-isolation");
    let up = Instance::up(&home, "data");
    let env = "    env: [{name: FOO, value: bar}]\n    workingDir: /usr\n";
    let with = |context: &str| format!("{env}    securityContext: {context}\n");
    let fs_group = "  securityContext: {fsGroup: 2000, supplementalGroups: [3000]}\n";
    let pods = [
        ("root", with("{}"), ""),
        (
            "user",
            with("{runAsUser: 1000, runAsGroup: 1001, allowPrivilegeEscalation: false}"),
            fs_group,
        ),
        ("bare", with("{capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true}"), ""),
        ("open", with("{seccompProfile: {type: Unconfined}, capabilities: {add: [NET_RAW]}}"), ""),
        ("whole", with("{privileged: true}"), ""),
    ];
    for (name, container, spec) in &pods {
        start(&up, &plain(name, SERVE, container, spec), &[name]);
        let (own, beside) = (view(&up, name, "1"), view(&up, name, "self"));
        assert_eq!(own, beside, "{name}");
        assert!(own.contains("FOO=bar"), "{own}");
        let done = exec(&up, name, &["pwd"]);
        assert_eq!(stdout(&done), "/usr\n", "{name}");
    }
    let ids = stdout(&exec(&up, "user", &["sh", "-c", "id -u; id -g; id -G"]));
    assert_eq!(ids, "1000\n1001\n1001 2000 3000\n");
    let words = stdout(&exec(&up, "user", &["sh", "-c", "echo x > /dev/stdout"]));
    assert_eq!(words, "x\n", "the user owns its streams");

    // The command holds nothing of the shim, and its container cannot look into it before its program runs.
    let open = stdout(&exec(&up, "root", &["sh", "-c", "ls /proc/self/fd | wc -l"]));
    assert_eq!(open, "4\n", "three streams, and the directory that is read");
    let done = exec(&up, "root", &["sh", "-c", "echo b > /proc/sys/kernel/core_pattern"]);
    assert!(!done.status.success(), "{}", text(&done));
    let done = exec(&up, "bare", &["touch", "/x"]);
    assert!(text(&done).contains("Read-only file system"), "{}", text(&done));
    up.stop_without_a_trace(&home);
}
