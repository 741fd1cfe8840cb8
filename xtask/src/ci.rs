//! What a change must pass, in rings that run side by side where they can.

use std::path::Path;

use anyhow::{Result, bail};

use crate::{
    golden, leftovers, real_kube,
    rings::{Ledger, Ring},
    run,
};

/// `cargo xtask ci`: lints, every test, the recordings, the docs and the demo of the release build.
pub fn task() -> Result<()> {
    let before = leftovers::Snapshot::take()?;
    let ledger = Ledger::default();
    ledger.time(Ring::Unit, crate::check)?;
    // It may have to be built first, as other tools.
    crate::deny()?;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| release(&ledger));
        let tests = tests(&ledger).and_then(|()| rest(&ledger));
        let demo = beside.join().unwrap_or_else(|_| bail!("the thread of the demo panicked"));
        tests.and(demo)
    })?;
    // It runs the release build as an image.
    ledger.time(Ring::RealCluster, || real_kube::suite(None, false))?;
    before.compare()?;
    ledger.close()
}

/// The README's test command, in a process of its own.
fn tests(ledger: &Ledger) -> Result<()> {
    let (name, file) = Ledger::file();
    let path = file.display().to_string();
    run::cargo(&["xtask", "test"], &[(name, &path)])?;
    ledger.read(Path::new(&path))
}

fn rest(ledger: &Ledger) -> Result<()> {
    ledger.time(Ring::Golden, || golden::task(&["ci".to_owned()]))?;
    ledger.time(Ring::Docs, crate::docs)
}

/// Builds the release binary at the lowest priority, so that no test waits for it, and runs the demo.
fn release(ledger: &Ledger) -> Result<()> {
    ledger
        .time(Ring::Release, || run::cargo_gently(&["build", "--release", "--bin", "longshore"]))?;
    ledger.time(Ring::Demo, || run::cargo(&["run", "--release", "--", "demo"], &[]))
}
