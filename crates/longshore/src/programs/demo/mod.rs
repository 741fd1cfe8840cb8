//! `longshore demo`: one volume's whole life, for real, in a temporary directory.
//!
//! The demo starts this very program as `longshore up` and then is nothing but a client: everything
//! it shows goes through the API, as `kubectl` would. At the end it looks for what was left behind
//! and fails if anything was.

mod display;
mod instance;
mod life;

use anyhow::{Context as _, Result};

use display::Display;
use instance::Instance;

use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, Logging, UsageError};
use crate::process::root;

/// Flags of `longshore demo`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
}

/// What `longshore demo` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub logging: Logging,
}

impl Program for Config {
    const NAME: &'static str = "demo";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str =
        "Walk one volume through its whole life in a temporary directory, and leave nothing behind";
    const EXAMPLES: &'static str = "longshore demo";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::Many;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common } = flags;
        Ok(Self { logging: Logging::try_from(common)? })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        root::require("demo")?;
        run().await
    }
}

/// Runs the demo. It succeeds only when every step worked and nothing was left behind.
async fn run() -> Result<()> {
    let mut display = Display::new();
    display.title("longshore demo: one volume's whole life on this machine");
    let home = tempfile::Builder::new()
        .prefix("longshore-demo-")
        .tempdir()
        .context("cannot make a temporary directory for the demo")?;
    let instance = Instance::start(home.path(), &mut display).await?;
    let walked = life::walk(&instance, &mut display).await;
    let stopped = instance.stop(&mut display).await;
    walked.context("the demo did not get through")?;
    stopped?;
    home.close().context("cannot remove the demo's temporary directory")?;
    display
        .note("not in this version yet, so not shown: snapshot, restore into a new claim, expand");
    display.timeline();
    Ok(())
}
