//! Making certain that nothing of a node runs or writes any more.
//!
//! A node whose process ended leaves its pods behind: they run under their shims and write to their
//! volumes. No other node may have those volumes until every process is gone, every mount is undone and
//! every loop device is detached. Each step is looked at again from the start when one fails, so a
//! fence that was interrupted is simply run once more.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use longshore_driver::{Driver, mount};
use longshore_files::mounts::{Mount, MountTable};
use longshore_node::pods::cgroups::remove_cgroups;
use longshore_node::pods::shim_client::{kill_leftovers, living_shim};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::NodeConfig;
use super::drivers::Plan;

/// How long a killed process may take to end. The kernel ends it as soon as it waits for nothing.
const KILL_PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Mounts on mounts: each round takes the uppermost ones.
const ROUNDS: usize = 8;
const PAUSE: Duration = Duration::from_millis(50);
/// How long programs that start may keep copies of mounts.
const COPIES_PATIENCE: Duration = Duration::from_secs(10);

/// Ends the pods of a node whose own process is gone, undoes its mounts and detaches its devices.
///
/// # Errors
/// When something of it may still be in use.
pub(super) async fn node(config: &NodeConfig) -> Result<()> {
    let config = config.clone();
    let drivers = {
        let config = config.clone();
        // Opening a driver thaws what was frozen; a process that waits for a frozen file system
        // cannot be killed.
        tokio::task::spawn_blocking(move || {
            let open = |one| Driver::open(one).context("cannot open a driver of the node");
            Plan::of(&config).configs().into_iter().map(open).collect::<Result<Vec<Driver>>>()
        })
        .await??
    };
    for pod in entries(&config.root.join("pods"))? {
        end_pod(&pod).await?;
    }
    tokio::task::spawn_blocking(move || {
        remove_cgroups(&config.root).context("the cgroups of the node's pods stay")?;
        unmount_below(&config.root)?;
        for driver in &drivers {
            let name = &driver.config().driver_name;
            let freed = evacuate(driver);
            let freed = freed.with_context(|| format!("the driver {name} did not let go"))?;
            longshore_cluster::log_process!(
                node = config.node,
                driver = name,
                freed,
                "volumes let go"
            );
        }
        Ok(())
    })
    .await?
}

/// Detaches the devices of a node that has no pods any more. A program that starts anywhere on this machine has a copy of
/// all mounts until it has a root of its own, so a device may be busy for a moment without a mount that one can undo.
fn evacuate(driver: &Driver) -> Result<usize, longshore_driver::Refusal> {
    let deadline = Instant::now() + COPIES_PATIENCE;
    loop {
        match driver.evacuate() {
            Ok(freed) => return Ok(freed),
            Err(longshore_driver::Refusal::Precondition(_)) if Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is in a directory; nothing when it is not there.
pub(super) fn entries(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let look = || dir.read_dir()?.map(|one| Ok(one?.path())).collect::<std::io::Result<_>>();
    match look() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.with_context(|| format!("cannot look into {}", dir.display())),
    }
}

/// Ends a pod's shim and whatever it had started.
async fn end_pod(dir: &Path) -> Result<()> {
    if let Some(shim) = living_shim(dir) {
        let same = dir.to_owned();
        let ended = tokio::task::spawn_blocking(move || {
            let Some(pid) = Pid::from_raw(shim.pid) else { return Ok(()) };
            let handle = match pidfd_open(pid, PidfdFlags::empty()) {
                Err(rustix::io::Errno::SRCH) => return Ok(()),
                other => other.context("cannot get hold of a pod's process")?,
            };
            // The number may have come to mean another process before it was held.
            if living_shim(&same).is_none_or(|now| now.pid != shim.pid) {
                return Ok(());
            }
            kill(&handle)
        });
        ended.await?.with_context(|| format!("the pod in {} did not end", dir.display()))?;
    }
    kill_leftovers(dir).await;
    Ok(())
}

fn kill(process: &std::os::fd::OwnedFd) -> Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other.context("cannot kill it")?,
    }
    let mut wait = [PollFd::new(process, PollFlags::IN)];
    loop {
        match poll(&mut wait, Some(&KILL_PATIENCE)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for its end"),
            Ok(ready) => {
                ensure!(ready > 0, "it was killed and did not end in {} s", KILL_PATIENCE.tv_sec);
                return Ok(());
            }
        }
    }
}

/// Undoes every mount below a directory, the latest first. Never lazily: what stays in use is an error.
pub(super) fn unmount_below(dir: &Path) -> Result<()> {
    let mut failed = None;
    for _ in 0..ROUNDS {
        let table = MountTable::read().context("cannot read the mount table")?;
        let within = |mount: &&Mount| mount.path.starts_with(dir);
        let found: Vec<_> = table.mounts.iter().rev().filter(within).collect();
        if found.is_empty() {
            return Ok(());
        }
        failed = None;
        for one in found {
            if let Err(error) = mount::unmount(&one.path) {
                failed = Some(error);
            }
        }
        if failed.is_some() {
            std::thread::sleep(PAUSE);
        }
    }
    match failed {
        Some(error) => Err(error).context("a mount of the node cannot be undone"),
        None => Ok(()),
    }
}
