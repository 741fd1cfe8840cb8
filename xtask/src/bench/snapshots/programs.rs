//! Starts the two programs, of either kind.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;
use longshore_real_kube::{
    Lifetime, Program,
    tools::{self, Tool},
};

/// How long fresh programs are left alone before they are asked for something.
const SETTLE: Duration = Duration::from_secs(5);

/// A controller and a sidecar.
pub(super) struct Pair {
    pub(super) controller: Program,
    pub(super) snapshotter: Program,
}

/// Whose programs, with which flags for both.
pub(super) struct Side<'a> {
    /// Ours; none is the official ones.
    pub(super) ours: Option<&'a Path>,
    pub(super) flags: &'a [&'a str],
}

impl Pair {
    /// Starts both at once, with logs in `dir`.
    pub(super) fn start(
        side: &Side<'_>,
        dir: &Path,
        kubeconfig: &Path,
        socket: &Path,
    ) -> Result<Self> {
        let start = |tool: Tool, own: &str, more: Option<String>| -> Result<Program> {
            let mut command = match side.ours {
                Some(binary) => {
                    let mut command = Command::new(binary);
                    command.arg(own);
                    command
                }
                None => Command::new(tools::path(tool)?),
            };
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
            command.args(more).args(side.flags).env_remove("KUBECONFIG");
            let log: PathBuf = dir.join(format!("{own}.log"));
            Program::start(own, command, &log, Lifetime::Owner)
        };
        let address = format!("--csi-address={}", socket.display());
        Ok(Self {
            snapshotter: start(Tool::CsiSnapshotter, "snapshotter", Some(address))?,
            controller: start(Tool::SnapshotController, "snapshot-controller", None)?,
        })
    }

    /// Lets both fill their caches.
    pub(super) fn settle(&self) {
        std::thread::sleep(SETTLE);
    }

    pub(super) fn tail(&self) -> String {
        format!("{}\n{}", self.controller.tail(), self.snapshotter.tail())
    }

    pub(super) fn stop(self) -> Result<()> {
        self.controller.stop()?;
        self.snapshotter.stop()
    }
}
