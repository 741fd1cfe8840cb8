//! The report of a run, and how often each fault struck.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::world::Run;
use crate::{Fault, Line};

/// The report of one run.
#[derive(Debug, Clone)]
pub struct Report {
    pub run: Run,
    /// Every call of the controllers.
    pub lines: Vec<Line>,
    /// What user and nodes did.
    pub notes: Vec<String>,
    /// Why the run failed; absent when it did not.
    pub failure: Option<String>,
    /// How much virtual time it took.
    pub took: Duration,
    /// How many processes of controllers were started.
    pub processes: u64,
}

impl Report {
    /// Everything that the run did, call by call. One run gives the same bytes every time.
    #[must_use]
    pub fn trace(&self) -> String {
        let Self { run, lines, notes, failure, took, processes } = self;
        let mut text = format!("{run}\n");
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
        for note in notes {
            let _ = writeln!(text, "{note}");
        }
        let _ = writeln!(text, "{processes} processes, {took:?}, {failure:?}");
        text
    }
}

/// Lines of the call log shown with a failure.
const SHOWN: usize = 60;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.failure.as_deref().unwrap_or("no failure");
        writeln!(f, "{}: {failure}", self.run)?;
        writeln!(f, "  again: cargo run -p longshore-sim --example replay -- {}", self.run)?;
        let (calls, took) = (self.lines.len(), self.took.as_secs());
        writeln!(f, "  {calls} calls by {} processes in {took} s of virtual time", self.processes)?;
        for line in self.lines.iter().filter(|line| line.fault.is_some()) {
            writeln!(f, "  fault: {line}")?;
        }
        writeln!(f, "  user and nodes:")?;
        for note in self.notes.iter().rev().take(SHOWN).rev() {
            writeln!(f, "    {note}")?;
        }
        writeln!(f, "  last calls:")?;
        for line in self.lines.iter().rev().take(SHOWN).rev() {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// How often each fault struck at each kind of call.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    counts: BTreeMap<String, BTreeMap<Fault, u64>>,
    pub runs: u64,
}

impl Tally {
    /// Adds what struck in a run.
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        for line in &report.lines {
            if let Some(fault) = line.fault {
                let row = self.counts.entry(line.point.clone()).or_default();
                *row.entry(fault).or_default() += 1;
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        for (point, row) in &other.counts {
            let mine = self.counts.entry(point.clone()).or_default();
            for (fault, count) in row {
                *mine.entry(*fault).or_default() += count;
            }
        }
    }

    /// How often a fault struck at a kind of call.
    #[must_use]
    pub fn count(&self, point: &str, fault: Fault) -> u64 {
        self.counts.get(point).and_then(|row| row.get(&fault)).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().flat_map(BTreeMap::values).sum()
    }

    /// The kinds of calls at which something struck.
    pub fn points(&self) -> impl Iterator<Item = &str> {
        self.counts.keys().map(String::as_str)
    }

    /// Renders the table for a terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let width = self.counts.keys().map(String::len).max().unwrap_or(0).max(11);
        let mut text = format!("{:<width$}", "fault point");
        for fault in Fault::ALL {
            let _ = write!(text, " {fault:>12}");
        }
        text.push('\n');
        for (point, row) in &self.counts {
            let _ = write!(text, "{point:<width$}");
            for fault in Fault::ALL {
                let _ = write!(text, " {:>12}", row.get(&fault).copied().unwrap_or(0));
            }
            text.push('\n');
        }
        let _ = writeln!(text, "{} faults in {} runs", self.total(), self.runs);
        text
    }
}
