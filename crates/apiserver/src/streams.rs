//! Streams of containers (`exec`, `attach`): the node part of the process provides them.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use longshore_core::model::streams::{StreamEnd, StreamError, StreamRequest};
use tokio::io::AsyncWrite;

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
