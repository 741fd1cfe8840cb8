//! Attacks from inside pods, each of which must fail.
//!
//! The program in the pods is this test itself: pods run programs of the host. Told so by its
//! environment, the test `attacker` makes every attempt and prints one line for each.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "attack_pods/attempts.rs"]
mod attempts;
mod common;

use std::path::{Path, PathBuf};

use attempts::{HostObjects, Outside};
use common::*;

const MAX_PIDS: i64 = 200;

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("ATTACK_{name}")).ok()
}

/// The program in the pods; by itself it is an empty test.
#[test]
fn attacker() {
    let number = |name: &str| variable(name).unwrap().parse::<i64>().unwrap();
    match variable("ROLE").as_deref() {
        Some("neighbour") => {
            attempts::leave_objects(number("NEIGHBOUR_KEY"), &variable("NAME").unwrap());
            println!("up");
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        Some("attacker") => {
            let outside = Outside {
                host_pid: number("HOST_PID"),
                data_dir: variable("DATA_DIR").unwrap().into(),
                home: variable("HOME").unwrap().into(),
                shm_key: number("SHM_KEY"),
                neighbour_key: number("NEIGHBOUR_KEY"),
                name: variable("NAME").unwrap(),
                max_pids: MAX_PIDS,
            };
            // The harness has begun a line.
            println!();
            for (name, act) in attempts::all() {
                let held = attempts::try_in_child(&outside, &act).is_ok();
                println!("{} {name}", if held { "HELD" } else { "BROKE" });
            }
        }
        _ => {}
    }
}

/// A directory that is seen by two paths, and the guard for it.
struct Bound(PathBuf);

impl Bound {
    fn new(source: &Path, target: &Path) -> Self {
        std::fs::create_dir_all(source).unwrap();
        std::fs::create_dir_all(target).unwrap();
        rustix::mount::mount_bind(source, target).unwrap();
        Self(target.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// This program, where every user may run it: a checkout can lie in a directory that only its owner may enter.
fn program_for_all(home: &Home) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let program = home.path().join("attacker");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    program
}

fn container(
    program: &Path,
    name: &str,
    context: &serde_json::Value,
    variables: &[(&str, String)],
) -> String {
    let env: Vec<serde_json::Value> = variables
        .iter()
        .map(|(name, value)| serde_json::json!({"name": format!("ATTACK_{name}"), "value": value}))
        .collect();
    let command =
        [program.to_str().unwrap(), "--exact", "attacker", "--nocapture", "--test-threads=1"];
    serde_json::json!({
        "name": name, "image": "host", "command": command, "env": env,
        "securityContext": context,
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
    })
    .to_string()
}

#[test]
fn no_attack_from_inside_a_pod_succeeds() {
    if !can_run("no_attack_from_inside_a_pod_succeeds") {
        return;
    }
    let home = Home::outside_tmp("atk");
    let programs = Home::outside_tmp("atk-exe");
    let exe = program_for_all(&programs);
    // The data directory is a bind mount of a directory that the root filesystem shows too.
    let bound = Bound::new(&home.path().join("real"), &home.path().join("b"));
    let pids = MAX_PIDS.to_string();
    let up = Instance::start(&home, "b/d", &["up", "--pod-max-pids", &pids]);
    let other = Instance::start(&home, "other", &["apiserver"]);
    let key = i64::from(std::process::id());
    let name = format!("longshore-attack-{key}");
    let _objects = HostObjects::new(0x100_0000 + key, &name);
    let variables = |role: &str, name: String| {
        vec![
            ("ROLE", role.to_owned()),
            ("NAME", name),
            ("HOST_PID", up.pid().to_string()),
            ("DATA_DIR", up.data_dir.display().to_string()),
            ("HOME", home.path().display().to_string()),
            ("SHM_KEY", (0x100_0000 + key).to_string()),
            ("NEIGHBOUR_KEY", (0x200_0000 + key).to_string()),
        ]
    };
    let (root, user) =
        (serde_json::json!({"runAsUser": 0}), serde_json::json!({"runAsUser": 1000}));
    // What the baseline of Pod Security lets a pod add.
    let baseline = serde_json::json!({"capabilities": {"add": ["MKNOD", "SETPCAP", "SETFCAP"]}});
    let restricted = serde_json::json!({"runAsUser": 1000, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let neighbour =
        container(&exe, "main", &root, &variables("neighbour", format!("{name}-neighbour")));
    let attack = variables("attacker", name.clone());
    let pod = |name: &str, init: &str, main: &str| {
        format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\", \"namespace\": \"default\"}}, \
             \"spec\": {{\"restartPolicy\": \"Never\", \"terminationGracePeriodSeconds\": 0, \"initContainers\": [{init}], \
             \"containers\": [{main}], \"volumes\": [{{\"name\": \"volume\", \"emptyDir\": {{}}}}]}}}}"
        )
    };
    let running = |pod: &serde_json::Value| pod["status"]["phase"] == "Running";
    up.apply(&pod("neighbour", "", &neighbour));
    up.wait("pod", "neighbour", "ran", running);
    let said = |container: &str, pod: &str| text(&up.cli(&["logs", pod, "-c", container]));
    eventually("the neighbour has left its objects", || said("main", "neighbour").contains("up"));

    let attackers = |names: &[(&str, &serde_json::Value)]| {
        let all = names.iter().map(|(name, context)| container(&exe, name, context, &attack));
        all.collect::<Vec<_>>().join(",")
    };
    let init = attackers(&[("init-root", &root), ("init-user", &user)]);
    up.apply(&pod("attacker", &init, &attackers(&[("root", &root)])));
    up.wait("pod", "attacker", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    for (name, context) in [("user", &user), ("baseline", &baseline), ("restricted", &restricted)] {
        up.apply(&pod(name, "", &attackers(&[("main", context)])));
        up.wait("pod", name, "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    }
    let (mut tried, mut broken) = (0, Vec::new());
    for (pod, container) in [
        ("attacker", "init-root"),
        ("attacker", "init-user"),
        ("attacker", "root"),
        ("user", "main"),
        ("baseline", "main"),
        ("restricted", "main"),
    ] {
        let log = said(container, pod);
        let lines =
            log.lines().filter(|line| line.starts_with("HELD ") || line.starts_with("BROKE "));
        let count = lines.clone().count();
        assert_eq!(count, attempts::all().len(), "{pod} {container} made every attempt:\n{log}");
        tried += count;
        let mut why = "";
        for line in log.lines() {
            if let Some(attempt) = line.strip_prefix("BROKE ") {
                broken.push(format!("{pod} {container}: {attempt}:{why}"));
            }
            why = line;
        }
    }
    longshore_testing::report(&format!(
        "attacks on pods: {tried} tried, {} held",
        tried - broken.len()
    ));
    assert!(attempts::all().len() >= 60);
    assert_eq!(broken, Vec::<String>::new());
    let uid = up.json("pod", "neighbour")["metadata"]["uid"].as_str().unwrap().to_owned();
    let none = Vec::<PathBuf>::new();
    assert_ne!(cgroups_of(&uid), none, "the neighbour still runs in its cgroups");
    assert_eq!((up.stop(), other.stop()), (Some(0), Some(0)));
    drop(bound);
    assert_eq!(cgroups_of(&uid), none);
    assert_eq!(processes_of(home.path()), Vec::<u32>::new());
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}

/// Cgroups of a pod, of any instance.
fn cgroups_of(uid: &str) -> Vec<PathBuf> {
    let bases = ["pids/longshore", "devices/longshore", "longshore"]
        .map(|base| Path::new("/sys/fs/cgroup").join(base));
    let instances = bases.iter().flat_map(|base| std::fs::read_dir(base).into_iter().flatten());
    instances.flatten().map(|dir| dir.path().join(uid)).filter(|dir| dir.exists()).collect()
}

/// A pod of one container with more in its spec, as JSON.
fn plain_pod(name: &str, script: &str, spec: &serde_json::Value) -> String {
    let mut pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "host", "command": ["/bin/sh", "-c", script]}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        match key.as_str() {
            "container" => pod["spec"]["containers"][0]["securityContext"] = value.clone(),
            _ => pod["spec"][key] = value.clone(),
        }
    }
    pod.to_string()
}

#[test]
fn a_pod_that_asks_for_isolation_that_there_is_not_fails_and_the_field_is_named() {
    if !can_run("a_pod_that_asks_for_isolation_that_there_is_not_fails_and_the_field_is_named") {
        return;
    }
    let home = Home::new("refused");
    let up = Instance::up(&home, "data");
    let localhost = serde_json::json!({"type": "Localhost", "localhostProfile": "x.json"});
    for (name, spec, field) in [
        ("host-pid", serde_json::json!({"hostPID": true}), "spec.hostPID"),
        ("host-ipc", serde_json::json!({"hostIPC": true}), "spec.hostIPC"),
        ("host-users", serde_json::json!({"hostUsers": false}), "spec.hostUsers"),
        ("share", serde_json::json!({"shareProcessNamespace": true}), "shareProcessNamespace"),
        (
            "sysctl",
            serde_json::json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            "kernel.msgmax",
        ),
        (
            "seccomp",
            serde_json::json!({"container": {"seccompProfile": localhost}}),
            "seccompProfile",
        ),
        (
            "apparmor",
            serde_json::json!({"container": {"appArmorProfile": localhost}}),
            "appArmorProfile",
        ),
        ("proc", serde_json::json!({"container": {"procMount": "Unmasked"}}), "procMount"),
    ] {
        let answer = up.cli_with(&["apply", "-f", "-"], &plain_pod(name, "echo ran", &spec));
        if !answer.status.success() {
            // Refused by the API already, which is as good when it says why.
            assert!(text(&answer).contains(field.trim_start_matches("spec.")), "{}", text(&answer));
            continue;
        }
        up.wait("pod", name, "failed", |pod| pod["status"]["phase"] == "Failed");
        up.event(name, &[field]);
        assert!(!text(&up.cli(&["logs", name])).contains("ran"), "{name} did not run");
    }
    up.stop_without_a_trace(&home);
}

#[test]
fn host_name_output_and_processes_are_the_pods_own_also_after_a_crash_of_the_agent() {
    if !can_run("host_name_output_and_processes_are_the_pods_own_also_after_a_crash_of_the_agent") {
        return;
    }
    let home = Home::new("own");
    let flags = ["up", "--container-log-max-size", "16Ki", "--container-log-max-files", "3"];
    let up = Instance::start(&home, "data", &flags);
    let script = "hostname; i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i of many; done; echo over; sleep 600";
    up.apply(&plain_pod("talker", script, &serde_json::json!({"hostname": "talks"})));
    up.apply(&plain_pod("on-node", "hostname", &serde_json::json!({"hostNetwork": true})));
    let aliases = serde_json::json!({"hostname": "h",
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["alias"]}]});
    up.apply(&plain_pod(
        "names",
        "cat /etc/hostname /proc/sys/kernel/hostname /etc/hosts",
        &aliases,
    ));
    up.wait("pod", "names", "ended", |pod| pod["status"]["phase"] == "Succeeded");
    let names = text(&up.cli(&["logs", "names"]));
    assert!(names.starts_with("h\nh\n") && names.ends_with("127.0.0.1\th\n192.0.2.1\talias\n"));
    eventually("all is said", || text(&up.cli(&["logs", "talker"])).contains("over"));
    up.wait("pod", "on-node", "ended", |pod| pod["status"]["phase"] == "Succeeded");
    let node = up.json("pod", "on-node")["spec"]["nodeName"].as_str().unwrap().to_owned();
    assert_eq!(text(&up.cli(&["logs", "on-node"])).trim(), node);

    // Only the newest lines are kept, in files that are no larger than they may be.
    let uid = up.json("pod", "talker")["metadata"]["uid"].as_str().unwrap().to_owned();
    let dir = up.data_dir.join(format!("nodes/{node}/pods/{uid}/logs"));
    let files: Vec<u64> = std::fs::read_dir(&dir)
        .unwrap()
        .flatten()
        .map(|one| one.metadata().unwrap().len())
        .collect();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|size| *size <= 16 * 1024), "{files:?}");
    let said = text(&up.cli(&["logs", "talker"]));
    assert!(said.ends_with("line 4999 of many\nline 5000 of many\nover\n"), "{said}");
    assert!(said.starts_with("line 4"), "a log begins at the beginning of a line: {said}");

    let before = cgroups_of(&uid);
    assert_ne!(before, Vec::<PathBuf>::new());
    up.kill();
    let up = Instance::start(&home, "data", &flags);
    up.wait("pod", "talker", "ran on", |pod| pod["status"]["phase"] == "Running");
    assert_eq!(cgroups_of(&uid), before, "adopted with its cgroups");
    assert!(up.cli(&["delete", "pod", "talker"]).status.success());
    up.wait("pod", "talker", "went", serde_json::Value::is_null);
    eventually("its cgroups go with it", || cgroups_of(&uid).is_empty());
    up.stop_without_a_trace(&home);
}
