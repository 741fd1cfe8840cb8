//! The two corpora: which scenarios there are, and what their runners print.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::ratchet::{Case, Known, Outcome};
use crate::run::root;

/// A set of recorded scenarios with its runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corpus {
    /// Conversations with the API server.
    Apiserver,
    /// What controllers do.
    Controllers,
}

/// One scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub file: PathBuf,
    /// Whose list it is on.
    pub suite: String,
    /// The programs it needs.
    pub components: Vec<String>,
    /// A program of it runs on through the scenarios that follow.
    pub shares: bool,
}

impl Corpus {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apiserver => "apiserver",
            Self::Controllers => "controllers",
        }
    }

    pub fn dir(self) -> PathBuf {
        golden_dir().join(self.name())
    }

    /// All scenarios by name.
    pub fn scenarios(self) -> Result<Vec<Scenario>> {
        let (dir, ending) = match self {
            Self::Apiserver => (self.dir(), "json"),
            Self::Controllers => (self.dir().join("scenarios"), "yaml"),
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let file = entry?.path();
            if file.extension().is_some_and(|found| found == ending) {
                found.push(self.scenario(file)?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        if found.is_empty() {
            bail!("no scenarios in {}", dir.display());
        }
        Ok(found)
    }

    fn scenario(self, file: PathBuf) -> Result<Scenario> {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if self == Self::Apiserver {
            let suite = self.name().to_owned();
            return Ok(Scenario { name, file, suite, components: Vec::new(), shares: false });
        }
        let text = fs::read_to_string(&file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let components = keys_below(&text, "components:");
        let suite = suite_of(&name, &components);
        let suite = suite.with_context(|| format!("{} names no components", file.display()))?;
        let shares = text.contains("shared: true");
        Ok(Scenario { name, suite, components, file, shares })
    }

    /// What is known to fail in a suite against a kind of server; `strict` when prose is compared.
    pub fn known(self, suite: &str, against: &str, strict: bool) -> Result<Known> {
        let lists = golden_dir().join("known-failures");
        let stem = match self {
            Self::Apiserver => lists.join(suite),
            Self::Controllers => lists.join("controllers").join(suite),
        };
        let file = |ending: &str| PathBuf::from(format!("{}{ending}", stem.display()));
        let mut known = Known::read(&file(".txt"))?;
        known.merge(Known::read(&file(&format!(".{against}.txt")))?)?;
        if strict {
            known.merge(Known::read(&file(".strict.txt"))?)?;
        }
        Ok(known)
    }

    /// Scenarios that depend on when they are played.
    pub fn timed(self) -> Result<Known> {
        Known::read(&self.dir().join("timed.txt"))
    }

    /// Reads what the runner printed about the scenarios it was given. A runner that broke off says
    /// nothing about some.
    pub fn results(self, output: &str, asked: &[Scenario]) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for line in output.lines() {
            if let Some(more) = line.strip_prefix("     ") {
                if let Some(case) = cases.last_mut().filter(|case| case.outcome != Outcome::Passed)
                {
                    case.detail.push_str(if case.detail.is_empty() { "" } else { "\n" });
                    case.detail.push_str(more);
                }
                continue;
            }
            let Some((outcome, name, rest)) = result_line(line) else { continue };
            let Some(scenario) = asked.iter().find(|one| one.name == name) else { continue };
            cases.push(self.case(scenario, outcome, rest));
        }
        cases
    }

    pub fn case(self, scenario: &Scenario, outcome: Outcome, rest: &str) -> Case {
        let seconds = rest.split_whitespace().last().unwrap_or_default();
        let seconds = seconds.trim_matches(['(', ')', 's']).parse().unwrap_or_default();
        // This runner puts the reason on the same line, the other one below.
        let told = self == Self::Apiserver && outcome == Outcome::Failed;
        let detail = if told { rest.trim() } else { "" };
        Case {
            suite: scenario.suite.clone(),
            name: scenario.name.clone(),
            outcome,
            seconds,
            detail: detail.to_owned(),
        }
    }
}

/// The directory of both corpora and of the lists.
pub fn golden_dir() -> PathBuf {
    root().join("tests/golden")
}

/// The components that have a command line, from a file of `name: command` lines.
pub fn commands(file: &Path) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let pair = line.split_once(": ").with_context(|| format!("cannot read {line:?}"))?;
            Ok((pair.0.to_owned(), pair.1.trim().to_owned()))
        })
        .collect()
}

/// The fixed scenarios, and `more` others that the commit chooses.
///
/// Every commit tries others, the same commit always the same ones.
pub fn sample(
    fixed: &BTreeSet<String>,
    others: &[String],
    more: usize,
    commit: &str,
) -> BTreeSet<String> {
    let mut others: Vec<_> = others
        .iter()
        .filter(|name| !fixed.contains(*name))
        .map(|name| (Sha256::digest(format!("{commit} {name}")), name))
        .collect();
    others.sort();
    let drawn = others.into_iter().take(more).map(|(_, name)| name.clone());
    fixed.iter().cloned().chain(drawn).collect()
}

/// `ok NAME …` or `FAIL NAME …`.
fn result_line(line: &str) -> Option<(Outcome, &str, &str)> {
    let (word, rest) = line.split_once(' ')?;
    let outcome = match word {
        "ok" => Outcome::Passed,
        "FAIL" => Outcome::Failed,
        _ => return None,
    };
    let rest = rest.trim_start();
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((outcome, name, rest))
}

/// The keys of a mapping at the top level of a YAML text that is indented by two.
fn keys_below(text: &str, key: &str) -> Vec<String> {
    let block = text.lines().skip_while(|line| line.trim_end() != key).skip(1);
    let block = block.take_while(|line| line.starts_with(' ') || line.is_empty());
    block
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with([' ', '#', '-']))
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// The component in the scenario's name, or the first one it needs.
fn suite_of(name: &str, components: &[String]) -> Option<String> {
    let named = components.iter().find(|one| name.starts_with(one.as_str()));
    named.or(components.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str) -> Scenario {
        let (file, suite) = (PathBuf::new(), "attacher".to_owned());
        Scenario { name: name.to_owned(), file, suite, components: Vec::new(), shares: false }
    }

    #[test]
    fn every_scenario_belongs_to_a_component_of_the_reference() {
        let known = commands(&Corpus::Controllers.dir().join("reference.yaml")).unwrap();
        let known: BTreeSet<String> = known.into_iter().map(|(name, _)| name).collect();
        let all = Corpus::Controllers.scenarios().unwrap();
        for scenario in &all {
            assert!(known.contains(&scenario.suite), "{scenario:?}");
            for component in &scenario.components {
                assert!(known.contains(component), "{scenario:?}");
            }
        }
        let suites: BTreeSet<String> = all.into_iter().map(|one| one.suite).collect();
        assert!(known.iter().all(|one| suites.contains(one) || one == "snapshotter"), "{suites:?}");
        let ours = commands(&Corpus::Controllers.dir().join("longshore.yaml")).unwrap();
        assert!(ours.iter().all(|(name, _)| known.contains(name)), "{ours:?}");
    }

    #[test]
    fn lists_name_scenarios_that_exist() {
        for corpus in [Corpus::Apiserver, Corpus::Controllers] {
            let all = corpus.scenarios().unwrap();
            let suites: BTreeSet<&str> = all.iter().map(|one| one.suite.as_str()).collect();
            let timed = corpus.timed().unwrap();
            let exists = |name: &str| all.iter().any(|one| one.name == name);
            assert_eq!(timed.stale(exists).collect::<Vec<_>>(), [""; 0]);
            for suite in suites {
                for against in ["embedded", "real"] {
                    let known = corpus.known(suite, against, true).unwrap();
                    let exists =
                        |name: &str| all.iter().any(|s| s.name == name && s.suite == suite);
                    assert_eq!(known.stale(exists).collect::<Vec<_>>(), [""; 0], "{suite}");
                }
            }
        }
    }

    #[test]
    fn results_are_read() {
        let text =
            "ok a (1.6s)\nFAIL b (15.2s)\n     events: x\n     … 3 more\n2 passed, 1 failed\n";
        let asked = ["a", "b", "c"].map(scenario);
        let cases = Corpus::Controllers.results(text, &asked);
        let seen: Vec<_> = cases.iter().map(|c| (c.name.as_str(), c.outcome, c.seconds)).collect();
        assert_eq!(seen, [("a", Outcome::Passed, 1.6), ("b", Outcome::Failed, 15.2)]);
        assert_eq!(cases[1].detail, "events: x\n… 3 more");
    }

    #[test]
    fn replay_lines_are_read() {
        let text =
            "ok   a            3 steps   0.40s\nFAIL b      step 2 'its token': status: want 1\n";
        let cases = Corpus::Apiserver.results(text, &["a", "b"].map(scenario));
        assert_eq!((cases[0].outcome, cases[0].seconds), (Outcome::Passed, 0.4));
        assert_eq!(cases[1].outcome, Outcome::Failed);
        assert_eq!(cases[1].detail, "step 2 'its token': status: want 1");
    }

    #[test]
    fn a_commit_draws_the_same_scenarios_again() {
        let fixed: BTreeSet<String> = ["f".to_owned()].into();
        let others: Vec<String> =
            (0..50).map(|n| format!("s{n}")).chain(["f".to_owned()]).collect();
        let one = sample(&fixed, &others, 10, "abc");
        assert_eq!(one.len(), 11);
        assert!(one.contains("f"));
        assert_eq!(one, sample(&fixed, &others, 10, "abc"));
        assert_ne!(one, sample(&fixed, &others, 10, "abd"));
        assert_eq!(sample(&fixed, &others, 100, "abc").len(), 51);
    }
}
