//! Which driver a sidecar talks to.

use std::path::PathBuf;

use super::values;

/// Where the CSI driver is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CsiFlags {
    /// Socket of the CSI driver: a path or unix:///path.
    #[arg(long, default_value = "/run/csi/socket", value_parser = values::socket)]
    pub csi_address: PathBuf,
}
