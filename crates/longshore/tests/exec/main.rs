//! The real kubectl runs commands in pods, copies files, attaches and follows logs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod attach;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod isolation;
mod logs;
mod long_streams;

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use common::*;

/// Prints, says that it is up, and ends when it is told to.
const SERVE: &str = "trap 'exit 0' TERM; echo up; while true; do sleep 0.1; done";

/// A pod without volumes. `more` is YAML of the container, `spec` of the pod.
fn plain(name: &str, script: &str, more: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n{spec}  containers:\n  - name: main\n    image: host\n    \
         command: [/bin/sh, -c, {}]\n{more}",
        serde_json::Value::from(script)
    )
}

/// Applies a manifest and waits until its pods are ready.
fn start(up: &Instance, yaml: &str, pods: &[&str]) {
    up.apply(yaml);
    for pod in pods {
        up.wait("pod", pod, "ready", |pod| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.is_some_and(|all| {
                all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
            })
        });
    }
}

fn stdout(done: &Output) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A kubectl that goes on by itself.
fn spawn(up: &Instance, args: &[&str]) -> Child {
    Command::new("kubectl")
        .env("KUBECONFIG", &up.kubeconfig)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a command line on a terminal of 33 rows and 111 columns.
fn on_a_terminal(up: &Instance, line: &str) -> Output {
    Command::new("script")
        .env("KUBECONFIG", &up.kubeconfig)
        .args(["-qec", &format!("stty rows 33 cols 111; {line}"), "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

// case: workloads/W111, workloads/W113
#[test]
fn a_command_has_its_streams_and_its_exit_code() {
    if !can_kubectl("a_command_has_its_streams_and_its_exit_code") {
        return;
    }
    let home = Home::new("exec");
    let up = Instance::up(&home, "data");
    start(&up, &plain("web", SERVE, "", ""), &["web"]);
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("/etc/passwd", 126),
        ("no-such-program", 127),
        ("kill -9 $$", 137),
    ] {
        let done = up.kubectl(&["exec", "web", "--", "sh", "-c", script]);
        assert_eq!(done.status.code(), Some(code), "{script}: {}", text(&done));
    }
    let done = up.kubectl(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(done.stdout, b"out\n");
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(err, "err\ncommand terminated with exit code 3\n");

    let sorted = up.kubectl_with(&["exec", "-i", "web", "--", "sort"], "b\nc\na\n");
    assert_eq!(stdout(&sorted), "a\nb\nc\n");
    // A process that stays behind with the streams open does not hold the command up.
    let left = up.kubectl(&["exec", "web", "--", "sh", "-c", "sleep 1000 & echo done"]);
    assert_eq!(stdout(&left), "done\n");

    // case: workloads/W114
    let seen =
        on_a_terminal(&up, "kubectl exec -it web -- sh -c 'sleep 1; stty size; tty; echo $TERM'");
    let seen = stdout(&seen);
    assert!(seen.contains("33 111\r\n/dev/pts/"), "{seen:?}");
    let line = "(until kubectl exec web -- test -e /tmp/sizes; do sleep 0.1; done; \
                stty -F /dev/tty rows 22 cols 99) & \
                kubectl exec -it web -- sh -c 'sleep 1; stty size > /tmp/sizes; n=0; \
                until [ \"$(stty size)\" = \"22 99\" ] || [ $n = 300 ]; do sleep 0.1; n=$((n+1)); done; \
                stty size >> /tmp/sizes'";
    let ended = on_a_terminal(&up, line);
    assert!(ended.status.success(), "{}", text(&ended));
    let sizes = up.kubectl(&["exec", "web", "--", "cat", "/tmp/sizes"]);
    assert_eq!(stdout(&sizes), "33 111\n22 99\n", "{}", text(&sizes));
    let ended = on_a_terminal(&up, "kubectl exec -it web -- sh -c 'exit 5'");
    assert_eq!(ended.status.code(), Some(5));
    let missing = up.kubectl(&["exec", "web", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(1));
    let words = "\"no-such-program\": executable file not found";
    assert!(text(&missing).contains(words), "{}", text(&missing));
    up.stop_without_a_trace(&home);
}

/// What a kubectl does that knows no WebSocket, as before 1.29.
fn over_spdy(up: &Instance, args: &[&str]) -> Output {
    Command::new("kubectl")
        .env("KUBECONFIG", &up.kubeconfig)
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

// case: workloads/W116, workloads/W124
#[test]
fn refusals_reach_the_user_in_the_words_of_kubernetes() {
    if !can_kubectl("refusals_reach_the_user_in_the_words_of_kubernetes") {
        return;
    }
    let home = Home::new("exec-refusals");
    let up = Instance::up(&home, "data");
    let two = plain("two", SERVE, "", "").replace(
        "  containers:\n",
        "  containers:\n  - {name: side, image: host, command: [sleep, '1000']}\n",
    );
    start(&up, &format!("{two}---\n{}", plain("web", SERVE, "", "")), &["web", "two"]);
    up.apply("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader, namespace: default}\nrules:\n- {apiGroups: [''], resources: [pods, pods/exec], verbs: [get]}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: reader, namespace: default}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}\nsubjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]\n");
    for (args, words) in [
        (&["exec", "none", "--", "true"][..], "pods \"none\" not found"),
        (&["exec", "web", "-c", "zzz", "--", "true"], "container zzz is not valid for pod web"),
        (
            &["exec", "web", "--as=jane", "--", "true"],
            "cannot create resource \"pods/exec\" in API group",
        ),
        (&["port-forward", "web", "1:2"], "longshore up does not serve pods/portforward"),
        (
            &["create", "deployment", "x", "--image=y"],
            "longshore up does not serve deployments.apps",
        ),
    ] {
        let done = up.kubectl(args);
        assert!(!done.status.success(), "{args:?}: {}", text(&done));
        assert!(text(&done).contains(words), "{args:?}: {}", text(&done));
        // A kubectl that speaks SPDY alone is refused in the same words.
        let old = over_spdy(&up, args);
        assert!(!old.status.success(), "{args:?}: {}", text(&old));
        assert_eq!(text(&old), text(&done), "{args:?}");
    }
    let old = over_spdy(&up, &["exec", "web", "--", "true"]);
    assert!(!old.status.success() && text(&old).contains("need WebSocket"), "{}", text(&old));
    // kubectl chooses the first container itself and says so.
    let chosen = up.kubectl(&["exec", "two", "--", "true"]);
    assert!(
        chosen.status.success() && text(&chosen).contains("Defaulted container"),
        "{}",
        text(&chosen)
    );
    up.stop_without_a_trace(&home);
}

#[test]
fn a_file_of_100_mib_is_copied_both_ways() {
    if !can_kubectl("a_file_of_100_mib_is_copied_both_ways") {
        return;
    }
    let home = Home::new("cp");
    let up = Instance::up(&home, "data");
    start(&up, &plain("web", SERVE, "", ""), &["web"]);
    let (there, back) = (home.path().join("there"), home.path().join("back"));
    let mut content = vec![0; 100 << 20];
    fastrand::Rng::with_seed(7).fill(&mut content);
    std::fs::write(&there, &content).unwrap();
    let (there, back) = (there.display().to_string(), back.display().to_string());
    let done = up.kubectl(&["cp", &there, "web:/tmp/file"]);
    assert!(done.status.success(), "{}", text(&done));
    let sum = |command: &mut Command| {
        let done = command.output().unwrap();
        stdout(&done).split_whitespace().next().map(str::to_owned)
    };
    let expected = sum(Command::new("sha256sum").arg(&there));
    let inside = up.kubectl(&["exec", "web", "--", "sha256sum", "/tmp/file"]);
    assert_eq!(stdout(&inside).split_whitespace().next().map(str::to_owned), expected);
    let done = up.kubectl(&["cp", "web:/tmp/file", &back]);
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(sum(Command::new("sha256sum").arg(&back)), expected);

    up.stop_without_a_trace(&home);
}

// case: workloads/W117
#[test]
fn a_tree_is_copied_both_ways_and_without_tar_the_error_says_so() {
    if !can_kubectl("a_tree_is_copied_both_ways_and_without_tar_the_error_says_so") {
        return;
    }
    let home = Home::new("cp-tree");
    let up = Instance::up(&home, "data");
    let no_path = "    env: [{name: PATH, value: /nowhere}]\n";
    let bare = plain("bare", "while true; do /bin/sleep 1; done", no_path, "");
    start(&up, &format!("{}---\n{bare}", plain("web", SERVE, "", "")), &["web", "bare"]);
    let (tree, back) = (home.path().join("tree"), home.path().join("back"));
    std::fs::create_dir_all(tree.join("below/empty")).unwrap();
    std::fs::write(tree.join("below/file"), "text").unwrap();
    std::fs::write(tree.join("program"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(tree.join("program"), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("below/file", tree.join("link")).unwrap();
    let (there, back) = (tree.display().to_string(), back.display().to_string());
    let done = up.kubectl(&["cp", &there, "web:/tmp/tree"]);
    assert!(done.status.success(), "{}", text(&done));
    let look = "cd /tmp/tree && find . -printf '%P %y %m %l\n' | sort && cat link";
    let seen = stdout(&up.kubectl(&["exec", "web", "--", "sh", "-c", look]));
    let here = look.replace("/tmp/tree", &there);
    let own = Command::new("sh").args(["-c", &here]).output().unwrap();
    assert_eq!(seen, stdout(&own), "up");
    // kubectl leaves links out on the way down, and says so.
    let done = up.kubectl(&["cp", "web:/tmp/tree", &back]);
    assert!(done.status.success(), "{}", text(&done));
    assert!(text(&done).contains("skipping symlink"), "{}", text(&done));
    std::fs::remove_file(tree.join("link")).unwrap();
    let differs = Command::new("diff").args(["-r", &there, &back]).output().unwrap();
    assert!(differs.status.success(), "{}", text(&differs));
    for args in [["cp", "bare:/etc/passwd", &back], ["cp", &there, "bare:/tmp/tree"]] {
        let done = up.kubectl(&args);
        assert!(!done.status.success(), "{args:?}: {}", text(&done));
        let words = "\"tar\": executable file not found";
        assert!(text(&done).contains(words), "{args:?}: {}", text(&done));
    }
    up.stop_without_a_trace(&home);
}

/// Processes whose command line has this word.
fn processes_with(word: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| {
            let line = String::from_utf8_lossy(line);
            line.contains(word) && !line.contains("kubectl")
        })
        .count()
}

// case: workloads/W123
#[test]
fn a_command_ends_with_its_client_and_with_its_pod() {
    if !can_kubectl("a_command_ends_with_its_client_and_with_its_pod") {
        return;
    }
    let home = Home::new("exec-ends");
    let up = Instance::up(&home, "data");
    start(&up, &plain("web", SERVE, "", ""), &["web"]);
    let word = format!("86{}", std::process::id());
    let script = format!("sleep {word}; true");
    for on_terminal in [false, true] {
        let mut client = match on_terminal {
            false => spawn(&up, &["exec", "web", "--", "sh", "-c", &script]),
            true => Command::new("script")
                .env("KUBECONFIG", &up.kubeconfig)
                .args([
                    "-qec",
                    &format!("exec kubectl exec -it web -- sh -c '{script}'"),
                    "/dev/null",
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        };
        // The shell and its child.
        eventually("the command runs", || processes_with(&format!("sleep\0{word}")) == 1);
        client.kill().unwrap();
        client.wait().unwrap();
        eventually("nothing of it is left", || processes_with(&word) == 0);
    }
    let client = spawn(&up, &["exec", "web", "--", "sleep", &word]);
    eventually("the command runs", || processes_with(&word) == 1);
    let deleted = up.kubectl(&["delete", "pod", "web"]);
    assert!(deleted.status.success(), "{}", text(&deleted));
    let ended = client.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(137), "{}", text(&ended));
    up.stop_without_a_trace(&home);
}

#[test]
fn commands_run_on_nodes_that_are_processes_of_their_own() {
    if !can_kubectl("commands_run_on_nodes_that_are_processes_of_their_own") {
        return;
    }
    let home = Home::new("exec-nodes");
    let up = Instance::start(&home, "data", &["up", "--nodes", "2"]);
    let nodes = stdout(&up.kubectl(&["get", "nodes", "-o", "name"]));
    let names: Vec<&str> = nodes.lines().filter_map(|line| line.strip_prefix("node/")).collect();
    assert_eq!(names.len(), 2, "{nodes}");
    for name in names {
        let selector = format!("  nodeSelector: {{kubernetes.io/hostname: {name}}}\n");
        let pod = format!("on-{name}");
        start(&up, &plain(&pod, SERVE, "", &selector), &[&pod]);
        let done = up.kubectl(&["exec", &pod, "--", "hostname"]);
        assert_eq!(stdout(&done), format!("{pod}\n"), "{}", text(&done));
    }
    up.stop_without_a_trace(&home);
}
