//! The process that a program runs in: its log, its limits, its memory, and what it may do on this machine.

mod descriptors;
pub(crate) mod faults;
mod logging;
pub(crate) mod memory;
pub(crate) mod root;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::flags::Logging;

/// The signal to stop came before the program had started.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal during the start")]
pub(crate) struct Stopped;

/// The program ends with this exit code, and has said why.
#[derive(Debug, thiserror::Error)]
#[error("exit code {0}")]
pub(crate) struct ExitWith(pub u8);

/// Runs a part of a program's start. A signal ends the wait, and with [`Stopped`] the program, which
/// has done as it was told.
///
/// # Errors
/// Those of the part, and [`Stopped`].
pub(crate) async fn unless_stopped<T>(
    stop: &CancellationToken,
    part: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    stop.run_until_cancelled(part).await.unwrap_or_else(|| Err(Stopped.into()))
}

/// How long nobody may look at sockets and timers while a task holds up its thread.
const NUDGE_EVERY: Duration = Duration::from_secs(1);

/// Keeps the rest of the process going while a task blocks its thread. The thread that was looking at sockets and timers
/// runs what it finds there; if that blocks, no other thread looks before something wakes it. This does, from outside.
pub(crate) fn outlive_blocked_tasks() -> std::io::Result<()> {
    let runtime = tokio::runtime::Handle::current();
    let nudge = move || {
        loop {
            std::thread::sleep(NUDGE_EVERY);
            runtime.spawn(async {});
        }
    };
    std::thread::Builder::new().name("nudge".into()).spawn(nudge).map(drop)
}

/// Starts the log and sets the limits of this process, before anything else is done.
///
/// # Errors
/// When there is no log, or too few files may be open.
pub(crate) fn prepare(logging: &Logging) -> anyhow::Result<()> {
    logging::start(logging)?;
    // Files that are not private have the usual modes, whatever the caller's mask is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    descriptors::raise()
}
