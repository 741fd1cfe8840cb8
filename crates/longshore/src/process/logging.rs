//! Starting the log of a program.

use longshore_cluster::telemetry::{self, LogOptions};

use crate::flags::{LogFormat, Logging};

/// Starts logging to stderr and says which flags were accepted without having an effect.
pub(super) fn start(logging: &Logging) -> anyhow::Result<()> {
    let Logging { verbosity, format, modules, notes } = logging.clone();
    let format = match format {
        LogFormat::Text => telemetry::LogFormat::Text,
        LogFormat::Json => telemetry::LogFormat::Json,
    };
    telemetry::init_logging(&LogOptions { verbosity, format, modules })
        .map_err(|why| anyhow::anyhow!("cannot start the log: {why}"))?;
    for note in &notes {
        tracing::info!("{note}");
    }
    Ok(())
}
