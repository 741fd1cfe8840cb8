//! What the API server and a node tell each other about logs and streams of containers.

use jiff::Timestamp;
use thiserror::Error;

/// Which log, and how much of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRequest {
    pub namespace: String,
    pub pod: String,
    /// The container; may be left out when there is only one.
    pub container: Option<String>,
    /// Go on as the log grows, until the container ends.
    pub follow: bool,
    /// Of the run before the current one.
    pub previous: bool,
    /// Put a time in front of each line.
    pub timestamps: bool,
    /// Only the last so many lines.
    pub tail_lines: Option<usize>,
    /// Only lines from this time on.
    pub since: Option<Timestamp>,
    /// At most so many bytes.
    pub limit_bytes: Option<usize>,
}

/// Why there is no log.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LogError {
    /// The request does not fit the pod: the container does not exist, or has not started.
    #[error("{0}")]
    BadRequest(String),
    /// The pod's node cannot be reached.
    #[error("{0}")]
    NoNode(String),
    /// The log cannot be read.
    #[error("{0}")]
    Failed(String),
}

/// Which streams, and of what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamRequest {
    pub namespace: String,
    pub pod: String,
    /// The node that the pod is bound to.
    pub node: String,
    pub container: String,
    /// A command to run beside the container's own process (`exec`); without one, that process itself (`attach`).
    pub command: Option<Vec<String>>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Why there are no streams.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The container does not run.
    #[error("the container does not run")]
    NotRunning,
    /// The pod's node cannot be reached.
    #[error("{0}")]
    NoNode(String),
    /// They cannot be opened.
    #[error("{0}")]
    Failed(String),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// With this code; 128 + signal when a signal ended it.
    Exited(i32),
    /// It could not be started, or its end is not known.
    Failed(String),
}
