//! Streams of containers (`exec`, `attach`): the node part of the process provides them.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::io::AsyncWrite;

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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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

/// Open streams. What was started for them ends when `ended` is dropped.
pub struct Streams {
    /// Dropping it ends the process's input.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pub stdout: Option<BoxStream<'static, Bytes>>,
    pub stderr: Option<BoxStream<'static, Bytes>>,
    /// Sets the width and the height of the terminal.
    pub resize: Box<dyn Fn(u16, u16) + Send + Sync>,
    pub ended: BoxFuture<'static, StreamEnd>,
}

/// Gives access to the streams of containers.
pub trait StreamSource: Send + Sync + 'static {
    /// Whether the streams could be opened; nothing is started.
    fn check(&self, request: StreamRequest) -> BoxFuture<'static, Result<(), StreamError>>;

    /// Starts the command, or attaches to the container.
    fn open(&self, request: StreamRequest) -> BoxFuture<'static, Result<Streams, StreamError>>;
}
