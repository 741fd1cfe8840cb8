//! The errors of reconciling one VolumeAttachment.

use longshore_cluster::{ApiError, secrets::SecretError};
use longshore_core::{
    access_mode::AccessModeError, attach::sidecar::SourceError, model::NodeName,
    provision::migration::TranslationError,
};
use longshore_csi::CsiError;

/// A failed pass. The text of all but the last two variants ends up in the attachment's status.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("persistentvolume \"{0}\" not found")]
    NoVolume(String),
    #[error("PersistentVolume \"{0}\" is marked for deletion")]
    VolumeDeleting(String),
    #[error("pv spec contained non-csi source that was not migrated")]
    NotCsi,
    #[error("failed to translate in tree pv to CSI: {0}")]
    Translation(#[from] TranslationError),
    #[error("could not add PersistentVolume finalizer: {0}")]
    VolumeFinalizer(#[source] ApiError),
    #[error(transparent)]
    AccessMode(#[from] AccessModeError),
    #[error("csinode.storage.k8s.io \"{0}\" not found")]
    NoCsiNode(NodeName),
    #[error("CSINode {node} does not contain driver {driver}")]
    NoDriver { node: NodeName, driver: String },
    #[error("failed to load secret \"{secret}\": {source}")]
    Secret { secret: String, source: SecretError },
    #[error("could not save VolumeAttachment: {0}")]
    SaveAttachment(#[source] ApiError),
    #[error(transparent)]
    Call(#[from] CsiError),
    #[error("could not mark as detached: {0}")]
    MarkDetached(#[source] ApiError),
    #[error("failed to mark as attached: {0}")]
    MarkAttached(#[source] ApiError),
}

impl SyncError {
    /// The driver's code, when it was the driver who failed.
    pub(super) fn code(&self) -> Option<i32> {
        match self {
            Self::Call(error) => Some(i32::from(error.code())),
            _ => None,
        }
    }
}
