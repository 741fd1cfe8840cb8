//! The Python that the runners need.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::tools;
use sha2::Digest as _;

use super::corpus::Corpus;
use crate::{run, setup};

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
    let _lock = lock(&base)?;
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

/// A Python with the pinned client of `tests/clients/python`, made once per set of pins.
pub fn client() -> Result<PathBuf> {
    let pins = run::root().join("tests/clients/python/requirements.txt");
    let text = std::fs::read(&pins).with_context(|| format!("cannot read {}", pins.display()))?;
    let hash = sha2::Sha256::digest(&text);
    let name = format!("client-{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3]);
    let base = environment().with_file_name(name);
    let program = base.join("bin/python3");
    let _lock = lock(&base)?;
    if base.join(".ready").exists() {
        return Ok(program);
    }
    if !works("import ensurepip, venv") {
        setup::install_or_say(&["python3", "python3-venv"])?;
    }
    eprintln!("making a Python environment for the Kubernetes client in {}", base.display());
    let make = |command: &mut Command| -> Result<()> {
        let status = command.stdin(Stdio::null()).status().context("cannot start python3")?;
        if !status.success() {
            bail!("cannot make the Python environment {} ({status})", base.display());
        }
        Ok(())
    };
    make(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&base))?;
    let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "-r"];
    make(Command::new(&program).args(install).arg(&pins))?;
    File::create(base.join(".ready")).context("cannot mark the Python environment as ready")?;
    Ok(program)
}

/// Runners that start at once must not make an environment at once.
fn lock(base: &Path) -> Result<File> {
    let lock = base.with_extension("lock");
    if let Some(dir) = lock.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let file = File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    file.lock().context("cannot lock the Python environment")?;
    Ok(file)
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
