//! A cluster with thousands of snapshots, and programs that have just been started.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{Cluster, Options, tools::Tool};
use serde_json::{Value, json};

use super::super::{
    attach::{DRIVER, Mock, mock_driver},
    http::{Connection, Server},
    kubeconfig::Kubeconfig,
    load::{self, NAMESPACE, send_all},
    process, release_binary,
    seen::Seen,
};
use super::{
    Args,
    objects::{CLASS, GROUP, make_bound, make_class, numbered, snapshot, snapshots},
    pair::define,
    programs::{Pair, Side},
};

/// How long programs are left alone before their memory is read.
const QUIET: Duration = Duration::from_secs(15);

pub(super) fn turn(args: &Args) -> Result<Vec<(String, f64)>> {
    crate::setup::build(&[Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl])?;
    let (ours, mock) = (release_binary()?, mock_driver()?);
    let cluster = Cluster::start(&Options {
        etcd_without_fsync: true,
        interrupt: Some(crate::interrupt::flag()?),
        ..Options::default()
    })?;
    define(&cluster)?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    load::make_namespace(&server)?;
    make_class(&server, DRIVER)?;
    let mock = Mock::start(&mock, cluster.dir(), 1)?;
    make_bound(&server, DRIVER, &["one".to_owned()], &mock.handles)?;
    let side = Side { ours: Some(&ours), flags: &[] };
    let start = || Pair::start(&side, cluster.dir(), cluster.kubeconfig(), &mock.socket);
    let empty = memory(start()?)?;
    fill(&server, args.existing)?;
    let full = memory(start()?)?;
    let (asked, ready) = first_new(&server, start)?;
    mock.program.stop()?;
    cluster.stop()?;
    let objects = args.existing as f64;
    let each = |at: usize, objects: f64| (full[at] - empty[at]) / objects;
    let label = |what: &str| format!("{0} + {0} existing: {what}", args.existing);
    Ok(vec![
        (label("the first new one is asked for, s after start"), asked),
        (label("the first new one is ready, s after start"), ready),
        (label("controller, KiB an object"), each(0, 2.0 * objects)),
        (label("snapshotter, KiB an object"), each(1, objects)),
    ])
}

/// What both hold after a while, in KiB; then they end.
fn memory(pair: Pair) -> Result<[f64; 2]> {
    std::thread::sleep(QUIET);
    let held = |pid| -> Result<f64> { Ok(process::resident_and_anonymous(pid)?.1 as f64) };
    let held = [held(pair.controller.pid())?, held(pair.snapshotter.pid())?];
    pair.stop()?;
    Ok(held)
}

/// Snapshots with their contents, as both programs leave them.
fn fill(server: &Server, count: usize) -> Result<()> {
    send_all(server, &numbered("old", count), old_one).map(drop)
}

fn old_one(connection: &mut Connection, name: &str) -> Result<()> {
    const AS_SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
    const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
    const CONTENT: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    let mut one = snapshot(name, "one", Some(CLASS));
    one["metadata"]["finalizers"] = json!([AS_SOURCE, BOUND]);
    let path = snapshots();
    let made = connection.call("POST", &path, Some(&one))?;
    let uid = made["metadata"]["uid"].as_str().context("a uid")?;
    let content = format!("snapcontent-{uid}");
    let contents = format!("{GROUP}/volumesnapshotcontents");
    let object = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": content, "finalizers": [CONTENT]},
        "spec": {"driver": DRIVER, "deletionPolicy": "Delete", "sourceVolumeMode": "Filesystem",
            "source": {"volumeHandle": "any"}, "volumeSnapshotClassName": CLASS,
            "volumeSnapshotRef": {"apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshot", "namespace": NAMESPACE, "name": name, "uid": uid}}});
    connection.call("POST", &contents, Some(&object))?;
    let status = json!({"status": {"snapshotHandle": format!("handle-of-{name}"),
        "readyToUse": true, "restoreSize": 1 << 20, "creationTime": 1_700_000_000_000_000_000_i64}});
    connection.call("PATCH", &format!("{contents}/{content}/status"), Some(&status))?;
    let status = json!({"status": {"boundVolumeSnapshotContentName": content, "readyToUse": true,
        "restoreSize": "1Mi", "creationTime": "2023-11-14T22:13:20Z"}});
    connection.call("PATCH", &format!("{path}/{name}/status"), Some(&status)).map(drop)
}

/// What is seen of the content of the new snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    /// The driver is about to be asked.
    Asked,
    Ready,
}

fn happened(event: &Value) -> Option<Happened> {
    const NOTE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    let content = &event["object"];
    if content["status"]["readyToUse"] == true {
        return Some(Happened::Ready);
    }
    (!content["metadata"]["annotations"][NOTE].is_null()).then_some(Happened::Asked)
}

/// Seconds from the programs' start until the driver was asked for a new snapshot, and until that was ready.
fn first_new(server: &Server, start: impl Fn() -> Result<Pair>) -> Result<(f64, f64)> {
    let contents = format!("{GROUP}/volumesnapshotcontents");
    let seen = [(); 2].map(|()| Seen::start(server, &contents, happened));
    let [asks, readies] = seen;
    let made =
        server.connect()?.call("POST", &snapshots(), Some(&snapshot("new", "one", Some(CLASS))))?;
    let Some(uid) = made["metadata"]["uid"].as_str() else { bail!("no uid") };
    let name = [format!("snapcontent-{uid}")];
    let began = Instant::now();
    let pair = start()?;
    let moment = |seen: &Seen<Happened>, wanted| -> Result<f64> {
        let at = seen.each(&name, wanted)?;
        let at = at.values().next().context("it was seen")?;
        Ok(at.saturating_duration_since(began).as_secs_f64())
    };
    let asked = moment(&asks?, Happened::Asked);
    let asked = asked.with_context(|| format!("the logs end:\n{}", pair.tail()))?;
    let ready = moment(&readies?, Happened::Ready)?;
    pair.stop()?;
    Ok((asked, ready))
}
