//! Running scenarios on several servers at once.

use std::{
    collections::VecDeque,
    fs,
    path::Path,
    sync::{Mutex, PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{Interrupt, Lifetime, Program, longshore};

use super::{
    corpus::{Corpus, Scenario, commands},
    python,
    ratchet::{Case, Outcome},
    server::{Against, Server},
};
use crate::run::root;

/// Scenarios given to one run of the runner: few enough that the shards end together.
const BATCH: usize = 6;
/// No scenario takes this long; a runner that does hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is run where.
pub struct Plan<'a> {
    pub corpus: Corpus,
    pub against: Against,
    pub jobs: usize,
    /// Compare prose too.
    pub strict: bool,
    pub stop: &'a Interrupt,
}

type Queue = Mutex<VecDeque<Vec<Scenario>>>;

/// Runs scenarios, `jobs` at a time, each job against a server of its own. `slow` ones come first,
/// so that no shard starts one when the others are done.
pub fn run(
    plan: &Plan,
    scenarios: &[Scenario],
    slow: &dyn Fn(&Scenario) -> bool,
) -> Result<Vec<Case>> {
    let batches = batches(scenarios, slow);
    let jobs = plan.jobs.clamp(1, batches.len().max(1));
    let queue: Queue = Mutex::new(batches.into());
    let dir = tempfile::Builder::new().prefix("longshore-golden-").tempdir();
    let dir = dir.context("cannot make a temporary directory")?;
    let results: Vec<Result<Vec<Case>>> = thread::scope(|scope| {
        let shards: Vec<_> = (0..jobs)
            .map(|number| {
                let (place, queue) = (dir.path().join(number.to_string()), &queue);
                scope.spawn(move || shard(plan, &place, queue))
            })
            .collect();
        shards
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| bail!("a shard broke")))
            .collect()
    });
    let mut cases = Vec::new();
    for result in results {
        cases.extend(result?);
    }
    cases.sort_by(|a, b| (&a.suite, &a.name).cmp(&(&b.suite, &b.name)));
    Ok(cases)
}

/// Slow ones alone and first. Those that share a program stay together, because then it starts once.
fn batches(scenarios: &[Scenario], slow: &dyn Fn(&Scenario) -> bool) -> Vec<Vec<Scenario>> {
    let (slow, rest): (Vec<&Scenario>, _) = scenarios.iter().partition(|one| slow(one));
    let (shared, plain): (Vec<&Scenario>, _) = rest.into_iter().partition(|one| one.shares);
    let slow = slow.chunks(1);
    let rest = shared.chunks(BATCH).chain(plain.chunks(BATCH));
    slow.chain(rest).map(|chunk| chunk.iter().map(|&one| one.clone()).collect()).collect()
}

fn shard(plan: &Plan, dir: &Path, queue: &Queue) -> Result<Vec<Case>> {
    fs::create_dir_all(dir.join("tmp"))
        .with_context(|| format!("cannot make {}", dir.display()))?;
    let server = Server::start(plan.against, plan.corpus, dir, plan.stop)?;
    let mut cases = Vec::new();
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(batch) = next else { break };
        cases.extend(play(plan, &server, dir, batch)?);
    }
    server.stop()?;
    Ok(cases)
}

/// A runner that breaks off has failed the scenario it was at; the others are run again.
fn play(plan: &Plan, server: &Server, dir: &Path, mut batch: Vec<Scenario>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    while !batch.is_empty() {
        let output = runner(plan, server, dir, &batch)?;
        let seen = plan.corpus.results(&output, &batch);
        batch.retain(|one| !seen.iter().any(|case| case.name == one.name));
        cases.extend(seen);
        if !batch.is_empty() {
            let mut case = plan.corpus.case(&batch.remove(0), Outcome::Failed, "");
            let last = output.lines().last().unwrap_or_default();
            case.detail = format!("the runner broke off: {last}");
            cases.push(case);
        }
    }
    Ok(cases)
}

fn runner(plan: &Plan, server: &Server, dir: &Path, batch: &[Scenario]) -> Result<String> {
    let log = dir.join("runner.log");
    let mut command = python::runner(plan.corpus);
    command.arg("--kubeconfig").arg(server.kubeconfig()).env("TMPDIR", dir.join("tmp"));
    if plan.strict {
        command.arg("--strict");
    }
    if plan.corpus == Corpus::Controllers {
        command.arg("--proto").arg(root().join("crates/csi/proto/csi.proto"));
        // The server is ours alone, and a runner that broke off leaves objects.
        command.args(["--wipe", "--diff-lines", "8"]);
        for (name, line) in our_commands()? {
            command.arg("--component").arg(format!("{name}={line}"));
        }
    }
    command.args(batch.iter().map(|one| &one.file));
    let mut program = Program::start("the scenario runner", command, &log, Lifetime::Owner)?;
    let size = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    let end = Instant::now() + PATIENCE * size;
    while program.runs() {
        if plan.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if Instant::now() >= end {
            // Its end shows as a scenario without a result.
            eprintln!("the scenario runner hangs; its output ends:\n{}", program.tail());
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    program.stop()?;
    fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))
}

/// The command lines with the program of this checkout. They end with the runner even when that
/// is killed.
fn our_commands() -> Result<Vec<(String, String)>> {
    let list = commands(&Corpus::Controllers.dir().join("longshore.yaml"))?;
    let program = format!("setpriv --pdeathsig KILL '{}'", longshore().display());
    list.into_iter()
        .map(|(name, line)| {
            let rest = line.strip_prefix("longshore ");
            let rest = rest.with_context(|| format!("{name} does not start with `longshore `"))?;
            Ok((name, format!("{program} {rest}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_scenarios_come_first_and_alone() {
        let make = |name: String, shares| Scenario {
            file: name.clone().into(),
            suite: "s".to_owned(),
            components: Vec::new(),
            name,
            shares,
        };
        let list: Vec<Scenario> = (0..20).map(|n| make(format!("{n:02}"), n % 2 == 0)).collect();
        let batches = batches(&list, &|one| one.name == "05" || one.name == "06");
        assert_eq!(batches[0].len() + batches[1].len(), 2);
        assert!(batches[2..].iter().all(|b| b.iter().all(|one| one.shares == b[0].shares)));
        assert!(batches.iter().all(|b| b.is_sorted_by(|x, y| x.name < y.name)));
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 20);
    }
}
