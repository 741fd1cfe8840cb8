//! Failed operations on volumes.

use std::io;

use longshore_cluster::ApiError;
use longshore_cluster::secrets::SecretError;
use longshore_core::model::ObjectKey;
use longshore_core::stage::paths::PathError;
use longshore_core::stage::verdict::Failure;
use longshore_csi::CsiError;
use tonic::Code;

use super::in_tree::ProgramError;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct OpError {
    /// The step as users know it, for instance `MountDevice`.
    pub step: &'static str,
    /// What it says about the mount.
    pub failure: Failure,
    /// Boxed, because most operations succeed.
    pub cause: Box<OpCause>,
}

impl OpError {
    pub(crate) fn new(step: &'static str, failure: Failure, cause: impl Into<OpCause>) -> Self {
        Self { step, failure, cause: Box::new(cause.into()) }
    }

    /// A failed call to the driver. Without a verdict the mount is uncertain.
    pub(super) fn call(step: &'static str, error: CsiError) -> Self {
        let failure = if error.is_final() { Failure::Final } else { Failure::Uncertain };
        Self::new(step, failure, error)
    }
}

impl OpError {
    /// Whether the driver said that it does not know the volume.
    pub(super) fn says_not_found(&self) -> bool {
        match &*self.cause {
            OpCause::Call(call) | OpCause::Forgotten { call, .. } => call.code() == Code::NotFound,
            _ => false,
        }
    }
}

/// Why an operation failed. Its text ends the pod's event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpCause {
    #[error(transparent)]
    Call(#[from] CsiError),
    /// The driver does not know the volume, and what is left of its mount stays.
    #[error("{call}; {unmount}")]
    Forgotten { call: CsiError, unmount: io::Error },
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("secret {key}: {source}")]
    Secret { key: ObjectKey, source: SecretError },
    #[error("failed to fetch token: {0}")]
    Token(#[source] ApiError),
    #[error("failed to fetch token: its end: {0}")]
    TokenEnd(#[source] jiff::Error),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("applyFSGroup failed: {0}")]
    FsGroup(#[source] io::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A rule of this node refused.
    #[error("{0}")]
    Refused(String),
}

impl From<String> for OpCause {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}

impl From<&str> for OpCause {
    fn from(text: &str) -> Self {
        Self::Refused(text.to_owned())
    }
}
