//! `cargo xtask bench provision` (or `vs-go`, its old name): the official provisioner and ours on the same real control plane,
//! with the same driver, in one run. `cargo xtask bench api`: the API servers, see [`api`].
//! `cargo xtask bench attach`: the attachers, see [`attach`].
//! `cargo xtask bench bind`: the binders, see [`bind`].
//! `cargo xtask bench burst`: many claims in the embedded mode, see [`burst`].
//! `cargo xtask bench driver`: the drivers, see [`driver`].
//! `cargo xtask bench exec`: a command in a pod of the embedded mode, see [`exec`].
//! `cargo xtask bench node`: pods with new claims in the embedded mode, see [`node`].
//! `cargo xtask bench resize`: the resizers, see [`resize`].
//! `cargo xtask bench scale`: sidecars and controllers among very many objects, see [`scale`].
//! `cargo xtask bench snapshots`: many snapshots at once, see [`snapshots`].

mod api;
mod attach;
mod audit;
mod bind;
mod burst;
mod contender;
mod driver;
mod exec;
mod follow;
mod http;
mod kubeconfig;
mod load;
mod node;
mod process;
mod report;
mod resize;
mod scale;
mod seen;
mod snapshots;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::{
    Cluster, Controllers, Lifetime, Options, Program,
    tools::{self, Tool},
};
use serde_json::json;

use self::{
    contender::{ALL, Contender, Ring},
    http::Server,
    kubeconfig::Kubeconfig,
    report::Rounds,
};
use crate::run;

/// The name by which the official driver goes.
const DRIVER: &str = "hostpath.csi.k8s.io";

/// What was asked for.
struct Args {
    claims: usize,
    rounds: usize,
    only: Vec<Contender>,
    json: Option<PathBuf>,
}

/// Runs a comparison.
pub fn bench(args: &[String]) -> Result<()> {
    if cfg!(debug_assertions) {
        // The load generator shares the machine with what is measured, so it is built as well.
        let own = ["run", "--quiet", "--release", "--package", "xtask", "--", "bench"];
        let line: Vec<&str> = own.into_iter().chain(args.iter().map(String::as_str)).collect();
        return run::cargo(&line, &[]);
    }
    match args.split_first() {
        Some((name, rest)) if name == "provision" || name == "vs-go" => vs_go(&Args::read(rest)?),
        Some((name, rest)) if name == "api" => api::bench(rest),
        Some((name, rest)) if name == "attach" => attach::bench(rest),
        Some((name, rest)) if name == "bind" => bind::bench(rest),
        Some((name, rest)) if name == "burst" => burst::bench(rest),
        Some((name, rest)) if name == "driver" => driver::bench(rest),
        Some((name, rest)) if name == "exec" => exec::bench(rest),
        Some((name, rest)) if name == "node" => node::bench(rest),
        Some((name, rest)) if name == "resize" => resize::bench(rest),
        Some((name, rest)) if name == "scale" => scale::bench(rest),
        Some((name, rest)) if name == "snapshots" => snapshots::bench(rest),
        _ => bail!(
            "say `bench provision [--claims N] [--rounds R] [--only NAME,NAME] [--json FILE]`, \
             `bench api [--seconds S] [--rounds R] [--objects N] [--json FILE]`, \
             `bench attach [--pairs N] [--rounds R] [--json FILE]`, \
             `bench bind [--volumes N,N] [--claims N] [--json FILE]`, \
             `bench burst [--claims N,N] [--rounds R] [--dir DIR] [--json FILE]`, \
             `bench driver [--rounds R]`, `bench exec [--times N] [--json FILE]`, \
             `bench node [--pods N] [--together N] [--only ours] [--json FILE]`, \
             `bench resize [--claims N] [--rounds R] [--json FILE]`, \
             `bench scale [--few N] [--volumes N] [--events N] [--on embedded,real] [--only NAME,NAME] [--json FILE]`, \
             or `bench snapshots [--only PART,PART] [--claims N] [--many N] [--existing N] [--rounds R] [--dir DIR] [--json FILE]`"
        ),
    }
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self { claims: 100, rounds: 3, only: ALL.to_vec(), json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--claims" => read.claims = number()?,
                "--rounds" => read.rounds = number()?,
                "--only" => read.only = chosen(value)?,
                "--json" => read.json = Some(value.into()),
                _ => bail!(
                    "bench provision has no flag {flag}; it takes --claims, --rounds, --only, --json"
                ),
            }
        }
        ensure!(read.claims > 0 && read.rounds > 0, "--claims and --rounds are at least 1");
        Ok(read)
    }
}

/// The contenders of these names, in the order of [`ALL`].
fn chosen(names: &str) -> Result<Vec<Contender>> {
    let all = ALL.map(|one| one.id);
    for name in names.split(',') {
        ensure!(all.contains(&name), "--only {name}: there are {}", all.join(", "));
    }
    Ok(ALL.into_iter().filter(|one| names.split(',').any(|name| name == one.id)).collect())
}

fn vs_go(args: &Args) -> Result<()> {
    let needed = [
        Tool::Etcd,
        Tool::KubeApiserver,
        Tool::KubeControllerManager,
        Tool::CsiProvisioner,
        Tool::Hostpath,
    ];
    let missing: Vec<Tool> =
        needed.into_iter().filter(|tool| tools::path(*tool).is_err()).collect();
    tools::build(&missing, &|line: &str| eprintln!("{line}"))?;
    let ours = release_binary()?;
    let cluster = Cluster::start(&Options {
        audit: true,
        controllers: Controllers::Volumes,
        interrupt: Some(crate::interrupt::flag()?),
        // The binder must not be the bottleneck.
        more_controller_manager_args: ["--kube-api-qps=1000", "--kube-api-burst=2000"]
            .map(str::to_owned)
            .into(),
        ..Options::default()
    })?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    let (driver, socket) = start_driver(cluster.dir())?;
    load::prepare(&server, DRIVER)?;
    let ring = Ring {
        cluster: &cluster,
        server: &server,
        audit: cluster.audit_log().context("the cluster has no audit log")?,
        driver: &socket,
        go: tools::path(Tool::CsiProvisioner)?,
        ours,
        claims: args.claims,
    };
    let (rounds, order) = all_rounds(&ring, args.rounds, &args.only)?;
    driver.stop()?;
    show(args, &rounds, &order)?;
    cluster.stop()
}

fn all_rounds(
    ring: &Ring<'_>,
    count: usize,
    only: &[Contender],
) -> Result<(Rounds, Vec<&'static str>)> {
    let (mut rounds, mut order) = (Rounds::new(), Vec::new());
    for round in 1..=count {
        // Everyone is once in front and once at the end.
        let mut turns = only.to_vec();
        turns.rotate_left((round - 1) % only.len());
        if round % 2 == 0 {
            turns.reverse();
        }
        for one in turns {
            let stop = crate::interrupt::flag()?;
            ensure!(
                !stop.load(Ordering::Relaxed),
                "interrupted before round {round}'s {}",
                one.label
            );
            let figures = ring.turn(one, round)?;
            eprintln!(
                "round {round}: {:<12} {:7.2} s to bind, {:7.2} s to delete",
                one.label, figures.burst.bind_seconds, figures.burst.delete_seconds
            );
            rounds.entry(one.id).or_default().push(figures);
            order.push(one.id);
        }
    }
    Ok((rounds, order))
}

/// The official driver, without topology: there are no nodes.
fn start_driver(dir: &Path) -> Result<(Program, PathBuf)> {
    let socket = dir.join("hostpath.sock");
    let mut command = Command::new(tools::path(Tool::Hostpath)?);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    command.arg(format!("--statedir={}", dir.join("hostpath").display()));
    command.args(["--nodeid=bench", "--enable-topology=false"]);
    let log = dir.join("hostpath.log");
    let mut program = Program::start("the hostpath driver", command, &log, Lifetime::Owner)?;
    program.wait_until(Duration::from_secs(10), None, || socket.exists())?;
    Ok((program, socket))
}

/// `$LONGSHORE_BIN`, or a release build of this checkout.
fn release_binary() -> Result<PathBuf> {
    if let Some(file) = std::env::var_os("LONGSHORE_BIN") {
        return Ok(file.into());
    }
    run::cargo(&["build", "--release", "--package", "longshore"], &[])?;
    // Beside the directory of the profile that this program is in.
    let exe = std::env::current_exe().context("cannot find this program")?;
    let target = exe.parent().and_then(Path::parent).context("the target directory")?;
    Ok(target.join("release/longshore"))
}

fn show(args: &Args, rounds: &Rounds, order: &[&str]) -> Result<()> {
    let Args { claims, rounds: count, .. } = args;
    println!("\n{claims} claims, {count} rounds, medians; order: {}\n", order.join(" "));
    println!("{}", report::table(rounds, args.claims));
    println!("{}", report::requests_table(rounds, args.claims));
    if let Some(file) = &args.json {
        let all = json!({"claims": claims, "order": order, "rounds": rounds});
        std::fs::write(file, serde_json::to_vec_pretty(&all)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
