//! Damage: every file of a data directory missing, empty, cut in half, or with one bit changed.
//!
//! The promise: what is damaged is refused or isolated by name, and never served as if it were whole.
//! Pods' own data and logs are theirs and are left out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use longshore_testing::{Need, need, report, without_volumes_of_others};
use serde_json::Value;

/// In how many places a bit is changed, one at a time.
const PLACES: u64 = 16;
/// How many instances are started at a time.
const WORKERS: usize = 3;

/// One way to damage a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Missing,
    Empty,
    Half,
    /// One bit, at this sixteenth of the file.
    Bit(u64),
}

impl Damage {
    fn all() -> Vec<Self> {
        let bits = (0..PLACES).map(Self::Bit);
        [Self::Missing, Self::Empty, Self::Half].into_iter().chain(bits).collect()
    }

    /// Whether it changes a file of this length.
    fn harms(self, length: u64) -> bool {
        length > 0 || matches!(self, Self::Missing)
    }

    fn apply(self, path: &Path) {
        let file = || fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let length = fs::metadata(path).unwrap().len();
        match self {
            Self::Missing => fs::remove_file(path).unwrap(),
            Self::Empty => file().set_len(0).unwrap(),
            Self::Half => file().set_len(length / 2).unwrap(),
            Self::Bit(sixteenth) => {
                // Of what was written: a log is longer than its frames.
                let used = used_bytes(path).max(1);
                let at = (used * sixteenth / PLACES).min(length.saturating_sub(1));
                let mut byte = [0];
                file().read_exact_at(&mut byte, at).unwrap();
                byte[0] ^= 1;
                file().write_all_at(&byte, at).unwrap();
            }
        }
    }
}

/// Bytes up to the last one that is not zero.
fn used_bytes(path: &Path) -> u64 {
    let content = fs::read(path).unwrap();
    content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// What an instance said when it was started on a damaged directory.
enum Start {
    Ready(Child),
    Refused(String),
}

fn start(data: &Path, log: &Path) -> Start {
    let file = fs::File::create(log).unwrap();
    let mut child = Command::new(binary())
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    if line.starts_with("ready ") {
        return Start::Ready(child);
    }
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(1), "{}", fs::read_to_string(log).unwrap());
    Start::Refused(fs::read_to_string(log).unwrap())
}

/// Ends an instance that has no pods; it needs no farewell.
fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Every file of the instance: not sockets, not pods' own directories.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            let path = entry.path();
            if kind.is_dir() && !path.ends_with("pods") {
                todo.push(path);
            } else if kind.is_file() && !kind.is_socket() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg("--sparse=always").args([from, to]).status();
    assert!(done.unwrap().success());
}

fn get(kubeconfig: &Path, kind: &str) -> Value {
    let done = Command::new(binary())
        .args(["get", kind, "-A", "-o", "json", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .unwrap();
    serde_json::from_slice(&done.stdout).unwrap_or_default()
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn damage_to_any_file_is_refused_or_isolated_and_never_served() {
    if !can_run("a-damage") {
        return;
    }
    let home = Home::new("a-damage");
    let up = Instance::up(&home, "data");
    for index in 0..3 {
        up.apply(&claim(&format!("c{index}"), "longshore-local-immediate"));
        up.bound(&format!("c{index}"));
    }
    up.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: default}\ndata: {a: b}\n");
    assert_eq!(up.stop(), Some(0));
    let whole = home.path().join("data");
    let mut cases = Vec::new();
    for file in files(&whole) {
        let relative = file.strip_prefix(&whole).unwrap().to_owned();
        // A volume's bytes are its pod's own.
        if relative.extension().is_none_or(|extension| extension != "img") {
            let length = fs::metadata(&file).unwrap().len();
            let harmful = Damage::all().into_iter().filter(|damage| damage.harms(length));
            cases.extend(harmful.map(|damage| (relative.clone(), damage)));
        }
    }
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (home, whole, cases, next, verdicts) = (&home, &whole, &cases, &next, &verdicts);
            scope.spawn(move || {
                while let Some((file, damage)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let data = home.path().join(format!("d{worker}"));
                    copy(whole, &data);
                    damage.apply(&data.join(file));
                    let verdict = judge(&data, file);
                    fs::remove_dir_all(&data).unwrap();
                    verdicts
                        .lock()
                        .unwrap()
                        .push((format!("{} {damage:?}", file.display()), verdict));
                }
            });
        }
    });
    let verdicts = verdicts.into_inner().unwrap();
    let count = |wanted: &Verdict| verdicts.iter().filter(|(_, one)| one == wanted).count();
    let (refused, isolated) = (count(&Verdict::Refused), count(&Verdict::Isolated));
    let lies: Vec<_> = verdicts.iter().filter(|(_, one)| matches!(one, Verdict::Lie(_))).collect();
    report(&format!(
        "damage: {} tried, {} held ({refused} refused, {isolated} isolated, {} without effect)",
        verdicts.len(),
        verdicts.len() - lies.len(),
        count(&Verdict::Unharmed)
    ));
    assert!(lies.is_empty(), "{lies:#?}");
    assert!(refused > 100 && isolated > 20, "{refused} refused, {isolated} isolated");
}

/// What a start made of a damaged file.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Refused,
    Isolated,
    Unharmed,
    Lie(String),
}

fn judge(data: &Path, file: &Path) -> Verdict {
    let log = data.with_extension("log");
    match start(data, &log) {
        Start::Refused(text) if text.contains(file.file_name().unwrap().to_str().unwrap()) => {
            Verdict::Refused
        }
        Start::Refused(text) => Verdict::Lie(format!("refused without naming the file: {text}")),
        Start::Ready(child) => {
            let kubeconfig = data.join("kubeconfig");
            let claims = names(&get(&kubeconfig, "pvc"));
            let maps = names(&get(&kubeconfig, "configmaps"));
            end(child);
            let log = fs::read_to_string(&log).unwrap();
            if claims != ["c0", "c1", "c2"] || !maps.iter().any(|name| name == "kept") {
                Verdict::Lie(format!("served {claims:?} and {maps:?}: {log}"))
            } else if log.contains("out of service") || log.contains("left alone") {
                Verdict::Isolated
            } else {
                Verdict::Unharmed
            }
        }
    }
}

#[test]
fn a_damaged_volume_record_takes_its_volume_out_of_service_with_an_event() {
    if !can_run("a-record") {
        return;
    }
    let home = Home::new("a-record");
    let up = Instance::up(&home, "data");
    for name in ["good", "bad"] {
        up.apply(&claim(name, "longshore-local-immediate"));
    }
    let handle = up.bound("bad")["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned();
    up.bound("good");
    assert_eq!(up.stop(), Some(0));
    let pools = fs::read_dir(home.path().join("data/pool")).unwrap().flatten();
    let record =
        pools.map(|pool| pool.path().join(format!("{handle}.json"))).find(|path| path.exists());
    let record = record.unwrap();
    let content = fs::read(&record).unwrap();
    fs::write(&record, &content[..content.len() / 2]).unwrap();

    let up = Instance::up(&home, "data");
    up.apply(&pod("fine", "good", "echo works > /data/f && cat /data/f"));
    up.wait("pod", "fine", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    up.apply(&pod("hurt", "bad", "true"));
    up.event("hurt", &["FailedMount", "record is unusable"]);
    up.delete("pod", "hurt");
    // Restored, it serves again.
    fs::write(&record, &content).unwrap();
    up.apply(&pod("healed", "bad", "true"));
    up.wait("pod", "healed", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    for name in ["fine", "healed"] {
        up.delete("pod", name);
    }
    up.stop_without_a_trace(&home);
}

#[test]
fn a_full_disk_does_not_keep_an_instance_from_starting_to_read() {
    if !can_run("a-full") {
        return;
    }
    let home = Home::new("a-full");
    let (image, mount) = (home.path().join("disk"), home.path().join("m"));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir(&mount).unwrap();
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).output().unwrap();
        assert!(done.status.success(), "{program}: {}", text(&done));
    };
    let (image, mount_text) = (image.display().to_string(), mount.display().to_string());
    run("mkfs.ext4", &["-q", "-m", "0", &image]);
    run("mount", &["-o", "loop", &image, &mount_text]);
    let up = Instance::up(&home, "m/data");
    up.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: default}\ndata: {a: b}\n");
    up.kill();
    let filler = mount.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    let block = vec![1; 1 << 12];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    drop(file);
    // A second start on the full disk, on another port than the first.
    let up = Instance::up(&home, "m/data");
    assert_eq!(up.json("configmap", "kept")["data"]["a"], "b");
    let refused = up.cli_with(
        &["apply", "-f", "-"],
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: large, namespace: default}}\ndata: {{a: {}}}\n",
            "x".repeat(600_000)
        ),
    );
    assert!(!refused.status.success(), "{}", text(&refused));
    fs::remove_file(&filler).unwrap();
    up.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: later, namespace: default}\ndata: {a: b}\n");
    assert_eq!(up.stop(), Some(0));
    run("umount", &[&mount_text]);
}

#[test]
fn sockets_that_vanish_are_made_anew_while_pods_come_and_go() {
    if !can_run("a-sock") {
        return;
    }
    let home = Home::new("a-sock");
    let up = Instance::up(&home, "data");
    up.apply(&claim("c", "longshore-local"));
    let node = fs::read_dir(up.data_dir.join("nodes")).unwrap().flatten().next().unwrap().path();
    let driver = "local.csi.longshore.dev";
    let csi = node.join("plugins").join(driver).join("csi.sock");
    let registration = node.join("plugins_registry").join(format!("{driver}-reg.sock"));
    for (round, socket) in [&csi, &registration, &csi].into_iter().enumerate() {
        fs::remove_file(socket).unwrap();
        eventually("the socket is there again", || socket.exists());
        let name = format!("p{round}");
        up.apply(&pod(&name, "c", "true"));
        up.wait("pod", &name, "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
        up.delete("pod", &name);
    }
    up.stop_without_a_trace(&home);
}

#[test]
fn too_few_descriptors_end_the_start_with_a_sentence() {
    if !can_run("a-fd") {
        return;
    }
    let home = Home::new("a-fd");
    for limit in [24, 40, 64] {
        let done = Command::new("sh")
            .arg("-c")
            .arg(format!(
                "ulimit -n {limit}; exec \"$0\" up --listen 127.0.0.1:0 --data-dir \"$1\""
            ))
            .arg(binary())
            .arg(home.path().join("data"))
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(1), "{limit}: {}", text(&done));
        assert!(text(&done).contains("files may be open"), "{limit}: {}", text(&done));
    }
}

#[test]
fn a_stop_that_leaves_a_device_behind_names_it_and_its_holder() {
    if !can_run("a-left") || !need("a-left", &[Need::Tool("unshare")]) {
        return;
    }
    let home = Home::new("a-left");
    let up = Instance::start(&home, "data", &["up", "--stop-timeout", "1s"]);
    up.apply(&claim("c", "longshore-local"));
    up.apply(&pod("p", "c", "echo up; sleep 1000"));
    up.wait("pod", "p", "ran", |pod| pod["status"]["phase"] == "Running");
    // A foreign mount namespace that copied the mounts, as a container runtime's might.
    let script = without_volumes_of_others(home.path()) + "exec sleep 1000";
    let mut holder = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let device = loops_below(home.path()).first().cloned().unwrap();
    let name = format!("/proc/{}/comm", holder.id());
    eventually("the holder has the mounts", || {
        fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
    });
    let log = home.path().join("data.log");
    let code = up.stop();
    let said = fs::read_to_string(&log).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&device) && said.contains("(sleep)"), "{said}");
    let up = Instance::up(&home, "data");
    up.delete("pod", "p");
    up.stop_without_a_trace(&home);
}

#[test]
fn files_have_the_right_modes_under_any_umask() {
    if !can_run("a-mask") {
        return;
    }
    for mask in ["000", "027", "077"] {
        let home = Home::new("a-mask");
        let data = home.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        let log = fs::File::create(home.path().join("log")).unwrap();
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("umask {mask}; exec \"$0\" up --listen 127.0.0.1:0 --data-dir \"$1\""))
            .arg(binary())
            .arg(&data)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert!(line.starts_with("ready "), "{line}");
        let mut todo = vec![data];
        while let Some(path) = todo.pop() {
            let found = fs::symlink_metadata(&path).unwrap();
            let mode = found.permissions().mode() & 0o7777;
            assert_eq!(mode & 0o022, 0, "umask {mask}: {} is {mode:o}", path.display());
            let private = ["api", "kubeconfig", "lock"].iter().any(|name| path.ends_with(name));
            assert!(!private || mode & 0o077 == 0, "umask {mask}: {} is {mode:o}", path.display());
            if found.is_dir() {
                todo.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
            }
        }
        end(child);
    }
}
