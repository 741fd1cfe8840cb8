//! The errors of reconciling one claim.

use longshore_cluster::{ApiError, secrets::SecretError};
use longshore_core::{
    access_mode::AccessModeError,
    model::{ObjectKey, VolumeName},
    provision::migration::TranslationError,
};
use longshore_csi::CsiError;

/// A failed pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResizeError {
    #[error("PersistentVolume {0:?} of the claim is not known yet")]
    NoVolume(VolumeName),
    #[error("failed to translate in tree pv to CSI: {0}")]
    Translation(#[from] TranslationError),
    #[error("volume {0} is not migrated to CSI")]
    NotMigrated(VolumeName),
    #[error("empty volume handle")]
    NoHandle,
    #[error(transparent)]
    AccessMode(#[from] AccessModeError),
    #[error("error getting secret {} in namespace {}: {source}", .secret.name, .secret.namespace)]
    Secret { secret: ObjectKey, source: SecretError },
    #[error(transparent)]
    Call(#[from] CsiError),
    #[error("can't patch status of PVC {claim}: {source}")]
    Claim { claim: ObjectKey, source: ApiError },
    #[error("can't patch PersistentVolume {volume}: {source}")]
    Volume { volume: VolumeName, source: ApiError },
    #[error("the claim changed meanwhile")]
    Changed,
    #[error("the claim is in use")]
    InUse,
    #[error("VAC {0:?} does not exist.")]
    NoClass(String),
    #[error("reading VAC {class:?}: {source}")]
    Class { class: String, source: ApiError },
}

impl ResizeError {
    /// Other writes came in between, again and again: no failure of the expansion, but one that waits.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Claim { source, .. } | Self::Volume { source, .. } => source.is_conflict(),
            _ => false,
        }
    }

    /// The driver's answer, if it was the driver who failed.
    pub(super) fn answer(&self) -> Option<&CsiError> {
        match self {
            Self::Call(error) => Some(error),
            _ => None,
        }
    }
}
