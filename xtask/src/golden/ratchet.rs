//! What is known to fail, and the rule that keeps the lists honest.
//!
//! A failure outside a list is an error, and so is a success inside one: lists only get shorter.

use std::{collections::BTreeMap, fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result, bail};

/// What became of one scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// One scenario that was run, or that cannot run because its program does not exist.
#[derive(Debug, Clone)]
pub struct Case {
    /// The list it is judged by: a component, or the corpus.
    pub suite: String,
    pub name: String,
    pub outcome: Outcome,
    pub seconds: f64,
    /// Why it did not pass.
    pub detail: String,
}

/// A list of names, each with the comment above it.
#[derive(Debug, Clone, Default)]
pub struct Known {
    names: BTreeMap<String, String>,
}

impl Known {
    /// Reads a list. A file that is not there is an empty list.
    pub fn read(file: &Path) -> Result<Self> {
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(&text).with_context(|| format!("in {}", file.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// One name per line. A comment holds for the names below it, up to the next empty line.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut names, mut reason, mut used) = (BTreeMap::new(), String::new(), false);
        for line in text.lines().map(str::trim) {
            if line.is_empty() {
                reason.clear();
            } else if let Some(comment) = line.strip_prefix('#') {
                if used {
                    reason.clear();
                }
                let gap = if reason.is_empty() { "" } else { " " };
                reason = format!("{reason}{gap}{}", comment.trim());
                used = false;
            } else {
                used = true;
                if reason.is_empty() {
                    bail!("{line:?} has no reason: put a comment above it");
                }
                if names.insert(line.to_owned(), reason.clone()).is_some() {
                    bail!("{line:?} is listed twice");
                }
            }
        }
        Ok(Self { names })
    }

    pub fn merge(&mut self, other: Self) -> Result<()> {
        for (name, reason) in other.names {
            if self.names.insert(name.clone(), reason).is_some() {
                bail!("{name:?} is in the common list and in the one for this server");
            }
        }
        Ok(())
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Names on the list that no scenario has any more.
    pub fn stale<'a>(
        &'a self,
        exists: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = &'a str> {
        self.names().filter(move |name| !exists(name))
    }
}

/// The verdict on one suite.
#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub known: usize,
    /// Fail, but are on no list.
    pub new: Vec<String>,
    /// Pass, but are on the list.
    pub surprising: Vec<String>,
}

impl Tally {
    /// Judges cases. What is skipped counts as not passed.
    pub fn of<'a>(cases: impl IntoIterator<Item = &'a Case>, known: &Known) -> Self {
        let mut tally = Self::default();
        for case in cases {
            match (case.outcome == Outcome::Passed, known.has(&case.name)) {
                (true, false) => tally.passed += 1,
                (false, true) => tally.known += 1,
                (false, false) => tally.new.push(case.name.clone()),
                (true, true) => tally.surprising.push(case.name.clone()),
            }
        }
        tally
    }

    pub fn good(&self) -> bool {
        self.new.is_empty() && self.surprising.is_empty()
    }

    /// The summary line.
    pub fn line(&self, suite: &str) -> String {
        let Self { passed, known, new, surprising } = self;
        let (new, surprising) = (new.len(), surprising.len());
        format!(
            "{suite:<28} {passed:>4} passed  {known:>4} known failures  {new:>3} new failures  \
             {surprising:>3} unexpectedly passed"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, outcome: Outcome) -> Case {
        let (suite, detail) = (String::from("s"), String::new());
        Case { suite, name: name.to_owned(), outcome, seconds: 0.0, detail }
    }

    #[test]
    fn a_list_fails_both_ways() {
        let known = Known::parse("# not there yet\na\nb\n\n# slow\nc\n").unwrap();
        let rows = [
            ("z", Outcome::Passed, true, (1, 0, 0, 0)),
            ("a", Outcome::Failed, true, (0, 1, 0, 0)),
            ("c", Outcome::Skipped, true, (0, 1, 0, 0)),
            ("z", Outcome::Failed, false, (0, 0, 1, 0)),
            ("z", Outcome::Skipped, false, (0, 0, 1, 0)),
            ("b", Outcome::Passed, false, (0, 0, 0, 1)),
        ];
        for (name, outcome, good, counts) in rows {
            let tally = Tally::of(&[case(name, outcome)], &known);
            let seen = (tally.passed, tally.known, tally.new.len(), tally.surprising.len());
            assert_eq!((tally.good(), seen), (good, counts), "{name} {outcome:?}");
        }
    }

    #[test]
    fn a_name_without_a_reason_is_refused() {
        assert!(Known::parse("a\n").is_err());
        assert!(Known::parse("# why\na\n\nb\n").is_err());
        assert!(Known::parse("# why\na\na\n").is_err());
        let known = Known::parse("# one\n# two\na\n# three\nb\n").unwrap();
        assert_eq!(known.names["a"], "one two");
        assert_eq!(known.names["b"], "three");
        assert_eq!(known.stale(|name| name == "a").collect::<Vec<_>>(), ["b"]);
    }
}
