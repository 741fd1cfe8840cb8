//! `cargo xtask bench bind`: the binder of kube-controller-manager and ours, on the same real API
//! server: one claim after the other, among more and more volumes.

use std::{
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
    http::{Connection, Server},
    kubeconfig::Kubeconfig,
    load::{NAMESPACE, prepare, send_all},
    process::cpu_seconds,
    release_binary,
};

/// Claims before the measured ones, and the time that a binder gets to know all volumes.
const WARM_UP: usize = 3;
const PATIENCE: Duration = Duration::from_secs(600);
const CONTROLLER: &str = "--controllers=persistentvolume-binder-controller";

/// What was asked for.
struct Args {
    volumes: Vec<usize>,
    claims: usize,
    json: Option<PathBuf>,
}

/// How one binder did among so many volumes.
#[derive(Debug, Clone, serde::Serialize)]
struct Figures {
    binder: &'static str,
    volumes: usize,
    /// From a claim's creation until it is seen Bound, in milliseconds, ascending.
    milliseconds: Vec<f64>,
    /// Of the binder's process, in milliseconds a claim.
    cpu_milliseconds: f64,
}

/// Runs the comparison.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let needed = [Tool::Etcd, Tool::KubeApiserver, Tool::KubeControllerManager];
    let missing: Vec<Tool> =
        needed.into_iter().filter(|tool| tools::path(*tool).is_err()).collect();
    tools::build(&missing, &|line: &str| eprintln!("{line}"))?;
    let ours = release_binary()?;
    let stop = crate::interrupt::flag()?;
    let options = Options { interrupt: Some(stop.clone()), ..Options::default() };
    let cluster = Cluster::start(&options)?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    prepare(&server, "bench.example.com")?;
    let go = tools::path(Tool::KubeControllerManager)?;
    let mut figures = Vec::new();
    let mut there = 0;
    for (round, volumes) in args.volumes.iter().copied().enumerate() {
        fill(&server, there, volumes)?;
        there = volumes;
        let mut turns = [("Go", &go), ("ours", &ours)];
        turns.rotate_left(round % 2);
        for (binder, program) in turns {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            let name = format!("{}-{volumes}", binder.to_ascii_lowercase());
            let program = start(&cluster, binder, program, &name)?;
            let seen = measure(&server, &program, binder, &name, volumes, args.claims);
            let seen =
                seen.with_context(|| format!("{name}; its log ends:\n{}", program.tail()))?;
            program.stop()?;
            eprintln!("{volumes} volumes: {}", line(&seen));
            figures.push(seen);
        }
    }
    print!("{}", table(&figures));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    cluster.stop()
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self { volumes: vec![1_000, 10_000, 100_000], claims: 50, json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number =
                |text: &str| text.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--volumes" => {
                    read.volumes = value.split(',').map(number).collect::<Result<_>>()?
                }
                "--claims" => read.claims = number(value)?,
                "--json" => read.json = Some(value.into()),
                _ => bail!("bench bind has no flag {flag}; it takes --volumes, --claims, --json"),
            }
        }
        let used = read.volumes.len() * 2 * (read.claims + WARM_UP);
        let least = read.volumes.first().copied().unwrap_or_default();
        ensure!(
            read.volumes.is_sorted() && read.claims > 0,
            "--volumes ascend; --claims is at least 1"
        );
        ensure!(
            least >= 2 * used,
            "--volumes must start at {} or more for {} claims",
            2 * used,
            read.claims
        );
        Ok(read)
    }
}

/// Makes the volumes that are missing, free ones of a hundred sizes.
fn fill(server: &Server, there: usize, wanted: usize) -> Result<()> {
    let names: Vec<String> = (there..wanted).map(|at| format!("pv-{at}")).collect();
    eprintln!("making {} volumes", names.len());
    send_all(server, &names, |connection, name| {
        let at: usize = name.trim_start_matches("pv-").parse().context("a volume's number")?;
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "bench",
                "capacity": {"storage": format!("{}Gi", 1 + at % 100)},
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": "bench.example.com", "volumeHandle": name}}});
        let mut made = connection.call("POST", "/api/v1/persistentvolumes", Some(&volume))?;
        made["status"]["phase"] = "Available".into();
        let path = format!("/api/v1/persistentvolumes/{name}/status");
        connection.call("PUT", &path, Some(&made)).map(drop)
    })?;
    Ok(())
}

fn start(cluster: &Cluster, binder: &str, program: &Path, name: &str) -> Result<Program> {
    let mut command = Command::new(program);
    match binder {
        "Go" => command.args(["--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"]),
        _ => command.arg("controllers"),
    };
    command.args([CONTROLLER, "--leader-elect=false", "--kubeconfig"]).arg(cluster.kubeconfig());
    command.env_remove("KUBECONFIG");
    Program::start(name, command, &cluster.dir().join(format!("{name}.log")), Lifetime::Owner)
}

fn measure(
    server: &Server,
    program: &Program,
    binder: &'static str,
    name: &str,
    volumes: usize,
    claims: usize,
) -> Result<Figures> {
    let mut connection = server.connect()?;
    for at in 0..WARM_UP {
        bind_one(&mut connection, &format!("{name}-warm-{at}"), at)?;
    }
    let cpu = cpu_seconds(program.pid())?;
    let mut milliseconds = Vec::with_capacity(claims);
    for at in 0..claims {
        let took = bind_one(&mut connection, &format!("{name}-{at}"), at)?;
        milliseconds.push(took.as_secs_f64() * 1e3);
    }
    let cpu = (cpu_seconds(program.pid())? - cpu) * 1e3;
    milliseconds.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss, reason = "a small count")]
    let cpu_milliseconds = cpu / claims as f64;
    Ok(Figures { binder, volumes, milliseconds, cpu_milliseconds })
}

/// Makes a claim and looks at it until it is Bound.
fn bind_one(connection: &mut Connection, name: &str, at: usize) -> Result<Duration> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "bench",
            "resources": {"requests": {"storage": format!("{}Gi", 1 + at * 37 % 100)}}}});
    let began = Instant::now();
    connection.call("POST", &path, Some(&claim))?;
    let one = format!("{path}/{name}");
    loop {
        let seen: Value = connection.call("GET", &one, None)?;
        if seen["status"]["phase"] == "Bound" {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < PATIENCE, "{name} was not bound in {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or_default()
}

fn line(one: &Figures) -> String {
    let (median, worst) = (percentile(&one.milliseconds, 50), percentile(&one.milliseconds, 99));
    format!(
        "{:<5} {median:8.1} ms median {worst:8.1} ms p99 {:8.2} ms of CPU a claim",
        one.binder, one.cpu_milliseconds
    )
}

fn table(figures: &[Figures]) -> String {
    let mut text = String::from(
        "\n| volumes | binder | median ms | p99 ms | CPU ms a claim |\n|---|---|---|---|---|\n",
    );
    for one in figures {
        text += &format!(
            "| {} | {} | {:.1} | {:.1} | {:.2} |\n",
            one.volumes,
            one.binder,
            percentile(&one.milliseconds, 50),
            percentile(&one.milliseconds, 99),
            one.cpu_milliseconds
        );
    }
    text
}
