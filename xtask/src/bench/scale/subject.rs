//! The programs, and what is measured of each.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{Lifetime, Program};
use serde::Serialize;
use serde_json::{Value, json};

use super::objects::{
    self, DRIVER, NAMESPACE, attachment_name, claim_path, new_pod, node_name, node_of, nodes_for,
};
use crate::bench::{
    api::side::Side,
    http::{Connection, Server},
    load::send_all,
    process::{self, Peak},
};

/// How long a program may take until it has done something.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is asked for.
const LOOK: Duration = Duration::from_millis(5);
/// A program has nothing to do any more when it took no processor time for so long.
const QUIET: Duration = Duration::from_secs(3);

/// A program with work that shows that it is there.
pub struct Subject {
    pub name: &'static str,
    args: &'static [&'static str],
    /// Whether it talks to the driver.
    sidecar: bool,
    /// Makes work of this number, and says where its outcome can be seen.
    work: fn(&mut Connection, usize) -> Result<Outcome>,
}

/// What is there when the work is done.
enum Outcome {
    /// An object at this path.
    Made(String),
    /// No object at this path.
    Gone(String),
    /// Another version than this one.
    Changed(String, String),
}

pub const SUBJECTS: [Subject; 7] = [
    Subject { name: "provisioner", args: &["provisioner"], sidecar: true, work: provision },
    Subject { name: "attacher", args: &["attacher"], sidecar: true, work: attach },
    Subject { name: "resizer", args: &["resizer"], sidecar: true, work: resize },
    Subject {
        name: "binder",
        args: &["controllers", "--controllers=persistentvolume-binder-controller"],
        sidecar: false,
        work: bind,
    },
    Subject {
        name: "attach-detach",
        args: &["controllers", "--controllers=persistentvolume-attach-detach-controller"],
        sidecar: false,
        work: want,
    },
    Subject {
        name: "claim protection",
        args: &["controllers", "--controllers=persistentvolumeclaim-protection-controller"],
        sidecar: false,
        work: delete,
    },
    Subject { name: "all controllers", args: &["controllers"], sidecar: false, work: bind },
];

/// What one program showed among so many objects.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    pub name: &'static str,
    /// From its start until it has done the work that waited for it.
    pub first_work_seconds: f64,
    /// Until it had nothing to do any more.
    pub start_cpu_seconds: f64,
    pub start_bytes: u64,
    pub peak_kib: u64,
    pub idle_kib: u64,
    pub event_cpu_micros: f64,
    pub event_bytes: f64,
    /// From the first answer of an API server that was away until new work is done.
    pub recovery_seconds: f64,
}

/// Starts a program, measures it, and ends it.
pub fn measure(
    subject: &Subject,
    binary: &Path,
    side: &mut Side,
    volumes: usize,
    events: usize,
) -> Result<Figures> {
    let first = (subject.work)(&mut side.server.connect()?, unique(volumes))?;
    let mut program = start(subject, binary, side, volumes)?;
    let seen = observe(subject, &mut program, side, volumes, events, &first);
    let failed = || format!("{}; its log ends:\n{}", subject.name, program.tail());
    let figures = seen.with_context(failed)?;
    program.stop()?;
    Ok(figures)
}

fn start(subject: &Subject, binary: &Path, side: &Side, volumes: usize) -> Result<Program> {
    let mut command = Command::new(binary);
    command.args(subject.args).arg("--kubeconfig").arg(&side.kubeconfig);
    if subject.sidecar {
        command.arg("--csi-address").arg(side.dir().join("mock.sock"));
    } else {
        command.arg("--leader-elect=false");
    }
    if subject.name == "provisioner" {
        command.arg("--feature-gates=Topology=true");
    }
    command.env_remove("KUBECONFIG");
    let file = format!("{}-{volumes}.log", subject.name.replace(' ', "-"));
    Program::start(subject.name, command, &side.dir().join(file), Lifetime::Owner)
}

fn observe(
    subject: &Subject,
    program: &mut Program,
    side: &mut Side,
    volumes: usize,
    events: usize,
    first: &Outcome,
) -> Result<Figures> {
    let pid = program.pid();
    let (began, peak) = (Instant::now(), Peak::of(pid));
    wait(&mut side.server.connect()?, first)?;
    let first_work_seconds = began.elapsed().as_secs_f64();
    settle(pid)?;
    let start_cpu_seconds = process::precise_cpu_seconds(pid)?;
    let start_bytes = process::received_bytes(pid)?;
    let (peak_kib, idle_kib) = (peak.kib(), process::memory(pid)?.rss_kib);
    touch(&side.server, volumes, events)?;
    settle(pid)?;
    let event_cpu_micros = (process::precise_cpu_seconds(pid)? - start_cpu_seconds) * 1e6;
    let event_bytes = process::received_bytes(pid)?.saturating_sub(start_bytes) as f64;
    side.restart()?;
    let answered = Instant::now();
    let again = (subject.work)(&mut side.server.connect()?, unique(volumes))?;
    wait(&mut side.server.connect()?, &again)?;
    let recovery_seconds = answered.elapsed().as_secs_f64();
    anyhow::ensure!(program.runs(), "it ended by itself");
    Ok(Figures {
        name: subject.name,
        first_work_seconds,
        start_cpu_seconds,
        start_bytes,
        peak_kib,
        idle_kib,
        event_cpu_micros: event_cpu_micros / events as f64,
        event_bytes: event_bytes / events as f64,
        recovery_seconds,
    })
}

/// A number that no other work has.
fn unique(volumes: usize) -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % (volumes / 20) * 20
}

/// Waits until the program takes no processor time.
fn settle(pid: u32) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut before = process::precise_cpu_seconds(pid)?;
    loop {
        std::thread::sleep(QUIET);
        let now = process::precise_cpu_seconds(pid)?;
        // Leases and timers cost a little.
        if now - before < 0.02 * QUIET.as_secs_f64() {
            return Ok(());
        }
        before = now;
        anyhow::ensure!(Instant::now() < end, "it does not come to rest");
    }
}

/// Changes labels of claims, volumes, attachments and nodes: events that say nothing new.
fn touch(server: &Server, volumes: usize, events: usize) -> Result<()> {
    let numbers: Vec<String> = (0..events).map(|at| at.to_string()).collect();
    let stamp = std::process::id();
    send_all(server, &numbers, |connection, number| {
        let number: usize = number.parse().context("a number")?;
        let volume = number % volumes / 10 * 10;
        let node = node_name(number % nodes_for(volumes));
        let path = match number % 4 {
            0 => claim_path(&format!("claim-{volume}")),
            1 => format!("/api/v1/persistentvolumes/pv-{volume}"),
            2 => {
                let on = node_name(node_of(volume).unwrap_or_default());
                let name = attachment_name(&format!("handle-{volume}"), &on);
                format!("/apis/storage.k8s.io/v1/volumeattachments/{name}")
            }
            _ => format!("/api/v1/nodes/{node}"),
        };
        let label = format!("{stamp}-{number}-{}", fastrand());
        let patch = json!({"metadata": {"labels": {"touched": label}}});
        connection.call("PATCH", &path, Some(&patch)).map(drop)
    })
    .map(drop)
}

/// Makes labels of two rounds differ.
fn fastrand() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|since| since.as_nanos()).unwrap_or_default()
}

fn wait(connection: &mut Connection, outcome: &Outcome) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let done = match outcome {
            Outcome::Made(path) => connection.find(path)?.is_some(),
            Outcome::Gone(path) => connection.find(path)?.is_none(),
            Outcome::Changed(path, version) => connection
                .find(path)?
                .is_none_or(|object| object["metadata"]["resourceVersion"] != version.as_str()),
        };
        if done {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    bail!("its work was not done in time")
}

fn changed(path: String, object: &Value) -> Result<Outcome> {
    let version = object["metadata"]["resourceVersion"].as_str().context("a version")?;
    Ok(Outcome::Changed(path, version.to_owned()))
}

fn new_claim(connection: &mut Connection, name: &str, class: &str, extra: Value) -> Result<Value> {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}}});
    if let (Value::Object(extra), Value::Object(meta)) = (extra, &mut claim["metadata"]) {
        meta.extend(extra);
    }
    let path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    connection.call("POST", &path, Some(&claim))
}

fn name_for(what: &str, at: usize) -> String {
    format!("{what}-{at}-{}", fastrand())
}

/// A claim that asks for a volume.
fn provision(connection: &mut Connection, at: usize) -> Result<Outcome> {
    let annotations = json!({"annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER}});
    let claim = new_claim(connection, &name_for("wanted", at), "class-0", annotations)?;
    let uid = claim["metadata"]["uid"].as_str().context("a UID")?;
    Ok(Outcome::Made(format!("/api/v1/persistentvolumes/pvc-{uid}")))
}

/// An attachment. The driver does not know the volume, and saying so is work as well.
fn attach(connection: &mut Connection, at: usize) -> Result<Outcome> {
    let (name, volume) = (name_for("attach", at), at + 9);
    let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": name}, "spec": {"attacher": DRIVER, "nodeName": node_name(0),
            "source": {"persistentVolumeName": format!("pv-{volume}")}}});
    let all = "/apis/storage.k8s.io/v1/volumeattachments";
    let made = connection.call("POST", all, Some(&attachment))?;
    changed(format!("{all}/{name}"), &made)
}

/// A claim that asks for more.
fn resize(connection: &mut Connection, at: usize) -> Result<Outcome> {
    let path = claim_path(&format!("claim-{}", at + 8));
    let size = format!("{}Gi", 2 + fastrand() % 1_000_000);
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let made = connection.call("PATCH", &path, Some(&patch))?;
    changed(path, &made)
}

/// A claim, and a volume that is kept for it.
fn bind(connection: &mut Connection, at: usize) -> Result<Outcome> {
    let name = name_for("bound", at);
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "storageClassName": "by-hand", "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": NAMESPACE, "name": name},
            "csi": {"driver": DRIVER, "volumeHandle": name}}});
    connection.call("POST", "/api/v1/persistentvolumes", Some(&volume))?;
    let claim = new_claim(connection, &name, "by-hand", Value::Null)?;
    changed(claim_path(&name), &claim)
}

/// A pod that wants a volume that is not attached.
fn want(connection: &mut Connection, at: usize) -> Result<Outcome> {
    let (volume, node) = (at + 7, node_name(at / 20));
    let pod = new_pod(&name_for("new", at), &node, &format!("claim-{volume}"));
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    connection.call("POST", &path, Some(&pod))?;
    let name = attachment_name(&format!("handle-{volume}"), &node);
    Ok(Outcome::Made(format!("/apis/storage.k8s.io/v1/volumeattachments/{name}")))
}

/// A claim that nobody uses is deleted.
fn delete(connection: &mut Connection, at: usize) -> Result<Outcome> {
    let name = name_for("deleted", at);
    let held = json!({"finalizers": ["kubernetes.io/pvc-protection"]});
    new_claim(connection, &name, "by-hand", held)?;
    let path = objects::claim_path(&name);
    connection.call("DELETE", &path, None)?;
    Ok(Outcome::Gone(path))
}
