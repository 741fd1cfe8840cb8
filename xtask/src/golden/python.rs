//! The Python that the runners need.

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::tools;

use super::corpus::Corpus;
use crate::setup;

/// Makes sure that the runner of a corpus can start. Its packages go to a private environment in a
/// cache directory, made once.
pub fn prepare(corpus: Corpus) -> Result<()> {
    if !works("import http.client, json, ssl") {
        setup::install_or_say(&["python3"])?;
    }
    if corpus == Corpus::Apiserver {
        return Ok(());
    }
    let base = environment();
    // Runners that start at once must not make it at once.
    let lock = base.with_extension("lock");
    if let Some(dir) = lock.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let lock = File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    lock.lock().context("cannot lock the Python environment")?;
    if base.join(".ready").exists() {
        return Ok(());
    }
    if !works("import ensurepip, venv") {
        setup::install_or_say(&["python3-venv"])?;
    }
    eprintln!("making a Python environment for the controller scenarios in {}", base.display());
    let mut command = runner(corpus);
    let status = command.arg("--help").stdout(Stdio::null()).status();
    let status = status.context("cannot start python3")?;
    if !status.success() {
        bail!("cannot make the Python environment {} ({status})", base.display());
    }
    Ok(())
}

/// The command of a corpus' runner.
pub fn runner(corpus: Corpus) -> Command {
    let file = match corpus {
        Corpus::Apiserver => "replay",
        Corpus::Controllers => "run",
    };
    let mut command = Command::new("python3");
    command.arg(corpus.dir().join(file));
    // The checkout stays as it is.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("GOLDEN_VENV", environment());
    command
}

/// As the runner chooses it.
fn environment() -> PathBuf {
    let given = std::env::var_os("GOLDEN_VENV").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    given.unwrap_or_else(|| tools::cache_dir().with_file_name("longshore-golden").join("venv"))
}

fn works(program: &str) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", program]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
