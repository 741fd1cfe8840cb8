//! What a cluster consists of, on disk, so that another process can end it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::sweep;

/// How the directories of clusters are named in the temporary directory.
pub const PREFIX: &str = "longshore-rk-";
const FILE: &str = "state.json";
const GRACE: Duration = Duration::from_secs(10);

/// The programs of one cluster, in the order in which they were started.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// Who will end it; none when it was left running.
    pub owner: Option<Process>,
    /// The programs.
    pub programs: Vec<Process>,
}

impl State {
    /// Reads the record of a cluster's directory.
    ///
    /// # Errors
    /// When there is none.
    pub fn load(dir: &Path) -> Result<Self> {
        let file = dir.join(FILE);
        let text = fs::read_to_string(&file)
            .with_context(|| format!("{} is not a cluster's directory", dir.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))
    }

    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        // Renamed into place: a reader sees the old record or the new one.
        let part = dir.join("state.part");
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, dir.join(FILE)))
            .with_context(|| format!("cannot write the record of the cluster in {}", dir.display()))
    }

    /// Whether no owner runs any more who would end it.
    #[must_use]
    pub fn abandoned(&self) -> bool {
        !self.owner.as_ref().is_some_and(Process::runs)
    }
}

/// Directories of clusters without an owner: left running, or left by an owner who was killed.
///
/// # Errors
/// When the temporary directory cannot be read.
pub fn unowned() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(env::temp_dir()).context("cannot read the temporary directory")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) && State::load(&path).is_ok_and(|state| state.abandoned()) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Ends exactly the programs of the cluster in `dir`, last started first, and removes `dir`.
/// Returns how many were still running.
///
/// # Errors
/// When `dir` is no cluster's directory, is owned by a running process, or something stays.
pub fn end(dir: &Path) -> Result<usize> {
    let state = State::load(dir)?;
    if let Some(owner) = state.owner.as_ref().filter(|owner| owner.runs()) {
        bail!(
            "the cluster in {} belongs to {} (pid {}), which still runs and will end it",
            dir.display(),
            owner.name,
            owner.pid
        );
    }
    crate::node::end_recorded(dir)?;
    let mut running = 0;
    for program in state.programs.iter().rev().filter(|program| program.runs()) {
        running += 1;
        program.end(GRACE).with_context(|| format!("cannot end {}", program.name))?;
    }
    sweep::remove(dir)?;
    Ok(running)
}
