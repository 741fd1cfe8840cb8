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

/// What a reboot leaves: files, and neither processes nor mounts nor loop devices.
fn power_cut(home: &Home) {
    // Containers, too: with their shim and its guard gone at the same moment, nothing else would end them.
    let all = || [processes_of(home.path()), container_processes(home.path())].concat();
    eventually("all processes are gone", || {
        for pid in all() {
            let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
        all().is_empty()
    });
    eventually("all mounts are gone", || {
        for mount in mounts_below(home.path()).into_iter().rev() {
            let _ = std::process::Command::new("umount").arg(mount).output();
        }
        mounts_below(home.path()).is_empty()
    });
    eventually("all loop devices are gone", || {
        for device in loops_below(home.path()) {
            let _ = std::process::Command::new("losetup").args(["-d", &device]).output();
        }
        loops_below(home.path()).is_empty()
    });
}

/// Gives the numbers of the dead processes to a living one, as a new boot may.
fn reuse_pids(data_dir: &std::path::Path, pid: u32) -> usize {
    let mut changed = 0;
    for pods in std::fs::read_dir(data_dir.join("nodes")).unwrap().flatten() {
        for pod in std::fs::read_dir(pods.path().join("pods")).unwrap().flatten() {
            for file in std::fs::read_dir(pod.path().join("shim")).unwrap().flatten() {
                if file.path().extension().is_none_or(|extension| extension != "json") {
                    continue;
                }
                let text = std::fs::read(file.path()).unwrap();
                let mut record: serde_json::Value = serde_json::from_slice(&text).unwrap();
                record["pid"] = pid.into();
                std::fs::write(file.path(), record.to_string()).unwrap();
                changed += 1;
            }
        }
    }
    changed
}

/// A process that has nothing to do with any pod; ended with the value.
struct Stranger(std::process::Child);

impl Stranger {
    fn start() -> Self {
        let mut command = std::process::Command::new("sleep");
        let command = command.arg("600").stdout(std::process::Stdio::null());
        Self(command.stderr(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How often a pod has begun, and whether its data was as it had written it, by its own word.
fn begins(data_dir: &std::path::Path) -> Vec<String> {
    let mounts = mounts_below(data_dir).into_iter().filter(|mount| mount.ends_with("/mount"));
    mounts
        .map(|mount| std::fs::read_to_string(format!("{mount}/begins")).unwrap_or_default())
        .collect()
}

#[test]
fn a_reboot() {
    if !can_run("reboot") {
        return;
    }
    let home = Home::new("reboot");
    let up = Instance::up(&home, "data");
    let script = "cd /data; [ -e sum ] || { head -c 200000 /dev/urandom > blob && \
        sha256sum blob > sum; }; sha256sum -c sum >> begins; sync; trap exit TERM; \
        while :; do sleep 0.2; done";
    let pods =
        [("one", "longshore-local"), ("two", "longshore-shared"), ("three", "longshore-local")];
    for (name, class) in pods {
        up.apply(&claim(name, class));
        let yaml = pod(name, name, script);
        up.apply(&yaml.replace("restartPolicy: Never", "restartPolicy: Always"));
    }
    for (name, _) in pods {
        up.wait("pod", name, "ran", |pod| pod["status"]["phase"] == "Running");
    }
    let data_dir = up.data_dir.clone();
    eventually("all have begun", || begins(&data_dir) == ["blob: OK\n"; 3]);
    up.kill();
    power_cut(&home);
    // A process of the new boot that has nothing to do with any pod.
    let mut stranger = Stranger::start();
    assert_eq!(reuse_pids(&data_dir, stranger.0.id()), 6, "a shim and a run for each pod");

    let up = Instance::up(&home, "data");
    for (name, _) in pods {
        up.wait("pod", name, "runs again", |pod| {
            let status = &pod["status"]["containerStatuses"][0];
            pod["status"]["phase"] == "Running" && status["restartCount"] == 1
        });
    }
    eventually("all are on their old data", || begins(&data_dir) == ["blob: OK\nblob: OK\n"; 3]);
    assert_eq!(stranger.0.try_wait().unwrap(), None, "a process of somebody else was killed");
    // A volume is staged and published; each pod has its token in memory.
    assert_eq!((mounts_below(&data_dir).len(), loops_below(&data_dir).len()), (9, 3));

    for (name, _) in pods {
        assert!(up.cli(&["delete", "pod", name]).status.success());
        assert!(up.cli(&["delete", "pvc", name]).status.success());
    }
    eventually("the image files are gone", || images_below(&data_dir).is_empty());
    eventually("no mount is left", || mounts_below(&data_dir).is_empty());
    eventually("no loop device is left", || loops_below(&data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
    assert_eq!(processes_of(home.path()), Vec::<u32>::new());
}
