//! What a change must pass, in rings that run side by side where they can.

use anyhow::{Result, bail};

use crate::{
    golden, leftovers, real_kube,
    rings::{FILE, Ledger, Ring},
    run,
};

/// `cargo xtask ci`: lints, every test, the recordings, the docs and the demo of the release build.
/// What each ring took is printed at the end, whether it passed or not.
pub fn task() -> Result<()> {
    let before = leftovers::Snapshot::take()?;
    let ledger = Ledger::default();
    let done = rings(&ledger).and_then(|()| before.compare());
    ledger.close(done)
}

fn rings(ledger: &Ledger) -> Result<()> {
    ledger.time(Ring::Unit, crate::check)?;
    // It may have to be built first, as other tools.
    crate::deny()?;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| release(ledger));
        let tests = tests(ledger).and_then(|()| rest(ledger));
        let demo = beside.join().unwrap_or_else(|_| bail!("the thread of the demo panicked"));
        tests.and(demo)
    })?;
    // It runs the release build as an image.
    ledger.time(Ring::RealCluster, || real_kube::suite(None, false))
}

/// The README's test command, in a process of its own.
fn tests(ledger: &Ledger) -> Result<()> {
    // Written at the end of the tests; empty when the process died before.
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    let done = run::cargo(&["xtask", "test"], &[(FILE, &path)]);
    let read = ledger.read(file.path());
    done.and(read)
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
