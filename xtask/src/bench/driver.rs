//! `cargo xtask bench driver`: our driver and csi-driver-host-path, by the same calls in one run.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::{
    Lifetime, Program,
    tools::{self, Tool},
};
use serde_json::Value;

use crate::{run, sanity::Mounted, setup};

/// Figures in the order of the table, with what they are called there.
const FIGURES: [(&str, &str); 5] = [
    ("createsPerSecond", "creates per second, 16 callers"),
    ("deletesPerSecond", "deletes per second, 16 callers"),
    ("createToStagedMs", "create to staged, ms"),
    ("snapshotMs", "snapshot of 1 GiB with 100 MiB, ms"),
    ("cloneMs", "clone of the same, ms"),
];

/// Who is measured.
const CONTENDERS: [&str; 3] = ["hostpath", "ours on ext4", "ours on xfs"];

type Rounds = BTreeMap<&'static str, Vec<BTreeMap<String, f64>>>;

/// Runs the comparison.
pub fn bench(args: &[String]) -> Result<()> {
    let rounds = match args {
        [] => 3,
        [flag, value] if flag == "--rounds" => value.parse().context("--rounds needs a number")?,
        _ => bail!("say `bench driver [--rounds R]`"),
    };
    ensure!(rounds > 0, "--rounds is at least 1");
    ensure!(setup::root_user(), "the drivers mount and use loop devices: run this as root");
    setup::build(&[Tool::Hostpath])?;
    let load = load_program()?;
    let stop = crate::interrupt::flag()?;
    let mut figures = Rounds::new();
    for round in 0..rounds {
        for turn in 0..CONTENDERS.len() {
            ensure!(!stop.load(std::sync::atomic::Ordering::Relaxed), "interrupted");
            // Whoever comes first may find a colder machine.
            let name = CONTENDERS[(round + turn) % CONTENDERS.len()];
            let seen = measure(&load, name).with_context(|| format!("round {round}: {name}"))?;
            eprintln!("round {round}: {name}: {seen:?}");
            figures.entry(name).or_default().push(seen);
        }
    }
    print!("{}", table(&figures, rounds));
    Ok(())
}

/// The load generator, which serves our driver too: the same code as `longshore driver`, without
/// the rest of the binary.
fn load_program() -> Result<PathBuf> {
    run::cargo(&["build", "--release", "--package", "longshore-driver", "--example", "load"], &[])?;
    let exe = std::env::current_exe().context("cannot find this program")?;
    let target = exe.parent().and_then(Path::parent).context("the target directory")?;
    Ok(target.join("release/examples/load"))
}

fn measure(load: &Path, name: &str) -> Result<BTreeMap<String, f64>> {
    let dir = tempfile::Builder::new().prefix("longshore-bench-").tempdir();
    let dir = dir.context("cannot make a temporary directory")?;
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("pool")).context("cannot make a pool")?;
    let _mounted = match name {
        "ours on xfs" => Some(Mounted::new("xfs", &at("pool.img"), &at("pool"))?),
        _ => None,
    };
    let socket = at("csi.sock");
    let command = if name == "hostpath" {
        let mut command = Command::new(tools::path(Tool::Hostpath)?);
        command.arg(format!("--endpoint=unix://{}", socket.display()));
        command.arg(format!("--statedir={}", at("pool").display()));
        command.args(["--nodeid=n1", "--enable-topology=false"]);
        command
    } else {
        let mut command = Command::new(load);
        command.arg("serve").arg(at("pool").join("volumes")).arg(&socket);
        command
    };
    let mut driver = Program::start(name, command, &at("driver.log"), Lifetime::Owner)?;
    driver.wait_until(Duration::from_secs(30), None, || socket.exists())?;
    let seen = Command::new(load).arg("measure").arg(&socket).arg(dir.path()).output();
    let seen = seen.context("cannot run the load generator")?;
    if !seen.status.success() {
        let said = String::from_utf8_lossy(&seen.stderr);
        bail!("the load generator failed ({}): {said}\n{}", seen.status, driver.tail());
    }
    driver.stop()?;
    let seen: BTreeMap<String, Value> =
        serde_json::from_slice(&seen.stdout).context("its figures are no JSON")?;
    Ok(seen.into_iter().filter_map(|(key, value)| Some((key, value.as_f64()?))).collect())
}

fn table(figures: &Rounds, rounds: usize) -> String {
    let mut out = format!("\n{rounds} rounds, medians\n\n| |");
    for name in CONTENDERS {
        out += &format!(" {name} |");
    }
    out += "\n|---|---:|---:|---:|\n";
    for (key, label) in FIGURES {
        out += &format!("| {label} |");
        for name in CONTENDERS {
            let seen = figures.get(name).into_iter().flatten();
            out += &format!(" {:.1} |", median(seen.filter_map(|one| one.get(key).copied())));
        }
        out += "\n";
    }
    out
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    match figures[..] {
        [] => f64::NAN,
        _ if figures.len() % 2 == 1 => figures[figures.len() / 2],
        _ => f64::midpoint(figures[figures.len() / 2 - 1], figures[figures.len() / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_rounds_is_shown() {
        let one = |n: f64| FIGURES.map(|(key, _)| (key.to_owned(), n)).into();
        let rounds: Rounds =
            CONTENDERS.map(|name| (name, vec![one(3.0), one(1.0), one(2.0)])).into();
        let text = table(&rounds, 3);
        assert_eq!(text.matches(" 2.0 |").count(), FIGURES.len() * CONTENDERS.len(), "{text}");
        assert!((median([4.0, 1.0].into_iter()) - 2.5).abs() < 1e-9);
    }
}
