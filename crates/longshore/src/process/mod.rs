//! The process that a program runs in: its log, its limits, its memory, and what it may do on this machine.

mod descriptors;
pub(crate) mod faults;
mod logging;
pub(crate) mod memory;
pub(crate) mod root;

use crate::flags::Logging;

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
