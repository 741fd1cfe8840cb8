//! Ctrl-C: ends a task in order, so that nothing stays behind.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use anyhow::{Context as _, Result};
use longshore_real_kube::Interrupt;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

static FLAG: OnceLock<Interrupt> = OnceLock::new();

/// A flag that Ctrl-C, a hang-up or a termination request sets. A second one ends the process at once; what it started ends
/// with it, but directories stay.
pub fn flag() -> Result<Interrupt> {
    if let Some(set) = FLAG.get() {
        return Ok(set.clone());
    }
    let set = Interrupt::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register(signal, &set).context("cannot listen for signals")?;
    }
    Ok(FLAG.get_or_init(|| set).clone())
}

fn register(signal: i32, set: &Interrupt) -> io::Result<()> {
    // The order matters: the first signal finds the flag unset and goes on to set it.
    flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(set))?;
    flag::register(signal, Arc::clone(set))?;
    Ok(())
}
