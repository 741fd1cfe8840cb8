//! Starting the log of a program.

use crate::flags::Logging;

/// Starts logging to stderr and says which flags were accepted without having an effect.
pub(super) fn start(logging: &Logging) -> anyhow::Result<()> {
    for note in &logging.notes {
        tracing::info!("{note}");
    }
    Ok(())
}
