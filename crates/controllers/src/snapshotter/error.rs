//! The errors of reconciling one content.

use longshore_cluster::{ApiError, secrets::SecretError};
use longshore_core::{
    model::ObjectKey,
    provision::params::{PairProblem, ParamError},
    snapshot::bind,
};
use longshore_csi::CsiError;

/// A failed step.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotterError {
    /// The cause is quoted, as in Go.
    #[error("failed to get input parameters to create snapshot for content {content}: {:?}", .cause.to_string())]
    Input { content: String, cause: InputError },
    #[error(transparent)]
    Parameters(#[from] ParamError),
    #[error("failed to take snapshot of the volume {volume}: {:?}", .source.to_string())]
    Take { volume: String, source: CsiError },
    #[error("failed to take snapshot of the volume {0}: the driver answered without a snapshot")]
    NoSnapshot(String),
    #[error("failed to take group snapshot of the volumes [{volumes}]: {:?}", .source.to_string())]
    TakeGroup { volumes: String, source: CsiError },
    #[error("failed to get group snapshot for content {content}: {cause:?}")]
    FindGroup { content: String, cause: String },
    #[error("group content {0} names no snapshots, so its group snapshot cannot be deleted")]
    NoMembers(String),
    #[error("failed to list snapshot for content {content}: {cause:?}")]
    Find { content: String, cause: String },
    #[error(transparent)]
    Delete(CsiError),
    #[error(transparent)]
    Secret(#[from] InputError),
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Why a call cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    #[error("failed to take snapshot {0} without a snapshot class")]
    NoClass(String),
    #[error("{}", bind::not_found(.0))]
    ClassMissing(String),
    #[error("corrupted snapshot object, it is missing UID")]
    NoUid,
    #[error("cannot retrieve secrets for snapshot content {content:?}, err: {source}")]
    Note { content: String, source: PairProblem },
    #[error("failed to get name and namespace of the secret: {0}")]
    Template(#[from] ParamError),
    #[error("error getting secret {} in namespace {}: {source}", .secret.name, .secret.namespace)]
    Secret { secret: ObjectKey, source: SecretError },
}

impl SnapshotterError {
    /// Another write came in between, which is no failure.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_conflict())
    }

    /// The content is gone.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_not_found())
    }
}
