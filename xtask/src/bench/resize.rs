//! `cargo xtask bench resize`: csi-resizer and ours on the same real API server, with the same driver, which
//! answers at once. All claims ask for more at once; measured is the time until the claim waits for its node,
//! which is the last that a resizer writes. Then all ask ours for another VolumeAttributesClass; csi-resizer
//! 1.14 reads only a version of the kind that Kubernetes 1.37 does not serve any more.

use std::{
    collections::BTreeMap,
    path::PathBuf,
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
    attach::{DRIVER, Mock, mock_driver, names, volume},
    audit::Mark,
    http::Server,
    kubeconfig::Kubeconfig,
    load::{CLASS, NAMESPACE, make_namespace, send_all},
    process::{self, Memory, Peak},
    release_binary,
    report::median,
    seen::{Seen, last},
};

const CLAIMS: &str = "/api/v1/namespaces/bench/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
/// Claims before the measured ones: connections are open and caches filled when those come.
const WARM_UP: usize = 10;
/// How long a program is left alone before its memory is read. Also refills the Go client's bucket.
const QUIET: Duration = Duration::from_secs(5);
/// The line about a request is written after its answer was sent.
const AUDIT_DELAY: Duration = Duration::from_millis(500);

const LIFTED: &[&str] = &["--kube-api-qps=500", "--kube-api-burst=1000"];
const AS_GO: &[&str] = &["--kube-api-qps=5", "--kube-api-burst=10"];
/// Gates of csi-resizer 1.14 by which it does what ours does.
const GO_GATES: &str =
    "--feature-gates=RecoverVolumeExpansionFailure=true,VolumeAttributesClass=false";

/// A program with flags.
struct Contender {
    id: &'static str,
    go: bool,
    flags: &'static [&'static str],
}

const ALL: [Contender; 5] = [
    Contender { id: "Go", go: true, flags: &[] },
    Contender { id: "Go 500/s", go: true, flags: LIFTED },
    Contender { id: "ours", go: false, flags: &[] },
    Contender { id: "ours 500/s", go: false, flags: LIFTED },
    Contender { id: "ours 5/s", go: false, flags: AS_GO },
];

/// What was asked for.
struct Args {
    claims: usize,
    rounds: usize,
    json: Option<PathBuf>,
}

/// How one burst went.
#[derive(Debug, Clone, serde::Serialize)]
struct Burst {
    /// From the first request until the last claim was seen done.
    seconds: f64,
    /// Per claim: from its own request until it was seen done, ascending.
    latencies: Vec<f64>,
    requests: BTreeMap<String, u64>,
    cpu_seconds: f64,
}

/// What one turn showed.
#[derive(Debug, Clone, serde::Serialize)]
struct Figures {
    expand: Burst,
    /// Not of csi-resizer.
    modify: Option<Burst>,
    idle: Memory,
    peak_rss_kib: u64,
    after: Memory,
}

type Rounds = BTreeMap<&'static str, Vec<Figures>>;

/// Runs the comparison.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let needed = [Tool::Etcd, Tool::KubeApiserver, Tool::CsiResizer];
    let missing: Vec<Tool> =
        needed.into_iter().filter(|tool| tools::path(*tool).is_err()).collect();
    tools::build(&missing, &|line: &str| eprintln!("{line}"))?;
    let (ours, mock) = (release_binary()?, mock_driver()?);
    let stop = crate::interrupt::flag()?;
    let cluster = Cluster::start(&Options {
        audit: true,
        interrupt: Some(stop.clone()),
        ..Options::default()
    })?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    let mock = Mock::start(&mock, cluster.dir(), args.claims.max(WARM_UP))?;
    prepare(&server)?;
    let go = tools::path(Tool::CsiResizer)?;
    let ring = Ring { cluster: &cluster, server: &server, mock: &mock, go, ours };
    let mut rounds = Rounds::new();
    for round in 0..args.rounds {
        let mut turns: Vec<&Contender> = ALL.iter().collect();
        turns.rotate_left(round % ALL.len());
        for one in turns {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            let seen = ring.turn(one, round, args.claims)?;
            let modified = seen.modify.as_ref().map(|burst| burst.seconds);
            eprintln!(
                "round {}: {:<10} {:6.2} s to expand, {} to modify",
                round + 1,
                one.id,
                seen.expand.seconds,
                modified.map_or("not asked".to_owned(), |seconds| format!("{seconds:6.2} s"))
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
        let mut read = Self { claims: 200, rounds: 3, json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--claims" => read.claims = number()?,
                "--rounds" => read.rounds = number()?,
                "--json" => read.json = Some(value.into()),
                _ => bail!("bench resize has no flag {flag}; it takes --claims, --rounds, --json"),
            }
        }
        ensure!(read.claims > 0 && read.rounds > 0, "--claims and --rounds are at least 1");
        Ok(read)
    }
}

/// Namespace, class, and two classes of attributes.
fn prepare(server: &Server) -> Result<()> {
    make_namespace(server)?;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": CLASS}, "provisioner": DRIVER, "allowVolumeExpansion": true});
    let mut connection = server.connect()?;
    connection.call("POST", "/apis/storage.k8s.io/v1/storageclasses", Some(&class))?;
    let gold = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": {"name": "gold"}, "driverName": DRIVER, "parameters": {"tier": "gold"}});
    let path = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    connection.call("POST", path, Some(&gold)).map(drop)
}

/// What can be seen of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    Grown,
    Modified,
}

/// Both are the last that a resizer writes.
fn happened(event: &Value) -> Option<Happened> {
    let status = &event["object"]["status"];
    if status["currentVolumeAttributesClassName"] == "gold" {
        return status["modifyVolumeStatus"].is_null().then_some(Happened::Modified);
    }
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let waits = conditions.iter().any(|one| one["type"] == "FileSystemResizePending");
    waits.then_some(Happened::Grown)
}

/// What all turns have in common.
struct Ring<'a> {
    cluster: &'a Cluster,
    server: &'a Server,
    mock: &'a Mock,
    go: PathBuf,
    ours: PathBuf,
}

impl Ring<'_> {
    fn turn(&self, one: &Contender, round: usize, claims: usize) -> Result<Figures> {
        let id = one.id.to_ascii_lowercase().replace([' ', '/'], "-");
        let (name, user) = (format!("r{round}-{id}"), format!("bench-{id}"));
        let mut program = self.start(one, &name, &user)?;
        let measured = self.measure(&program, one, &name, &user, claims);
        let failed = || format!("{} in round {round}; its log ends:\n{}", one.id, program.tail());
        let figures = measured.with_context(failed)?;
        ensure!(program.runs(), "{} ended by itself in round {round}", one.id);
        program.stop()?;
        Ok(figures)
    }

    fn start(&self, one: &Contender, name: &str, user: &str) -> Result<Program> {
        let mut command = match one.go {
            true => {
                let mut command = Command::new(&self.go);
                command.arg(GO_GATES);
                command
            }
            false => {
                let mut command = Command::new(&self.ours);
                command.arg("resizer");
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

    fn measure(
        &self,
        program: &Program,
        one: &Contender,
        name: &str,
        user: &str,
        claims: usize,
    ) -> Result<Figures> {
        let pid = program.pid();
        let warm = names(&format!("{name}-warm"), WARM_UP);
        self.make(&warm)?;
        self.burst(pid, user, &warm, &larger(), Happened::Grown)?;
        let names = names(name, claims);
        self.make(&names)?;
        std::thread::sleep(QUIET);
        let (idle, peak) = (process::memory(pid)?, Peak::of(pid));
        let expand = self.burst(pid, user, &names, &larger(), Happened::Grown)?;
        let modify = match one.go {
            true => None,
            false => {
                std::thread::sleep(QUIET);
                let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
                Some(self.burst(pid, user, &names, &gold, Happened::Modified)?)
            }
        };
        let peak_rss_kib = peak.kib();
        for all in [&warm, &names] {
            self.delete(all)?;
        }
        std::thread::sleep(QUIET);
        let after = process::memory(pid)?;
        Ok(Figures { expand, modify, idle, peak_rss_kib, after })
    }

    /// Makes claims that are bound to volumes of the driver.
    fn make(&self, names: &[String]) -> Result<()> {
        send_all(self.server, names, |connection, name| {
            let at: usize = name.rsplit('-').next().and_then(|at| at.parse().ok()).unwrap_or(0);
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                    "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}}});
            let made = connection.call("POST", CLAIMS, Some(&claim))?;
            let mut volume = volume(name, &self.mock.handles[at]);
            volume["spec"]["claimRef"] = json!({"namespace": NAMESPACE, "name": name,
                "uid": made["metadata"]["uid"]});
            volume["spec"]["storageClassName"] = CLASS.into();
            connection.call("POST", VOLUMES, Some(&volume))?;
            let bound = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Mi"}}});
            connection.call("PATCH", &format!("{CLAIMS}/{name}/status"), Some(&bound)).map(drop)
        })
        .map(drop)
    }

    /// All claims ask for the same at once.
    fn burst(
        &self,
        pid: u32,
        user: &str,
        names: &[String],
        patch: &Value,
        wanted: Happened,
    ) -> Result<Burst> {
        let seen = Seen::start(self.server, CLAIMS, happened)?;
        let log = self.cluster.audit_log().context("the cluster has no audit log")?;
        let (mark, cpu) = (Mark::now(log)?, process::cpu_seconds(pid)?);
        let sent = send_all(self.server, names, |connection, name| {
            connection.call("PATCH", &format!("{CLAIMS}/{name}"), Some(patch)).map(drop)
        })?;
        let done = seen.each(names, wanted)?;
        let first = *sent.iter().min().context("at least one claim")?;
        let cpu_seconds = process::cpu_seconds(pid)? - cpu;
        let latency = |(name, sent): (&String, &Instant)| {
            done.get(name).map(|at| at.saturating_duration_since(*sent).as_secs_f64())
        };
        let mut latencies: Vec<f64> = names.iter().zip(&sent).filter_map(latency).collect();
        latencies.sort_by(f64::total_cmp);
        std::thread::sleep(AUDIT_DELAY);
        let seconds = (last(&done)? - first).as_secs_f64();
        Ok(Burst { seconds, latencies, requests: mark.requests_of(user)?, cpu_seconds })
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        for path in [CLAIMS, VOLUMES] {
            send_all(self.server, names, |connection, name| {
                // No controllers are here to take the finalizers off.
                let free = json!({"metadata": {"finalizers": null}});
                connection.call("PATCH", &format!("{path}/{name}"), Some(&free))?;
                connection.call("DELETE", &format!("{path}/{name}"), None).map(drop)
            })?;
        }
        Ok(())
    }
}

fn larger() -> Value {
    json!({"spec": {"resources": {"requests": {"storage": "2Mi"}}}})
}

#[allow(clippy::cast_precision_loss, reason = "small counts")]
impl Burst {
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    fn percentile(&self, percent: usize) -> f64 {
        let at = (self.latencies.len() * percent).div_ceil(100).max(1) - 1;
        self.latencies.get(at).copied().unwrap_or(f64::NAN)
    }

    fn requests_per_claim(&self) -> f64 {
        self.requests.values().sum::<u64>() as f64 / self.latencies.len() as f64
    }

    fn cpu_millis(&self) -> f64 {
        self.cpu_seconds * 1000.0 / self.latencies.len() as f64
    }
}

/// One line of the table.
type Row = (&'static str, fn(&Figures) -> Option<f64>, usize);

#[allow(clippy::cast_precision_loss, reason = "small counts")]
const ROWS: [Row; 13] = [
    ("expansions per second", |f| Some(f.expand.rate()), 1),
    ("p50, s", |f| Some(f.expand.percentile(50)), 2),
    ("p99, s", |f| Some(f.expand.percentile(99)), 2),
    ("API requests per expansion", |f| Some(f.expand.requests_per_claim()), 2),
    ("CPU per expansion, ms", |f| Some(f.expand.cpu_millis()), 2),
    ("modifications per second", |f| f.modify.as_ref().map(Burst::rate), 1),
    ("p50, s ", |f| f.modify.as_ref().map(|burst| burst.percentile(50)), 2),
    ("p99, s ", |f| f.modify.as_ref().map(|burst| burst.percentile(99)), 2),
    ("API requests per modification", |f| f.modify.as_ref().map(Burst::requests_per_claim), 2),
    ("CPU per modification, ms", |f| f.modify.as_ref().map(Burst::cpu_millis), 2),
    ("memory idle, MiB", |f| Some(f.idle.rss_kib as f64 / 1024.0), 1),
    ("memory peak, MiB", |f| Some(f.peak_rss_kib as f64 / 1024.0), 1),
    ("memory after, MiB", |f| Some(f.after.rss_kib as f64 / 1024.0), 1),
];

fn table(rounds: &Rounds, args: &Args) -> String {
    let Args { claims, rounds: count, .. } = args;
    let mut text = format!("\n{claims} claims, {count} rounds, medians\n\n| |");
    for one in &ALL {
        text += &format!(" {} |", one.id);
    }
    text += "\n|---|---:|---:|---:|---:|---:|\n";
    for (label, of, digits) in ROWS {
        text += &format!("| {} |", label.trim());
        for one in &ALL {
            let all = rounds.get(one.id).map(Vec::as_slice).unwrap_or_default();
            let figures: Vec<f64> = all.iter().filter_map(of).collect();
            text += &match figures.is_empty() {
                true => " - |".to_owned(),
                false => format!(" {:.digits$} |", median(figures)),
            };
        }
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_medians_and_leaves_out_what_was_not_asked() {
        let burst = |seconds: f64| Burst {
            seconds,
            latencies: vec![seconds / 2.0, seconds],
            requests: [("patch persistentvolumeclaims/status".to_owned(), 6)].into(),
            cpu_seconds: 0.01,
        };
        let memory = Memory { rss_kib: 2048, pss_kib: 1024 };
        let figures = |seconds: f64, modifies: bool| Figures {
            expand: burst(seconds),
            modify: modifies.then(|| burst(seconds)),
            idle: memory,
            peak_rss_kib: 4096,
            after: memory,
        };
        let rounds = Rounds::from([
            ("Go", vec![figures(20.0, false)]),
            ("ours", vec![figures(1.0, true), figures(5.0, true), figures(2.0, true)]),
        ]);
        let text = table(&rounds, &Args { claims: 2, rounds: 3, json: None });
        for row in [
            "| expansions per second | 0.1 | - | 1.0 | - | - |",
            "| modifications per second | - | - | 1.0 | - | - |",
            "| API requests per expansion | 3.00 | - | 3.00 | - | - |",
            "| p99, s | 20.00 | - | 2.00 | - | - |",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
    }

    #[test]
    fn last_write_of_a_resizer_is_recognised() {
        let event = |status: Value| json!({"type": "MODIFIED", "object": {"status": status}});
        let waits = json!([{"type": "Resizing"}, {"type": "FileSystemResizePending"}]);
        let gold = json!({"currentVolumeAttributesClassName": "gold", "conditions": waits});
        for (status, want) in [
            (json!({}), None),
            (json!({"conditions": [{"type": "Resizing"}]}), None),
            (json!({"conditions": waits}), Some(Happened::Grown)),
            (gold, Some(Happened::Modified)),
        ] {
            assert_eq!(happened(&event(status.clone())), want, "{status}");
        }
    }
}
