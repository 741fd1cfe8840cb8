//! Development tasks, run as `cargo xtask TASK`.
//!
//! `test` is the README's test command and does its own set-up; `check` is what a change must pass
//! before it lands; `leftovers` proves that a run cleaned up after itself.

mod bench;
mod cases;
mod ci;
mod deploy;
mod full;
mod golden;
mod image;
mod interrupt;
mod leftovers;
mod licenses;
mod real_kube;
mod rings;
mod run;
mod sanity;
mod setup;
mod sizes;
mod targets;

use std::process::ExitCode;

use anyhow::{Result, bail};
use longshore_real_kube::tools;

const HELP: &str = "\
cargo xtask TASK

  test [ARGS]   install what the tests need (as root), then run every test; ARGS go to cargo test
  ci            what a change must pass: check, deny, test, golden, docs and the demo, in rings side by side
  check         format, clippy with -D warnings, licenses
  docs          rustdoc without warnings, and the commands of README and docs as written
  quick         format, clippy and the tests of core, flags, csi, cluster and controllers; needs no root
  sizes [--check | --record]
                how large files and functions are; with --check only whether one is too large or a number of
                xtask/sizes.json has risen; with --record lowers those numbers to what is measured
  attacks       the attack ring alone: pods, volumes, roles, bombs, damage; prints what was tried and held
  deny          licenses, banned crates and sources by cargo-deny, which is built when it is missing
  cases [SPEC]  which case of the specifications has a test; with SPEC it fails when one has none
  licenses      every dependency's license is on the list in deny.toml
  leftovers save|compare
                remember what the machine holds, and later fail if more is there
  real-kube build [TOOL…] | up [FLAGS] | down [DIR…] | suite [--binary FILE]
                build the real Kubernetes programs; start and end a cluster of them; our image and chart on one
  golden apiserver|controllers [--against embedded|real] [--strict] [--component NAME]… [--only TEXT]
         [--jobs N] [--junit FILE] [--sample COMMIT]
                play recorded scenarios against our programs; `golden ci` plays what CI needs
  sanity [--matrix] [--kind local|shared]
                csi-sanity against our drivers; with --matrix every filesystem on every kind of pool
  image [--arch amd64|arm64] [--binary FILE] [--dist] [--packages FILE] [--out DIR] [--name NAME:TAG]
                the image of Longshore with the list of its contents, without a container engine
  deploy [--check]
                write what `deploy` has from elsewhere (CRDs and rules in the charts, Dockerfile), or only compare it
  full          the long loops: simulator sweeps, crash loops, both corpora on the real API server, README's
                installation, benches
  bench provision [--claims N] [--rounds R] [--only NAME,NAME] [--json FILE]
                the official provisioner and ours on one real control plane, side by side
  bench api [--seconds S] [--rounds R] [--objects N] [--json FILE]
                etcd with kube-apiserver, and `longshore apiserver`, side by side
  bench bind [--volumes N,N] [--claims N] [--json FILE]
                the binder of kube-controller-manager and ours, one claim among many volumes
  bench burst [--claims N,N] [--rounds R] [--dir DIR] [--json FILE]
                many claims at once, embedded mode, until Bound and until their volumes are gone
  bench driver [--rounds R]
                csi-driver-host-path and our driver, side by side
  bench attach [--pairs N] [--rounds R] [--json FILE]
                csi-attacher, where there is one, and ours, attach and detach pairs a second
  bench node [--pods N] [--together N] [--json FILE]
                pods with new claims, in the embedded mode and with a real kubelet
  bench exec [--times N] [--json FILE]
                a command in a running pod through the embedded API, by a bare WebSocket client
  bench resize [--claims N] [--rounds R] [--json FILE]
                csi-resizer and ours, many claims that ask for more at once
  bench scale [--few N] [--volumes N] [--events N] [--on embedded,real] [--only NAME,NAME] [--json FILE]
                each sidecar and controller among very many objects: start, memory, events, a lost API
  bench snapshots [--only PART,PART] [--claims N] [--many N] [--existing N] [--rounds R] [--dir DIR] [--json FILE]
                many snapshots at once: in `longshore up`, beside the official pair, and among thousands
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match task(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn task(args: &[String]) -> Result<()> {
    let (name, rest) = match args {
        [] => ("help", args),
        [name, rest @ ..] => (name.as_str(), rest),
    };
    match name {
        "test" => test(rest),
        "ci" => ci::task(),
        "check" => check(),
        "docs" => docs().and_then(|()| documentation()),
        "attacks" => attacks(),
        "deny" => deny(),
        "quick" => quick(),
        "sizes" => sizes::task(rest),
        "cases" => cases::show(rest.first().map(String::as_str)),
        "licenses" => licenses::check(),
        "leftovers" => leftovers(rest),
        "golden" => golden::task(rest),
        "sanity" => sanity::task(rest),
        "real-kube" => real_kube::run(rest),
        "full" => full::task(),
        "bench" => bench::bench(rest),
        "image" => image::task(rest),
        "deploy" => deploy::task(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("there is no task {other:?}; `cargo xtask help` lists them"),
    }
}

fn test(args: &[String]) -> Result<()> {
    setup::prepare()?;
    setup::real_tools()?;
    let path = setup::path_with_kubectl();
    let python = setup::python_client()?;
    let env = [("PATH", path.as_str()), ("LONGSHORE_PYTHON", python.as_str())];
    let ledger = rings::Ledger::default();
    ledger.time(rings::Ring::Unit, || {
        run::cargo(&["build", "--workspace", "--bin", "longshore"], &[])
    })?;
    if !args.is_empty() {
        let mut line = vec!["test", "--workspace", "--no-fail-fast"];
        line.extend(args.iter().map(String::as_str));
        return run::cargo(&line, &env);
    }
    let doctests = || run::cargo(&["test", "--workspace", "--doc"], &env);
    let done =
        targets::run_all(&env, &ledger).and_then(|()| ledger.time(rings::Ring::Docs, doctests));
    ledger.close(done)
}

/// Rustdoc of every crate, without a warning.
fn docs() -> Result<()> {
    let line = ["doc", "--workspace", "--no-deps"];
    run::cargo(&line, &[("RUSTDOCFLAGS", "-D warnings")])
}

/// The commands of the pages, and how each block is checked.
fn documentation() -> Result<()> {
    setup::prepare()?;
    let path = setup::path_with_kubectl();
    let line = ["test", "--package", "longshore", "--test", "docs", "--", "--nocapture"];
    run::cargo(&line, &[("PATH", &path)])
}

fn attacks() -> Result<()> {
    setup::prepare()?;
    setup::real_tools()?;
    for (package, target) in rings::ATTACKS {
        let begin = std::time::Instant::now();
        run::cargo(&["test", "--package", package, "--test", target], &[])?;
        eprintln!("{target}: {} s", begin.elapsed().as_secs());
    }
    Ok(())
}

/// Which version of cargo-deny judges the dependencies.
const DENY: &str = "0.20.2";

/// Licenses, banned crates and sources, by `cargo deny`; built into the cache when it is not there.
/// Advisories are left out: their database is not a package.
fn deny() -> Result<()> {
    let home = tools::cache_dir().join(format!("cargo-deny-{DENY}"));
    let program = home.join("bin/cargo-deny");
    if !program.exists() {
        let root = home.display().to_string();
        run::cargo(
            &["install", "cargo-deny", "--version", DENY, "--locked", "--root", &root],
            &[],
        )?;
    }
    let args = ["--locked", "check", "bans", "licenses", "sources"];
    eprintln!("+ cargo-deny {}", args.join(" "));
    let status =
        std::process::Command::new(program).current_dir(run::root()).args(args).status()?;
    if !status.success() {
        bail!("cargo deny found something ({status}); deny.toml has the rules");
    }
    Ok(())
}

fn check() -> Result<()> {
    run::cargo(&["fmt", "--all", "--check"], &[])?;
    // What takes a second comes before what takes minutes.
    sizes::task(&["--check".to_owned()])?;
    licenses::check()?;
    cases::check()?;
    deploy::task(&["--check".to_owned()])?;
    run::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

/// What needs neither root nor a minute: format, lints and the tests of the crates that hold the rules.
fn quick() -> Result<()> {
    const CRATES: [&str; 5] = [
        "longshore-core",
        "longshore-flags",
        "longshore-csi",
        "longshore-cluster",
        "longshore-controllers",
    ];
    run::cargo(&["fmt", "--all", "--check"], &[])?;
    let packages: Vec<&str> = CRATES.iter().flat_map(|name| ["--package", name]).collect();
    let clippy = [&["clippy"], &packages[..], &["--all-targets", "--", "-D", "warnings"]].concat();
    run::cargo(&clippy, &[])?;
    run::cargo(&[&["test"], &packages[..]].concat(), &[])
}

fn leftovers(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("save") => leftovers::Snapshot::take()?.save(),
        Some("compare") => leftovers::Snapshot::load()?.compare(),
        _ => bail!("say `leftovers save` or `leftovers compare`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_has_each_task_and_each_bench_once() {
        let starts_a_task = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
        let mut named: Vec<String> = Vec::new();
        for line in HELP.lines().filter(starts_a_task) {
            let mut words = line.split_whitespace();
            let task = words.next().unwrap_or_default();
            let bench = words.next().filter(|_| task == "bench").unwrap_or_default();
            named.push(format!("{task} {bench}").trim_end().to_owned());
        }
        for name in &named {
            assert_eq!(named.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        for name in ["test", "ci", "full", "bench provision", "bench scale", "bench snapshots"] {
            assert!(named.iter().any(|other| other == name), "no {name} in {named:?}");
        }
    }
}
