//! Runs the test targets of the workspace: built once, then two at a time.

use std::{
    collections::VecDeque,
    io::BufRead as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{
    rings::{Ledger, Ring},
    run,
};

/// How many targets run at once. Tests of one target run in parallel as well, so two fill a small
/// machine while some of them wait.
const LANES: usize = 2;

/// A program of tests that cargo has built.
struct Target {
    package: String,
    name: String,
    program: PathBuf,
    /// Tests expect to run in the directory of their package.
    dir: PathBuf,
}

impl Target {
    fn ring(&self) -> Ring {
        Ring::of(&self.package, &self.name)
    }

    /// Parses a line of cargo's JSON output; `None` for what is no program of tests.
    fn parse(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        let dir = manifest.parent()?.to_owned();
        Some(Self {
            package: package(message["package_id"].as_str()?)?.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
            program: message["executable"].as_str()?.into(),
            dir,
        })
    }
}

/// The name in `path+file:///…/crates/longshore#0.1.0` or `…/crates/core#longshore-core@0.1.0`.
fn package(id: &str) -> Option<&str> {
    let (path, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => path.rsplit('/').next(),
    }
}

/// Builds every test of the workspace and runs it; the ledger gets what each ring took.
pub fn run_all(env: &[(&str, &str)], ledger: &Ledger) -> Result<()> {
    let mut targets = ledger.time(Ring::Unit, || build(env))?;
    // The rings with few long targets come first, so that the short ones fill the gaps at the end.
    targets.sort_by_key(|target| std::cmp::Reverse(target.ring()));
    let queue = Mutex::new(VecDeque::from(targets));
    let total = Mutex::new(Total::default());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(target) = next(&queue) {
                    let done = ledger.time(target.ring(), || run_one(&target, env));
                    total.lock().unwrap_or_else(PoisonError::into_inner).add(&target, done);
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner).verdict()
}

fn next(queue: &Mutex<VecDeque<Target>>) -> Option<Target> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

fn build(env: &[(&str, &str)]) -> Result<Vec<Target>> {
    let args = ["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"];
    eprintln!("+ cargo {}", args.join(" "));
    let mut cargo = run::cargo_command()
        .current_dir(run::root())
        .args(args)
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = cargo.stdout.take().context("cargo has no output")?;
    let mut targets = Vec::new();
    for line in std::io::BufReader::new(output).lines() {
        targets.extend(Target::parse(&line?));
    }
    let status = cargo.wait()?;
    if !status.success() || targets.is_empty() {
        bail!("`cargo {}` failed ({status})", args.join(" "));
    }
    Ok(targets)
}

/// Runs one target and prints its output in one piece; `Ok` has its output.
fn run_one(target: &Target, env: &[(&str, &str)]) -> Result<String> {
    let begin = Instant::now();
    let output = tempfile::NamedTempFile::new()?;
    let file = output.reopen()?;
    let status = Command::new(&target.program)
        .current_dir(&target.dir)
        .env("CARGO_MANIFEST_DIR", &target.dir)
        .envs(env.iter().copied())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start {}", target.program.display()))?;
    let took = begin.elapsed();
    let text = String::from_utf8_lossy(&std::fs::read(output.path())?).into_owned();
    let shown = if status.success() { without_passed(&text) } else { text.clone() };
    eprintln!("== {} {}: {} s, {status}\n{shown}", target.package, target.name, took.as_secs());
    if !status.success() {
        bail!("{status}");
    }
    Ok(text)
}

/// The output without a line for each test that passed.
fn without_passed(text: &str) -> String {
    let kept = text.lines().filter(|line| {
        let passed = line.starts_with("test ") && line.ends_with(" ok");
        !passed && !line.is_empty()
    });
    kept.map(|line| format!("   {line}\n")).collect()
}

#[derive(Default)]
struct Total {
    passed: u64,
    failed: Vec<String>,
}

impl Total {
    fn add(&mut self, target: &Target, done: Result<String>) {
        match done {
            Ok(text) => self.passed += passed(&text),
            Err(error) => {
                self.failed.push(format!("{} {}: {error:#}", target.package, target.name));
            }
        }
    }

    fn verdict(self) -> Result<()> {
        eprintln!("{} tests passed in the targets that passed", self.passed);
        match self.failed.is_empty() {
            true => Ok(()),
            false => bail!("targets with failed tests:\n  {}", self.failed.join("\n  ")),
        }
    }
}

/// The number in `test result: ok. 12 passed; …`.
fn passed(text: &str) -> u64 {
    let results = text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_read_from_both_forms_of_an_id() {
        assert_eq!(package("path+file:///x/crates/longshore#0.1.0"), Some("longshore"));
        assert_eq!(
            package("path+file:///x/crates/core#longshore-core@0.1.0"),
            Some("longshore-core")
        );
    }

    #[test]
    fn passed_tests_are_counted_and_left_out_of_the_output() {
        let text = "\nrunning 2 tests\ntest a ... ok\nheld 7 of 7\ntest b ... ok\n\n\
            test result: ok. 2 passed; 0 failed; 0 ignored\n";
        assert_eq!(passed(text), 2);
        let kept = "   running 2 tests\n   held 7 of 7\n   test result: ok. 2 passed; 0 failed; 0 ignored\n";
        assert_eq!(without_passed(text), kept);
    }
}
