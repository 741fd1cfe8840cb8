//! `longshore demo`: one volume's whole life, for real, in a temporary directory.
//!
//! The demo starts this very program as `longshore up` and then is nothing but a client: everything
//! it shows goes through the API, as `kubectl` would. At the end it looks for what was left behind
//! and fails if anything was.

mod calls;
mod display;
mod foreign;
mod instance;
mod life;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use longshore_cluster::shutdown;
use longshore_core::model::Quantity;

use display::Display;
use foreign::Foreign;
use instance::Instance;

use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, Logging, UsageError, values};
use crate::process::root;

/// Flags of `longshore demo`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Socket of a CSI driver to walk instead of our own.
    #[arg(long, value_name = "unix:///PATH", value_parser = values::socket)]
    csi_endpoint: Option<PathBuf>,
    /// With --csi-endpoint: a parameter of the class; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "csi_endpoint")]
    parameter: Vec<String>,
    /// With --csi-endpoint: size of the claim.
    #[arg(long, default_value = "16Mi", value_parser = size)]
    size: String,
}

fn size(text: &str) -> Result<String, String> {
    match text.parse::<Quantity>() {
        Ok(size) if size.bytes() > 0 => Ok(text.to_owned()),
        _ => Err("a size is written as in Kubernetes, for example 64Mi or 1Gi".into()),
    }
}

/// What `longshore demo` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub logging: Logging,
    /// A driver that is not ours.
    foreign: Option<Foreign>,
}

impl Program for Config {
    const NAME: &'static str = "demo";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str =
        "Walk one volume through its whole life in a temporary directory, and leave nothing behind";
    const EXAMPLES: &'static str =
        "longshore demo\n  longshore demo --csi-endpoint unix:///run/my-driver/csi.sock";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::Many;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, csi_endpoint, parameter, size } = flags;
        let pair = |text: &String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(UsageError::bad_value("--parameter", text, "it is KEY=VALUE")),
        };
        let parameters = parameter.iter().map(pair).collect::<Result<_, _>>()?;
        let foreign = csi_endpoint.map(|socket| Foreign { socket, parameters, size });
        Ok(Self { logging: Logging::try_from(common)?, foreign })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        root::require("demo")?;
        let stop = shutdown::on_signals().context("cannot listen for signals")?;
        let mut display = Display::new(&stop);
        match self.foreign {
            Some(foreign) => run_foreign(foreign, &mut display).await?,
            None => run(&mut display).await?,
        }
        display.timeline();
        Ok(())
    }
}

/// Walks a driver that is not ours. It succeeds when every step that the driver can do has worked.
async fn run_foreign(foreign: Foreign, display: &mut Display) -> Result<()> {
    let socket = std::path::absolute(&foreign.socket)?;
    display.title(&format!(
        "longshore demo: the driver on {} and one volume's life",
        socket.display()
    ));
    let home = home()?;
    Foreign { socket, ..foreign }.run(home.path(), display).await?;
    home.close().context("cannot remove the demo's temporary directory")
}

fn home() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("longshore-demo-")
        .tempdir()
        .context("cannot make a temporary directory for the demo")
}

/// Runs the demo. It succeeds only when every step worked and nothing was left behind.
async fn run(display: &mut Display) -> Result<()> {
    display.title("longshore demo: one volume's whole life on this machine");
    let home = home()?;
    let instance = Instance::start(home.path(), &[], display).await?;
    let walked = life::walk(&instance, display).await;
    let stopped = instance.stop(display).await;
    walked.context("the demo did not get through")?;
    stopped?;
    home.close().context("cannot remove the demo's temporary directory")?;
    Ok(())
}
