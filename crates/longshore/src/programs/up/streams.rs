//! `exec` and `attach` for the API server: through the shim of the pod, on whichever node it runs.

use std::{collections::BTreeMap, path::PathBuf};

use futures::{FutureExt as _, future::BoxFuture};
use longshore_apiserver::{StreamSource, Streams};
use longshore_cluster::Api;
use longshore_core::model::streams::{StreamError, StreamRequest};
use longshore_node::NodeStreams;
use tokio::io::AsyncWrite;

/// The containers of all nodes of this instance. Their shims serve sockets below the nodes' directories, also those
/// of nodes that are processes of their own.
#[derive(Clone)]
pub(super) struct NodesStreams {
    nodes: BTreeMap<String, NodeStreams>,
}

impl NodesStreams {
    /// Containers of nodes by name and kubelet-style root.
    pub(super) fn new(api: &Api, roots: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        let streams = |(name, root): (String, PathBuf)| (name, NodeStreams::new(api.clone(), root));
        Self { nodes: roots.into_iter().map(streams).collect() }
    }

    fn node(&self, name: &str) -> Result<&NodeStreams, StreamError> {
        let none = || StreamError::NoNode(format!("node {name} is not of this instance"));
        self.nodes.get(name).ok_or_else(none)
    }

    async fn check(self, request: StreamRequest) -> Result<(), StreamError> {
        self.node(&request.node)?.check(&request).await
    }

    async fn open(self, request: StreamRequest) -> Result<Streams, StreamError> {
        let mut streams = self.node(&request.node)?.open(&request).await?;
        let stdin = streams.stdin();
        Ok(Streams {
            stdin: stdin.map(|stdin| Box::new(stdin) as Box<dyn AsyncWrite + Send + Unpin>),
            stdout: streams.stdout(),
            stderr: streams.stderr(),
            resize: Box::new(streams.resizer()),
            ended: streams.ended().boxed(),
        })
    }
}

impl StreamSource for NodesStreams {
    fn check(&self, request: StreamRequest) -> BoxFuture<'static, Result<(), StreamError>> {
        self.clone().check(request).boxed()
    }

    fn open(&self, request: StreamRequest) -> BoxFuture<'static, Result<Streams, StreamError>> {
        self.clone().open(request).boxed()
    }
}
