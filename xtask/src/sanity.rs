//! csi-sanity against our drivers.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
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

/// One run of the suite: a kind of driver and a way to use its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    kind: &'static str,
    /// As the list is named.
    usage: &'static str,
    /// As csi-sanity calls it.
    access: &'static str,
}

/// Every kind with every usage.
pub const RUNS: [Run; 4] = [
    Run { kind: "local", usage: "fs", access: "mount" },
    Run { kind: "local", usage: "block", access: "block" },
    Run { kind: "shared", usage: "fs", access: "mount" },
    Run { kind: "shared", usage: "block", access: "block" },
];

/// `cargo xtask sanity [--kind local|shared]`.
pub fn task(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().flat_map(|arg| arg.split('=')).collect();
    let runs: Vec<Run> = match words[..] {
        [] => RUNS.to_vec(),
        ["--kind", kind] => RUNS.into_iter().filter(|run| run.kind == kind).collect(),
        _ => bail!("say `sanity` or `sanity --kind local|shared`"),
    };
    if runs.is_empty() {
        bail!("--kind is local or shared");
    }
    crate::run::build_longshore()?;
    let reports = run(&runs, &crate::interrupt::flag()?)?;
    for report in &reports {
        report.print();
    }
    reports.iter().try_for_each(Report::verdict)
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
        format!("\n{:<16} {:>7} {:>7} {:>7}\n", "csi-sanity", "passed", "failed", "skipped");
    for run in runs {
        let begin = Instant::now();
        let cases = run.cases(stop).with_context(|| format!("csi-sanity on {}", run.name()))?;
        let count = |outcome| cases.iter().filter(|case| case.outcome == outcome).count();
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(count);
        table += &format!("{:<16} {passed:>7} {failed:>7} {skipped:>7}\n", run.name());
        out.push(run.report(cases, begin.elapsed())?);
    }
    print!("{table}");
    Ok(out)
}

impl Run {
    fn name(self) -> String {
        format!("{}-{}", self.kind, self.usage)
    }

    /// One list for failed specs and one for skipped ones: a failure is a bug, a skip something that
    /// the driver cannot do yet.
    fn report(self, cases: Vec<Case>, took: Duration) -> Result<Report> {
        let lists = golden_dir().join("known-failures");
        let mut known = BTreeMap::new();
        for ending in ["", "-skipped"] {
            let suite = format!("sanity-{}{ending}", self.name());
            let list = Known::read(&lists.join(format!("{suite}.txt")))?;
            let specs = |name: &str| cases.iter().any(|case| case.name == name);
            if let Some(gone) = list.stale(specs).next() {
                bail!("the list {suite} names {gone:?}, which csi-sanity does not have");
            }
            known.insert(suite, list);
        }
        // A spec on the list of skipped ones is judged there, every other one by the list of failures.
        let skipped = format!("sanity-{}-skipped", self.name());
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
        let endpoint = format!("unix://{}", at("csi.sock").display());
        let mut command = Command::new(longshore());
        command.args(["driver", "--kind", self.kind, "--node-id", "n1", "--endpoint", &endpoint]);
        command.arg("--pool").arg(at("pool"));
        let mut driver =
            Program::start("longshore driver", command, &at("driver.log"), Lifetime::Owner)?;
        driver.wait_until(Duration::from_secs(30), Some(stop), || at("csi.sock").exists())?;
        let mut command = Command::new(suite);
        command.args(["-ginkgo.no-color", "-csi.endpoint", &endpoint]);
        command.args(["-csi.testvolumeaccesstype", self.access]);
        command.arg("-csi.mountdir").arg(at("mount")).arg("-csi.stagingdir").arg(at("stage"));
        command.arg("-ginkgo.json-report").arg(at("report.json"));
        let mut program =
            Program::start("csi-sanity", command, &at("csi-sanity.log"), Lifetime::Owner)?;
        wait(&mut program, stop)?;
        let tail = program.tail();
        program.stop()?;
        driver.stop()?;
        read(&at("report.json"), &format!("sanity-{}", self.name()))
            .with_context(|| format!("csi-sanity ended:\n{tail}"))
    }
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
