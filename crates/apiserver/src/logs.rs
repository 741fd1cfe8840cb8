//! Container logs: the node part of the process provides them.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use longshore_core::model::streams::{LogError, LogRequest};

/// Gives access to container logs.
pub trait LogSource: Send + Sync + 'static {
    fn open(
        &self,
        request: LogRequest,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Bytes>, LogError>>;
}
