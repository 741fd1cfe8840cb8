//! `cargo xtask bench attach`: csi-attacher and ours on the same real API server, with the same driver,
//! which answers at once. Volumes are attached all at once, then detached all at once.
//!
//! csi-attacher cannot be built here, because its module cannot be fetched; without a binary of it in
//! `$LONGSHORE_TOOLS` only ours is measured, and the table says so.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::{
    Cluster, Lifetime, Options, Program,
    tools::{self, Tool},
};
use serde_json::{Value, json};

use super::{
    audit::Mark,
    http::Server,
    kubeconfig::Kubeconfig,
    load::send_all,
    process::{self, Memory, Peak},
    release_binary,
    report::median,
    seen::{Seen, last},
};
use crate::run;

pub(super) const DRIVER: &str = "bench.csi.example";
const NODE: &str = "bench-node";
const NODE_ID: &str = "bench-node-id";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const VOLUMES: &str = "/api/v1/persistentvolumes";
/// Pairs before the measured ones: connections are open and caches filled when those come.
const WARM_UP: usize = 10;
/// How long a program is left alone before its memory is read. Also refills the Go client's bucket.
const QUIET: Duration = Duration::from_secs(5);
/// The line about a request is written after its answer was sent.
const AUDIT_DELAY: Duration = Duration::from_millis(500);

const LIFTED: &[&str] = &["--kube-api-qps=500", "--kube-api-burst=1000"];

/// A program with flags.
struct Contender {
    id: &'static str,
    go: bool,
    flags: &'static [&'static str],
}

const ALL: [Contender; 4] = [
    Contender { id: "Go", go: true, flags: &[] },
    Contender { id: "Go 500/s", go: true, flags: LIFTED },
    Contender { id: "ours", go: false, flags: &[] },
    Contender { id: "ours 500/s", go: false, flags: LIFTED },
];

/// What was asked for.
struct Args {
    pairs: usize,
    rounds: usize,
    json: Option<PathBuf>,
}

/// What one turn showed.
#[derive(Debug, Clone, serde::Serialize)]
struct Figures {
    pairs: usize,
    /// From the first request until the last attachment was seen attached.
    attach_seconds: f64,
    /// From the first deletion until the last attachment was seen gone.
    detach_seconds: f64,
    idle: Memory,
    peak_rss_kib: u64,
    after: Memory,
    cpu_seconds: f64,
    requests: BTreeMap<String, u64>,
}

type Rounds = BTreeMap<&'static str, Vec<Figures>>;

/// Runs the comparison.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let missing: Vec<Tool> = [Tool::Etcd, Tool::KubeApiserver]
        .into_iter()
        .filter(|tool| tools::path(*tool).is_err())
        .collect();
    tools::build(&missing, &|line: &str| eprintln!("{line}"))?;
    let (ours, mock) = (release_binary()?, mock_driver()?);
    let go = tools::path(Tool::CsiAttacher).ok();
    let stop = crate::interrupt::flag()?;
    let cluster = Cluster::start(&Options {
        audit: true,
        interrupt: Some(stop.clone()),
        ..Options::default()
    })?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    let mock = Mock::start(&mock, cluster.dir(), args.pairs.max(WARM_UP))?;
    prepare(&server)?;
    let ring = Ring { cluster: &cluster, server: &server, mock: &mock, go, ours };
    let mut rounds = Rounds::new();
    for round in 0..args.rounds {
        let mut turns: Vec<&Contender> =
            ALL.iter().filter(|one| !one.go || ring.go.is_some()).collect();
        let first = round % turns.len();
        turns.rotate_left(first);
        for one in turns {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            let seen = ring.turn(one, round, args.pairs)?;
            eprintln!(
                "round {}: {:<10} {:6.2} s to attach, {:6.2} s to detach",
                round + 1,
                one.id,
                seen.attach_seconds,
                seen.detach_seconds
            );
            rounds.entry(one.id).or_default().push(seen);
        }
    }
    mock.program.stop()?;
    print!("{}", table(&rounds, &args));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&rounds)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    cluster.stop()
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self { pairs: 200, rounds: 3, json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--pairs" => read.pairs = number()?,
                "--rounds" => read.rounds = number()?,
                "--json" => read.json = Some(value.into()),
                _ => bail!("bench attach has no flag {flag}; it takes --pairs, --rounds, --json"),
            }
        }
        ensure!(read.pairs > 0 && read.rounds > 0, "--pairs and --rounds are at least 1");
        Ok(read)
    }
}

/// The program that serves the fake driver. Whoever brings a binary of ours does not want to wait for
/// an optimised build either.
pub(super) fn mock_driver() -> Result<PathBuf> {
    let release = std::env::var_os("LONGSHORE_BIN").is_none();
    let mut args = vec!["build", "--package", "longshore-csi", "--example", "fake_driver"];
    if release {
        args.push("--release");
    }
    run::cargo(&args, &[])?;
    let exe = std::env::current_exe().context("cannot find this program")?;
    let target = exe.parent().and_then(Path::parent).context("the target directory")?;
    let profile = if release { "release" } else { "debug" };
    Ok(target.join(profile).join("examples/fake_driver"))
}

/// The driver, with volumes to attach.
pub(super) struct Mock {
    pub(super) program: Program,
    pub(super) socket: PathBuf,
    pub(super) handles: Vec<String>,
}

impl Mock {
    pub(super) fn start(program: &Path, dir: &Path, volumes: usize) -> Result<Self> {
        let (socket, log) = (dir.join("mock.sock"), dir.join("mock.log"));
        let mut command = Command::new(program);
        command.arg(&socket).args([DRIVER, NODE_ID, &volumes.to_string()]);
        let mut program = Program::start("the fake driver", command, &log, Lifetime::Owner)?;
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let ready = || read().lines().any(|line| line == "ready");
        program.wait_until(Duration::from_secs(60), None, ready)?;
        let handles: Vec<String> =
            read().lines().take_while(|line| *line != "ready").map(str::to_owned).collect();
        ensure!(handles.len() == volumes, "the fake driver made {} volumes", handles.len());
        Ok(Self { program, socket, handles })
    }
}

/// The node that everything is attached to.
fn prepare(server: &Server) -> Result<()> {
    let node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": NODE},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE_ID, "topologyKeys": []}]}});
    server.connect()?.call("POST", "/apis/storage.k8s.io/v1/csinodes", Some(&node)).map(drop)
}

/// What all turns have in common.
struct Ring<'a> {
    cluster: &'a Cluster,
    server: &'a Server,
    mock: &'a Mock,
    go: Option<PathBuf>,
    ours: PathBuf,
}

impl Ring<'_> {
    fn turn(&self, one: &Contender, round: usize, pairs: usize) -> Result<Figures> {
        let id = one.id.to_ascii_lowercase().replace([' ', '/'], "-");
        let (name, user) = (format!("r{round}-{id}"), format!("bench-{id}"));
        let mut program = self.start(one, &name, &user)?;
        let measured = self.measure(&program, &name, &user, pairs);
        let failed = || format!("{} in round {round}; its log ends:\n{}", one.id, program.tail());
        let figures = measured.with_context(failed)?;
        ensure!(program.runs(), "{} ended by itself in round {round}", one.id);
        program.stop()?;
        Ok(figures)
    }

    fn start(&self, one: &Contender, name: &str, user: &str) -> Result<Program> {
        let mut command = match (one.go, &self.go) {
            (true, Some(go)) => Command::new(go),
            (true, None) => bail!("there is no csi-attacher"),
            (false, _) => {
                let mut command = Command::new(&self.ours);
                command.arg("attacher");
                command
            }
        };
        let kubeconfig = self.cluster.kubeconfig_for(user, &[])?;
        command.arg("--kubeconfig").arg(kubeconfig);
        command.arg("--csi-address").arg(&self.mock.socket).args(one.flags);
        command.env_remove("KUBECONFIG");
        let log = self.cluster.dir().join(format!("{name}.log"));
        Program::start(one.id, command, &log, Lifetime::Owner)
    }

    fn measure(&self, program: &Program, name: &str, user: &str, pairs: usize) -> Result<Figures> {
        let pid = program.pid();
        let warm = names(&format!("{name}-warm"), WARM_UP);
        self.burst(&warm, || Ok(()))?;
        self.delete_volumes(&warm)?;
        std::thread::sleep(QUIET);
        let idle = process::memory(pid)?;
        let log = self.cluster.audit_log().context("the cluster has no audit log")?;
        // Making the volumes is not measured, nor is their deletion.
        let names = names(name, pairs);
        let mut began = None;
        let burst = self.burst(&names, || {
            began = Some((Mark::now(log.clone())?, process::cpu_seconds(pid)?, Peak::of(pid)));
            Ok(())
        })?;
        let (mark, cpu, peak) = began.context("nothing was measured")?;
        let (peak_rss_kib, cpu_seconds) = (peak.kib(), process::cpu_seconds(pid)? - cpu);
        std::thread::sleep(AUDIT_DELAY);
        let requests = mark.requests_of(user)?;
        self.delete_volumes(&names)?;
        std::thread::sleep(QUIET);
        let after = process::memory(pid)?;
        let (attach_seconds, detach_seconds) = burst;
        Ok(Figures {
            pairs,
            attach_seconds,
            detach_seconds,
            idle,
            peak_rss_kib,
            after,
            cpu_seconds,
            requests,
        })
    }

    /// Makes volumes, attaches and detaches them: seconds for each of the two.
    fn burst(&self, names: &[String], begin: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
        send_all(self.server, names, |connection, name| {
            let at: usize = name.rsplit('-').next().and_then(|at| at.parse().ok()).unwrap_or(0);
            let handle = &self.mock.handles[at];
            connection.call("POST", VOLUMES, Some(&volume(name, handle))).map(drop)
        })?;
        let seen = Seen::start(self.server, ATTACHMENTS, happened)?;
        begin()?;
        let first = Instant::now();
        send_all(self.server, names, |connection, name| {
            connection.call("POST", ATTACHMENTS, Some(&attachment(name))).map(drop)
        })?;
        let attached = last(&seen.each(names, Happened::Attached)?)? - first;
        let first = Instant::now();
        send_all(self.server, names, |connection, name| {
            connection.call("DELETE", &format!("{ATTACHMENTS}/{name}"), None).map(drop)
        })?;
        let detached = last(&seen.each(names, Happened::Gone)?)? - first;
        Ok((attached.as_secs_f64(), detached.as_secs_f64()))
    }

    /// The attacher then takes its finalizer off each of them.
    fn delete_volumes(&self, names: &[String]) -> Result<()> {
        send_all(self.server, names, |connection, name| {
            connection.call("DELETE", &format!("{VOLUMES}/{name}"), None).map(drop)
        })
        .map(drop)
    }
}

pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}-{at}")).collect()
}

pub(super) fn volume(name: &str, handle: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": DRIVER, "volumeHandle": handle}}})
}

fn attachment(name: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": name}, "spec": {"attacher": DRIVER, "nodeName": NODE,
            "source": {"persistentVolumeName": name}}})
}

/// What can be seen of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    Attached,
    Gone,
}

fn happened(event: &Value) -> Option<Happened> {
    match event["type"].as_str() {
        Some("DELETED") => Some(Happened::Gone),
        _ => (event["object"]["status"]["attached"] == true).then_some(Happened::Attached),
    }
}

/// One line of the table.
type Row = (&'static str, fn(&Figures) -> f64, usize);

#[allow(clippy::cast_precision_loss, reason = "small counts")]
const ROWS: [Row; 8] = [
    ("pairs per second", |f| f.pairs as f64 / (f.attach_seconds + f.detach_seconds), 1),
    ("attaches per second", |f| f.pairs as f64 / f.attach_seconds, 1),
    ("detaches per second", |f| f.pairs as f64 / f.detach_seconds, 1),
    ("API requests per pair", |f| f.requests.values().sum::<u64>() as f64 / f.pairs as f64, 2),
    ("CPU per pair, ms", |f| f.cpu_seconds * 1000.0 / f.pairs as f64, 2),
    ("memory idle, MiB", |f| f.idle.rss_kib as f64 / 1024.0, 1),
    ("memory peak, MiB", |f| f.peak_rss_kib as f64 / 1024.0, 1),
    ("memory after, MiB", |f| f.after.rss_kib as f64 / 1024.0, 1),
];

fn table(rounds: &Rounds, args: &Args) -> String {
    let Args { pairs, rounds: count, .. } = args;
    let mut text = format!("\n{pairs} pairs, {count} rounds, medians\n\n| |");
    for one in &ALL {
        text += &format!(" {} |", one.id);
    }
    text += "\n|---|---:|---:|---:|---:|\n";
    for (label, of, digits) in ROWS {
        text += &format!("| {label} |");
        for one in &ALL {
            match rounds.get(one.id) {
                None => text += " not measured |",
                Some(all) => {
                    text += &format!(" {:.digits$} |", median(all.iter().map(of).collect()));
                }
            }
        }
        text += "\n";
    }
    if ALL.iter().any(|one| one.go && !rounds.contains_key(one.id)) {
        text += "\ncsi-attacher was not measured: its module cannot be fetched, so it is not built \
                 here. Put a binary of that name into $LONGSHORE_TOOLS.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(seconds: f64) -> Figures {
        let memory = Memory { rss_kib: 2048, pss_kib: 1024 };
        Figures {
            pairs: 100,
            attach_seconds: seconds,
            detach_seconds: seconds,
            idle: memory,
            peak_rss_kib: 4096,
            after: memory,
            cpu_seconds: 0.5,
            requests: [("patch volumeattachments".to_owned(), 300)].into(),
        }
    }

    #[test]
    fn who_was_not_measured_has_no_figures() {
        let args = Args { pairs: 100, rounds: 3, json: None };
        let ours = vec![figures(1.0), figures(5.0), figures(2.0)];
        let text =
            table(&Rounds::from([("ours", ours), ("ours 500/s", vec![figures(1.0)])]), &args);
        let row = "| pairs per second | not measured | not measured | 25.0 | 50.0 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| API requests per pair | not measured | not measured | 3.00 |"));
        assert!(text.contains("csi-attacher was not measured"), "{text}");
        let all = ALL.iter().map(|one| (one.id, vec![figures(1.0)])).collect();
        assert!(!table(&all, &args).contains("not measured"));
    }

    #[test]
    fn flags() {
        let read = |line: &str| {
            Args::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let args = read("--pairs 7 --rounds 2").expect("read");
        assert_eq!((args.pairs, args.rounds), (7, 2));
        assert!(read("--pairs 0").is_err() && read("--claims 1").is_err());
    }
}
