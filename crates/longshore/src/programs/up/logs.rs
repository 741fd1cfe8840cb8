//! Pod logs for the API server: from the files of whichever node runs the pod.

use std::{collections::BTreeMap, path::PathBuf};

use futures::{FutureExt as _, future::BoxFuture, stream::BoxStream};
use longshore_apiserver::LogSource;
use longshore_cluster::Api;
use longshore_core::model::streams::{LogError, LogRequest};
use longshore_core::model::{ObjectKey, kinds::Pod};
use longshore_node::NodeLogs;

/// The logs of all nodes of this instance.
#[derive(Clone)]
pub(super) struct Logs {
    api: Api,
    nodes: BTreeMap<String, NodeLogs>,
}

impl Logs {
    /// Logs of nodes by name and kubelet-style root.
    pub(super) fn new(api: &Api, roots: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        let logs = |(name, root): (String, PathBuf)| (name, NodeLogs::new(api.clone(), root));
        Self { api: api.clone(), nodes: roots.into_iter().map(logs).collect() }
    }

    async fn read(self, request: LogRequest) -> Result<BoxStream<'static, bytes::Bytes>, LogError> {
        let key = ObjectKey::new(&request.namespace, &request.pod);
        let pod = self.api.get::<Pod>(&key).await;
        let pod = pod.map_err(|error| LogError::Failed(error.to_string()))?;
        let pod = pod.ok_or_else(|| LogError::BadRequest(format!("pod {key} is gone")))?;
        let node = self.nodes.get(pod.spec.node_name.as_str()).ok_or_else(|| {
            LogError::NoNode(format!("node {} is not of this instance", pod.spec.node_name))
        })?;
        node.open(request).await
    }
}

impl LogSource for Logs {
    fn open(
        &self,
        request: LogRequest,
    ) -> BoxFuture<'static, Result<BoxStream<'static, bytes::Bytes>, LogError>> {
        self.clone().read(request).boxed()
    }
}
