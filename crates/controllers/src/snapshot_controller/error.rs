//! The errors of reconciling one object.

use longshore_cluster::ApiError;
use longshore_core::snapshot::{
    class::SourceError, create::CreateError, group::create::GroupError,
};

/// A failed pass, or a step of one.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControllerError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("{0}")]
    Invalid(&'static str),
    #[error("snapshot controller failed to update {name} on API server: {source}")]
    Save { name: String, source: ApiError },
}

impl ControllerError {
    /// Another write came in between, which is no failure.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Api(source) | Self::Save { source, .. } => source.is_conflict(),
            Self::Source(_) | Self::Create(_) | Self::Group(_) | Self::Invalid(_) => false,
        }
    }
}
