//! Container logs: the node part of the process provides them.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// Which log, and how much of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRequest {
    pub namespace: String,
    pub pod: String,
    /// The container; `None` when the pod has only one.
    pub container: Option<String>,
    /// Go on as the log grows.
    pub follow: bool,
    /// Of the container's previous run.
    pub previous: bool,
    /// Put a time in front of each line.
    pub timestamps: bool,
    /// Only the last so many lines.
    pub tail_lines: Option<i64>,
    /// Only lines newer than so many seconds.
    pub since_seconds: Option<i64>,
    /// Only lines after this time (RFC 3339).
    pub since_time: Option<String>,
    /// At most so many bytes.
    pub limit_bytes: Option<i64>,
}

/// Why there is no log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The request is wrong, e.g. the container does not exist or has not started.
    #[error("{0}")]
    BadRequest(String),
    /// The pod's node cannot be reached.
    #[error("{0}")]
    NoNode(String),
    /// The log cannot be read.
    #[error("{0}")]
    Failed(String),
}

/// Gives access to container logs.
pub trait LogSource: Send + Sync + 'static {
    fn open(
        &self,
        request: LogRequest,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Bytes>, LogError>>;
}
