//! Recorded behaviour of the real Kubernetes programs, played against ours.
//!
//! `tests/golden` holds the scenarios, the results and the lists of what is known to fail.

pub mod ci;
pub mod corpus;
pub mod junit;
mod options;
pub mod python;
pub mod ratchet;
mod server;
mod shards;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::Interrupt;

use corpus::{Corpus, Scenario, commands};
use options::Options;
use ratchet::{Case, Known, Outcome, Tally};
use server::Against;
use shards::Plan;

/// `cargo xtask golden …`.
pub fn task(args: &[String]) -> Result<()> {
    let (what, rest) =
        args.split_first().context("say `golden apiserver`, `controllers` or `ci`")?;
    let corpus = match what.as_str() {
        "apiserver" => Corpus::Apiserver,
        "controllers" => Corpus::Controllers,
        "ci" => return ci::task(rest),
        other => bail!("there is no corpus {other:?}: say apiserver, controllers or ci"),
    };
    let options = Options::parse(rest)?;
    crate::run::build_longshore()?;
    let report = run(corpus, &options, &crate::interrupt::flag()?)?;
    report.print();
    report.verdict()
}

/// The result of one corpus against one server.
pub struct Report {
    title: String,
    took: Duration,
    cases: Vec<Case>,
    known: BTreeMap<String, Known>,
    junit: PathBuf,
}

/// Runs a corpus as asked and writes its JUnit file.
pub fn run(corpus: Corpus, options: &Options, stop: &Interrupt) -> Result<Report> {
    let begin = Instant::now();
    let against = options.against;
    if options.strict && corpus != Corpus::Apiserver {
        bail!("--strict is for the conversations with the API server");
    }
    let all = corpus.scenarios()?;
    let suites: BTreeSet<String> = all.iter().map(|one| one.suite.clone()).collect();
    let mut known = BTreeMap::new();
    for suite in &suites {
        let list = corpus.known(suite, against.name(), options.strict)?;
        let here = |name: &str| all.iter().any(|one| one.name == name && one.suite == *suite);
        if let Some(gone) = list.stale(here).next() {
            bail!(
                "the list of known failures of {suite} names {gone:?}, which is no scenario of it"
            );
        }
        known.insert(suite.clone(), list);
    }
    let is_known = |one: &Scenario| known.get(&one.suite).is_some_and(|list| list.has(&one.name));
    let chosen = options.choose(corpus, all, &is_known)?;
    let (able, unable): (Vec<_>, Vec<_>) = split(corpus, chosen)?;
    if !able.is_empty() {
        python::prepare(corpus)?;
    }
    let jobs = options.jobs.unwrap_or(match (corpus, against) {
        (Corpus::Controllers, Against::Embedded) => 3,
        _ => 2,
    });
    server::build_tools(against, corpus)?;
    let plan = Plan { corpus, against, jobs, strict: options.strict, stop };
    let mut cases = shards::run(&plan, &able, &is_known)?;
    play_timed_again(&plan, &able, &mut cases)?;
    cases.extend(unable);
    let prose = if options.strict { ", prose included," } else { "" };
    let title = format!("{}{prose} on the {} API server", corpus.name(), against.name());
    let junit = options
        .junit
        .clone()
        .unwrap_or_else(|| reports().join(format!("{}-{}.xml", corpus.name(), against.name())));
    let report = Report { title, took: begin.elapsed(), cases, known, junit };
    report.write()?;
    Ok(report)
}

/// A few scenarios hold only within one second of the clock, on any server. They get three tries.
fn play_timed_again(plan: &Plan, all: &[Scenario], cases: &mut Vec<Case>) -> Result<()> {
    let timed = plan.corpus.timed()?;
    for _ in 0..2 {
        let failed = |one: &&Scenario| {
            let mut own = cases.iter().filter(|case| case.name == one.name);
            timed.has(&one.name) && own.any(|case| case.outcome == Outcome::Failed)
        };
        let again: Vec<Scenario> = all.iter().filter(failed).cloned().collect();
        if again.is_empty() {
            break;
        }
        cases.retain(|case| !again.iter().any(|one| one.name == case.name));
        cases.extend(shards::run(plan, &again, &|_| false)?);
    }
    Ok(())
}

/// Scenarios whose programs exist, and failures for those whose programs do not.
fn split(corpus: Corpus, chosen: Vec<Scenario>) -> Result<(Vec<Scenario>, Vec<Case>)> {
    if corpus == Corpus::Apiserver {
        return Ok((chosen, Vec::new()));
    }
    let ours = commands(&corpus.dir().join("longshore.yaml"))?;
    let missing = |one: &Scenario| {
        one.components.iter().find(|name| !ours.iter().any(|(ours, _)| ours == *name)).cloned()
    };
    let (able, unable): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|one| missing(one).is_none());
    let unable = unable.iter().map(|one| {
        let mut case = corpus.case(one, Outcome::Failed, "");
        case.detail = format!("there is no {} yet", missing(one).unwrap_or_default());
        case
    });
    Ok((able, unable.collect()))
}

/// Where reports go.
pub fn reports() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| crate::run::root().join("target")).join("golden")
}

impl Report {
    /// A report on suites that were judged elsewhere.
    pub fn new(
        title: String,
        took: Duration,
        cases: Vec<Case>,
        known: BTreeMap<String, Known>,
        junit: PathBuf,
    ) -> Self {
        Self { title, took, cases, known, junit }
    }

    /// Writes the JUnit file.
    pub fn write(&self) -> Result<()> {
        let known =
            |case: &Case| self.known.get(&case.suite).is_some_and(|list| list.has(&case.name));
        junit::write(&self.junit, &self.title, &self.cases, &known)
    }

    fn tallies(&self) -> Vec<(&str, Tally)> {
        let suites: BTreeSet<&str> = self.cases.iter().map(|case| case.suite.as_str()).collect();
        let none = Known::default();
        let tally = |suite| {
            let known = self.known.get(suite).unwrap_or(&none);
            (suite, Tally::of(self.cases.iter().filter(|case| case.suite == suite), known))
        };
        suites.into_iter().map(tally).collect()
    }

    /// One line per suite, and what is wrong below.
    pub fn print(&self) {
        println!("\n{} ({:.0} s, {})", self.title, self.took.as_secs_f64(), self.junit.display());
        let tallies = self.tallies();
        for (suite, tally) in &tallies {
            println!("  {}", tally.line(suite));
        }
        for (suite, tally) in &tallies {
            for name in &tally.new {
                println!("NEW FAILURE {name}");
                let mut of_suite = self.cases.iter().filter(|case| case.suite == *suite);
                let case = of_suite.find(|case| case.name == *name);
                for line in case.iter().flat_map(|case| case.detail.lines()) {
                    println!("     {line}");
                }
            }
            for name in &tally.surprising {
                println!("PASSES NOW  {name}: remove it from the known failures of {suite}");
            }
        }
    }

    /// The first line of the report, with the time.
    pub fn summary(&self) -> String {
        let passed: usize = self.tallies().iter().map(|(_, tally)| tally.passed).sum();
        let known: usize = self.tallies().iter().map(|(_, tally)| tally.known).sum();
        let verdict = if self.good() { "good" } else { "BAD" };
        format!(
            "{:<44} {:>5.0} s  {passed:>4} passed  {known:>4} known failures  {verdict}",
            self.title,
            self.took.as_secs_f64()
        )
    }

    pub fn good(&self) -> bool {
        self.tallies().iter().all(|(_, tally)| tally.good())
    }

    pub fn verdict(&self) -> Result<()> {
        if !self.good() {
            bail!("{}: not what the lists of known failures say", self.title);
        }
        Ok(())
    }
}
