//! csi-sanity against our drivers.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{
    Interrupt, Lifetime, Program, longshore,
    tools::{self, Tool},
};
use serde_json::Value;

use crate::{
    golden::{
        Report,
        corpus::golden_dir,
        ratchet::{Case, Known, Outcome},
        reports,
    },
    setup,
};

/// The whole suite takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// One run of the suite: a kind of driver, a way to use its volumes, and what its pool lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    kind: &'static str,
    usage: Usage,
    pool: PoolOn,
}

/// How volumes are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    Ext4,
    Xfs,
    Btrfs,
    Block,
}

/// What a pool lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolOn {
    /// Whatever holds temporary files.
    Plain,
    /// A filesystem of its own that shares blocks between files.
    Reflink(&'static str),
}

const KINDS: [&str; 2] = ["local", "shared"];
const USAGES: [Usage; 4] = [Usage::Ext4, Usage::Xfs, Usage::Btrfs, Usage::Block];
const POOLS: [PoolOn; 3] = [PoolOn::Plain, PoolOn::Reflink("xfs"), PoolOn::Reflink("btrfs")];

/// What CI runs: every kind, every usage and every pool, but not each with each.
pub const RUNS: [Run; 6] = [
    Run { kind: "local", usage: Usage::Ext4, pool: PoolOn::Plain },
    Run { kind: "local", usage: Usage::Block, pool: PoolOn::Plain },
    Run { kind: "local", usage: Usage::Xfs, pool: PoolOn::Reflink("xfs") },
    Run { kind: "shared", usage: Usage::Ext4, pool: PoolOn::Plain },
    Run { kind: "shared", usage: Usage::Block, pool: PoolOn::Plain },
    Run { kind: "shared", usage: Usage::Btrfs, pool: PoolOn::Reflink("btrfs") },
];

/// Every kind with every usage on every pool.
fn matrix() -> Vec<Run> {
    let mut runs = Vec::new();
    for kind in KINDS {
        for usage in USAGES {
            runs.extend(POOLS.map(|pool| Run { kind, usage, pool }));
        }
    }
    runs
}

/// `cargo xtask sanity [--matrix] [--kind local|shared]`.
pub fn task(args: &[String]) -> Result<()> {
    let mut words = args.iter().flat_map(|arg| arg.split('='));
    let mut runs = RUNS.to_vec();
    while let Some(word) = words.next() {
        match (word, words.next()) {
            ("--matrix", None) => runs = matrix(),
            ("--matrix", Some("--kind")) => {
                runs = matrix();
                only(&mut runs, words.next())?;
            }
            ("--kind", kind) => only(&mut runs, kind)?,
            _ => bail!("say `sanity [--matrix] [--kind local|shared]`"),
        }
    }
    crate::run::build_longshore()?;
    let reports = run(&runs, &crate::interrupt::flag()?)?;
    for report in &reports {
        report.print();
    }
    reports.iter().try_for_each(Report::verdict)
}

fn only(runs: &mut Vec<Run>, kind: Option<&str>) -> Result<()> {
    runs.retain(|run| Some(run.kind) == kind);
    if runs.is_empty() {
        bail!("--kind is local or shared");
    }
    Ok(())
}

/// Makes sure that the suite can run.
pub fn prepare() -> Result<()> {
    if !setup::root_user() {
        bail!("the drivers mount and use loop devices: run this as root");
    }
    setup::build(&[Tool::CsiSanity])
}

/// Runs the suite and prints the table.
pub fn run(runs: &[Run], stop: &Interrupt) -> Result<Vec<Report>> {
    prepare()?;
    let mut out = Vec::new();
    let mut table =
        format!("\n{:<24} {:>7} {:>7} {:>7}\n", "csi-sanity", "passed", "failed", "skipped");
    for run in runs {
        let begin = Instant::now();
        let once = || run.cases(stop).with_context(|| format!("csi-sanity on {}", run.name()));
        let mut cases = once()?;
        if cases.iter().any(slept_through) {
            eprintln!("csi-sanity on {}: it slept through its own connection; again", run.name());
            cases = once()?;
        }
        let count = |outcome| cases.iter().filter(|case| case.outcome == outcome).count();
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(count);
        table += &format!("{:<24} {passed:>7} {failed:>7} {skipped:>7}\n", run.name());
        out.push(run.report(cases, begin.elapsed())?);
    }
    print!("{table}");
    Ok(out)
}

impl Usage {
    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Block => "block",
        }
    }

    /// Size of the volumes that the suite makes; it grows them to twice that.
    fn bytes(self) -> u64 {
        match self {
            Self::Ext4 | Self::Block => 20 << 20,
            Self::Xfs => 320 << 20,
            Self::Btrfs => 128 << 20,
        }
    }
}

impl Run {
    fn name(self) -> String {
        let pool = match self.pool {
            PoolOn::Plain => "plain",
            PoolOn::Reflink(fs) => fs,
        };
        format!("{}-{}-on-{pool}", self.kind, self.usage.name())
    }

    /// Whether the suite has the node grow an ext4 that is mounted. Where a controller can grow
    /// volumes, it asks the node only for the size that it has.
    fn grows_ext4(self) -> bool {
        self.kind == "local" && self.usage == Usage::Ext4
    }

    /// What its lists are called: what a driver can do depends on its kind and on little else.
    fn list(self) -> String {
        let usage = if self.usage == Usage::Block { "block" } else { "fs" };
        format!("{}-{usage}", self.kind)
    }

    /// One list for failed specs and one for skipped ones: a failure is a bug, a skip something that
    /// the driver cannot do yet.
    fn report(self, cases: Vec<Case>, took: Duration) -> Result<Report> {
        let lists = golden_dir().join("known-failures");
        let mut known = BTreeMap::new();
        for ending in ["", "-skipped"] {
            let suite = format!("sanity-{}{ending}", self.list());
            let mut list = Known::read(&lists.join(format!("{suite}.txt")))?;
            if ending.is_empty() && self.grows_ext4() && !may_grow_ext4() {
                list.merge(Known::read(&lists.join("sanity-ext4-without-sys-resource.txt"))?)?;
            }
            let specs = |name: &str| cases.iter().any(|case| case.name == name);
            if let Some(gone) = list.stale(specs).next() {
                bail!("the list {suite} names {gone:?}, which csi-sanity does not have");
            }
            known.insert(suite, list);
        }
        // A spec on the list of skipped ones is judged there, every other one by the list of failures.
        let skipped = format!("sanity-{}-skipped", self.list());
        let on_skipped =
            |name: &str| known.get(&skipped).is_some_and(|list: &Known| list.has(name));
        let cases = cases.into_iter().map(|mut case| {
            let skips = case.outcome == Outcome::Skipped
                || (case.outcome == Outcome::Passed && on_skipped(&case.name));
            if skips {
                case.suite.clone_from(&skipped);
            }
            case
        });
        let cases = cases.collect();
        let title = format!("csi-sanity {}", self.name());
        let junit = reports().join(format!("sanity-{}.xml", self.name()));
        let report = Report::new(title, took, cases, known, junit);
        report.write()?;
        Ok(report)
    }

    fn cases(self, stop: &Interrupt) -> Result<Vec<Case>> {
        let suite = tools::path(Tool::CsiSanity)?;
        let dir = tempfile::Builder::new().prefix("longshore-sanity-").tempdir();
        let dir = dir.context("cannot make a temporary directory")?;
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("pool")).context("cannot make a pool")?;
        let _mounted = match self.pool {
            PoolOn::Plain => None,
            PoolOn::Reflink(fs) => Some(Mounted::new(fs, &at("pool.img"), &at("pool"))?),
        };
        // Not the top directory: a filesystem of its own may keep things there.
        let pool = at("pool").join("volumes");
        let endpoint = format!("unix://{}", at("csi.sock").display());
        let mut command = Command::new(longshore());
        command.args(["driver", "--kind", self.kind, "--node-id", "n1", "--endpoint", &endpoint]);
        command.arg("--pool").arg(pool).args(["--max-volumes", "8"]);
        if self.usage != Usage::Block {
            command.args(["--default-fstype", self.usage.name()]);
        }
        let mut driver =
            Program::start("longshore driver", command, &at("driver.log"), Lifetime::Owner)?;
        driver.wait_until(Duration::from_secs(30), Some(stop), || at("csi.sock").exists())?;
        let mut command = Command::new(suite);
        command.args(["-ginkgo.no-color", "-csi.endpoint", &endpoint]);
        let access = if self.usage == Usage::Block { "block" } else { "mount" };
        command.args(["-csi.testvolumeaccesstype", access, "-csi.testnodevolumeattachlimit"]);
        fs::write(at("mutable.yaml"), "discard: \"true\"\n").context("cannot write parameters")?;
        command.arg("-csi.testvolumemutableparameters").arg(at("mutable.yaml"));
        command.args(["-csi.testvolumesize", &self.usage.bytes().to_string()]);
        command.args(["-csi.testvolumeexpandsize", &(2 * self.usage.bytes()).to_string()]);
        command.arg("-csi.mountdir").arg(at("mount")).arg("-csi.stagingdir").arg(at("stage"));
        command.arg("-ginkgo.json-report").arg(at("report.json"));
        let mut program =
            Program::start("csi-sanity", command, &at("csi-sanity.log"), Lifetime::Owner)?;
        wait(&mut program, stop)?;
        let tail = program.tail();
        program.stop()?;
        driver.stop()?;
        read(&at("report.json"), &format!("sanity-{}", self.list()))
            .with_context(|| format!("csi-sanity ended:\n{tail}"))
    }
}

/// A filesystem in a file, mounted for as long as this lives.
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Makes the filesystem, with 8 GiB that are only taken as they are written to.
    pub fn new(fs: &str, image: &Path, at: &Path) -> Result<Self> {
        let file = fs::File::create_new(image).context("cannot make an image")?;
        file.set_len(8 << 30).context("cannot size an image")?;
        quiet(Command::new(format!("mkfs.{fs}")).arg("-q").arg(image))?;
        quiet(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = quiet(Command::new("umount").arg(&self.at)) {
            eprintln!("{error:#}");
        }
    }
}

fn quiet(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Whether the kernel lets programs here grow a mounted ext4 (`CAP_SYS_RESOURCE`).
fn may_grow_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << 24) != 0)
}

fn wait(program: &mut Program, stop: &Interrupt) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while program.runs() {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if Instant::now() >= end {
            bail!("csi-sanity hangs; its output ends:\n{}", program.tail());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn read(file: &Path, suite: &str) -> Result<Vec<Case>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let report: Value = serde_json::from_slice(&bytes).context("its report is no JSON")?;
    let specs = report.pointer("/0/SpecReports").and_then(Value::as_array);
    let specs = specs.context("its report has no specs")?;
    let cases: Vec<Case> = specs.iter().filter_map(|spec| case(spec, suite)).collect();
    if cases.is_empty() {
        bail!("its report has no specs");
    }
    Ok(cases)
}

/// Whether csi-sanity waited for a connection that it had: a connection that is ready between its two looks
/// is waited for a whole minute, until it is no longer ready. A driver that cannot be reached fails again.
fn slept_through(case: &Case) -> bool {
    case.outcome == Outcome::Failed
        && case.seconds >= 60.0
        && case.detail.contains("Connection timed out")
}

/// A spec of ginkgo's report. Set-up nodes are in it too, and count only when they fail.
fn case(spec: &Value, suite: &str) -> Option<Case> {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let outcome = match spec["State"].as_str() {
        Some("passed") => Outcome::Passed,
        Some("skipped" | "pending") => Outcome::Skipped,
        _ => Outcome::Failed,
    };
    let kind = text("LeafNodeType");
    if kind != "It" && outcome != Outcome::Failed {
        return None;
    }
    let mut names: Vec<String> = spec["ContainerHierarchyTexts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    names.push(if kind == "It" { text("LeafNodeText") } else { kind });
    let detail = spec["Failure"]["Message"].as_str().unwrap_or_default().to_owned();
    let seconds = Duration::from_nanos(spec["RunTime"].as_u64().unwrap_or_default()).as_secs_f64();
    Some(Case { suite: suite.to_owned(), name: names.join(" "), outcome, seconds, detail })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn specs_are_read_from_a_report() {
        let spec = |kind: &str, state: &str| {
            json!({"ContainerHierarchyTexts": ["Node", "Stage"], "LeafNodeType": kind,
                   "LeafNodeText": "should work", "State": state, "RunTime": 1_500_000_000_u64,
                   "Failure": {"Message": "why"}})
        };
        let seen = case(&spec("It", "passed"), "s").unwrap();
        assert_eq!((seen.name.as_str(), seen.outcome), ("Node Stage should work", Outcome::Passed));
        assert!((seen.seconds - 1.5).abs() < 1e-9);
        assert_eq!(case(&spec("It", "skipped"), "s").unwrap().outcome, Outcome::Skipped);
        assert_eq!(case(&spec("It", "timedout"), "s").unwrap().outcome, Outcome::Failed);
        assert!(case(&spec("BeforeSuite", "passed"), "s").is_none());
        assert_eq!(
            case(&spec("BeforeSuite", "failed"), "s").unwrap().name,
            "Node Stage BeforeSuite"
        );
    }
}
