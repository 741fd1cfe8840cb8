//! Why a call is refused, and the gRPC status that says so.

use tonic::{Code, Status};

use crate::copy::CopyError;
use crate::format::{FormatError, OptionError};
use crate::freeze::FreezeError;
use crate::id::VolumeId;
use crate::loopdev::LoopError;
use crate::mount::MountError;
use crate::mount::checked_path::PathError;
use crate::mount::options::UnsupportedFlag;
use crate::mutable::MutableError;
use crate::pool::PoolError;

/// A refused or failed call. Each variant says what must change before
/// the call can succeed?
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A field is missing or has a value that can never work.
    #[error("{0}")]
    Invalid(String),
    /// There is no such volume, node or path.
    #[error("{0}")]
    NotFound(String),
    /// It exists in a way that contradicts the request.
    #[error("{0}")]
    Exists(String),
    /// Something else has to happen first.
    #[error("{0}")]
    Precondition(String),
    #[error("{0}")]
    Exhausted(String),
    /// The size cannot be had.
    #[error("{0}")]
    OutOfRange(String),
    /// A page token that this driver did not give out.
    #[error("starting_token {0:?} is not valid; start again without it")]
    BadToken(String),
    /// Another call for the same volume, snapshot or group is under way.
    #[error("another operation on {0} is under way")]
    Pending(String),
    /// A class parameter is no option of the filesystem.
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Flag(#[from] UnsupportedFlag),
    #[error(transparent)]
    Mutable(#[from] MutableError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A loop device could not be had or given back.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// There is no usable filesystem.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A mount could not be made or undone.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A path from the request cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A filesystem could not be frozen.
    #[error("volume {id}: {source}")]
    Freeze { id: VolumeId, source: FreezeError },
    /// The node that has a volume could not quiesce it.
    #[error("node {node}: {text}")]
    Node { node: String, code: Code, text: String },
    /// An image could not be copied.
    #[error("volume {id}: {source}")]
    Copy {
        /// The volume, or the snapshot's source.
        id: VolumeId,
        source: CopyError,
    },
    /// The mount table could not be read.
    #[error("cannot read the mount table: {0}")]
    MountTable(#[source] std::io::Error),
}

impl Refusal {
    /// The status code that CSI has for it.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) | Self::Option(_) | Self::Flag(_) | Self::Mutable(_) => {
                Code::InvalidArgument
            }
            Self::NotFound(_) => Code::NotFound,
            Self::Exists(_) => Code::AlreadyExists,
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::Exhausted(_) => Code::ResourceExhausted,
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::BadToken(_) | Self::Pending(_) => Code::Aborted,
            Self::Pool(error) => pool_code(error),
            Self::Loop(LoopError::StillInUse { .. }) => Code::FailedPrecondition,
            // Devices are free again when other volumes are: try later.
            Self::Loop(LoopError::NoneFree) => Code::ResourceExhausted,
            Self::Loop(LoopError::Io { .. }) | Self::Mount(_) | Self::MountTable(_) => {
                Code::Internal
            }
            Self::Format(FormatError::ToolMissing { .. } | FormatError::Foreign { .. }) => {
                Code::FailedPrecondition
            }
            Self::Format(_) => Code::Internal,
            Self::Freeze { source, .. } => freeze_code(source),
            Self::Node { code, .. } => *code,
            Self::Copy { source: CopyError::TooSlow { .. }, .. } => Code::FailedPrecondition,
            Self::Copy { source: CopyError::Io { source, .. }, .. } => io_code(source),
            Self::Path(PathError::Bad { .. }) => Code::InvalidArgument,
            Self::Path(PathError::NoParent(_)) => Code::FailedPrecondition,
            Self::Path(PathError::Io { .. }) => Code::Internal,
        }
    }
}

fn freeze_code(error: &FreezeError) -> Code {
    match error {
        FreezeError::NoHolder | FreezeError::Foreign | FreezeError::TooSlow => {
            Code::FailedPrecondition
        }
        // Both are over in a moment.
        FreezeError::Ending | FreezeError::Lost => Code::Aborted,
        FreezeError::Io { .. } => Code::Internal,
    }
}

fn io_code(error: &std::io::Error) -> Code {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Code::ResourceExhausted
        }
        _ => Code::Internal,
    }
}

fn pool_code(error: &PoolError) -> Code {
    match error {
        PoolError::NotFound(_) => Code::NotFound,
        PoolError::Full { .. } | PoolError::NearlyFull { .. } => Code::ResourceExhausted,
        PoolError::Io { source, .. } => io_code(source),
        PoolError::ImageMissing(_)
        | PoolError::BadRecord { .. }
        | PoolError::BadSnapshot { .. } => Code::DataLoss,
        PoolError::InTheWay(_) => Code::FailedPrecondition,
        PoolError::Importing(_) => Code::Aborted,
        PoolError::Busy { .. } | PoolError::Locking { .. } => Code::Internal,
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Status::new(refusal.code(), refusal.to_string())
    }
}

/// The value of a required text field.
pub(crate) fn required<'a>(field: &str, value: &'a str) -> Result<&'a str, Refusal> {
    if value.is_empty() { Err(Refusal::Invalid(format!("{field} is missing"))) } else { Ok(value) }
}

/// As [`required`], with the length limit of ids and names.
pub(crate) fn required_short<'a>(field: &str, value: &'a str) -> Result<&'a str, Refusal> {
    if required(field, value)?.len() > 128 {
        return Err(Refusal::Invalid(format!("{field} is longer than 128 bytes")));
    }
    Ok(value)
}
