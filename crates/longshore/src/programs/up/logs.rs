//! Pod logs for the API server: from the files of whichever node runs the pod.

use std::{collections::BTreeMap, path::PathBuf};

use futures::{FutureExt as _, future::BoxFuture, stream::BoxStream};
use longshore_apiserver::{LogError, LogRequest, LogSource};
use longshore_cluster::Api;
use longshore_core::model::{ObjectKey, kinds::Pod};
use longshore_node::{LogQuery, NodeLogs};

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
        node.open(query(request)?).await.map_err(|error| match error {
            longshore_node::LogError::BadRequest(text) => LogError::BadRequest(text),
            longshore_node::LogError::Failed(text) => LogError::Failed(text),
        })
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

fn query(request: LogRequest) -> Result<LogQuery, LogError> {
    let LogRequest {
        namespace,
        pod,
        container,
        follow,
        previous,
        timestamps,
        tail_lines,
        since_seconds,
        since_time,
        limit_bytes,
    } = request;
    let bad = |field: &str| LogError::BadRequest(format!("{field} must be 0 or more"));
    let count = |value: Option<i64>, field| {
        value.map(|value| usize::try_from(value).map_err(|_| bad(field))).transpose()
    };
    let since = match (since_time, since_seconds) {
        (Some(text), _) => {
            let time = text.parse::<jiff::Timestamp>();
            Some(time.map_err(|_| LogError::BadRequest(format!("sinceTime {text:?} is no time")))?)
        }
        (None, Some(seconds)) => {
            let ago = jiff::SignedDuration::from_secs(seconds);
            jiff::Timestamp::now().checked_sub(ago).ok()
        }
        (None, None) => None,
    };
    Ok(LogQuery {
        namespace,
        pod,
        container,
        follow,
        previous,
        timestamps,
        tail_lines: count(tail_lines, "tailLines")?,
        since,
        limit_bytes: count(limit_bytes, "limitBytes")?,
    })
}
