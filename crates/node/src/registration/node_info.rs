//! Node ids, topology and limits of drivers, written to the `Node` and the `CSINode`.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_cluster::{Api, ApiError, DeleteParams, Patch};
use longshore_core::model::ObjectKey;
use longshore_core::model::keys::annotations;
use longshore_core::model::kinds::{CsiNode, Node};
use longshore_core::stage::registration::{allocatable_count, topology_labels};
use longshore_csi::v1::NodeGetInfoResponse;
use serde_json::{Value, json};

use crate::node_object::csi_node;

const RETRY_PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(250)];

/// Writes node ids, topology and limits.
pub(super) struct NodeInfo {
    api: Api,
    name: String,
    /// Drivers register at the same time; their writes go to the same two objects.
    writing: tokio::sync::Mutex<()>,
}

/// Why a driver's node info is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeInfoError {
    #[error("driver {0} returned an empty node id")]
    NoId(String),
    /// A label has another value than the driver's topology.
    #[error("{0}")]
    Topology(String),
    #[error("node {0} not found")]
    NoNode(String),
    #[error("the CSINode belonged to another node")]
    Foreign,
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl NodeInfo {
    pub(super) fn new(api: Api, name: &str) -> Self {
        Self { api, name: name.to_owned(), writing: tokio::sync::Mutex::new(()) }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::cluster(&self.name)
    }

    /// Annotation and labels first, then the `CSINode`.
    pub(super) async fn install(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), NodeInfoError> {
        if info.node_id.is_empty() {
            return Err(NodeInfoError::NoId(driver.to_owned()));
        }
        let _writing = self.writing.lock().await;
        self.with_retries(|| self.install_node(driver, info)).await?;
        self.with_retries(|| self.install_csi_node(driver, info)).await
    }

    /// The `CSINode` first, then the annotation; labels stay.
    pub(super) async fn uninstall(&self, driver: &str) -> Result<(), NodeInfoError> {
        let _writing = self.writing.lock().await;
        self.with_retries(|| self.uninstall_csi_node(driver)).await?;
        self.with_retries(|| self.uninstall_node(driver)).await
    }

    async fn with_retries<F>(&self, attempt: impl Fn() -> F) -> Result<(), NodeInfoError>
    where
        F: Future<Output = Result<(), NodeInfoError>>,
    {
        for pause in RETRY_PAUSES {
            match attempt().await {
                Ok(()) => return Ok(()),
                Err(error @ NodeInfoError::Topology(_)) => return Err(error),
                Err(_) => tokio::time::sleep(pause).await,
            }
        }
        attempt().await
    }

    async fn node(&self) -> Result<Value, NodeInfoError> {
        let node = self.api.get_raw::<Node>(&self.key()).await?;
        node.ok_or_else(|| NodeInfoError::NoNode(self.name.clone()))
    }

    async fn install_node(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), NodeInfoError> {
        let node = self.node().await?;
        let present = |key: &str| node["metadata"]["labels"][key].as_str();
        let segments = info.accessible_topology.iter().flat_map(|topology| &topology.segments);
        let segments = segments.map(|(key, value)| (key.as_str(), value.as_str()));
        let missing = topology_labels(present, segments).map_err(NodeInfoError::Topology)?;
        let mut ids = node_ids(&node);
        let known = ids.insert(driver.to_owned(), info.node_id.clone());
        if missing.is_empty() && known.as_ref() == Some(&info.node_id) {
            return Ok(());
        }
        let labels: BTreeMap<&str, &str> = missing.into_iter().collect();
        let annotation = json!({annotations::CSI_NODE_ID: to_text(&ids)});
        self.patch_node(&json!({"metadata": {"annotations": annotation, "labels": labels}})).await
    }

    async fn uninstall_node(&self, driver: &str) -> Result<(), NodeInfoError> {
        let node = self.node().await?;
        let mut ids = node_ids(&node);
        if ids.remove(driver).is_none() {
            return Ok(());
        }
        let value = if ids.is_empty() { Value::Null } else { to_text(&ids).into() };
        self.patch_node(&json!({"metadata": {"annotations": {annotations::CSI_NODE_ID: value}}}))
            .await
    }

    async fn patch_node(&self, patch: &Value) -> Result<(), NodeInfoError> {
        Ok(self.api.patch::<Node>(&self.key(), Patch::Merge(patch)).await.map(drop)?)
    }

    /// The `CSINode` of this very node; one of an earlier node of the same name is deleted.
    async fn csi_node(&self) -> Result<Value, NodeInfoError> {
        let node = self.node().await?;
        let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
        let Some(object) = self.api.get_raw::<CsiNode>(&self.key()).await? else {
            return Ok(self.api.create::<CsiNode>(&csi_node(&self.name, uid)).await?);
        };
        let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let owner = owners.iter().find(|owner| owner["kind"] == "Node");
        if owner.is_some_and(|owner| owner["uid"] != uid) {
            let params = DeleteParams::uid(object["metadata"]["uid"].as_str().unwrap_or_default());
            self.api.delete::<CsiNode>(&self.key(), &params).await?;
            return Err(NodeInfoError::Foreign);
        }
        Ok(object)
    }

    async fn install_csi_node(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), NodeInfoError> {
        let mut object = self.csi_node().await?;
        let entry = driver_entry(driver, info);
        let mut drivers = object["spec"]["drivers"].as_array().cloned().unwrap_or_default();
        match drivers.iter_mut().find(|one| one["name"] == driver) {
            Some(one) if *one == entry => return Ok(()),
            Some(one) => *one = entry,
            None => drivers.push(entry),
        }
        object["spec"]["drivers"] = drivers.into();
        Ok(self.api.update::<CsiNode>(&object).await.map(drop)?)
    }

    async fn uninstall_csi_node(&self, driver: &str) -> Result<(), NodeInfoError> {
        let Some(mut object) = self.api.get_raw::<CsiNode>(&self.key()).await? else {
            return Ok(());
        };
        let mut drivers = object["spec"]["drivers"].as_array().cloned().unwrap_or_default();
        let before = drivers.len();
        drivers.retain(|one| one["name"] != driver);
        if drivers.len() == before {
            return Ok(());
        }
        object["spec"]["drivers"] = drivers.into();
        Ok(self.api.update::<CsiNode>(&object).await.map(drop)?)
    }
}

fn driver_entry(driver: &str, info: &NodeGetInfoResponse) -> Value {
    let mut keys: Vec<&String> =
        info.accessible_topology.iter().flat_map(|one| one.segments.keys()).collect();
    keys.sort();
    let mut entry = json!({"name": driver, "nodeID": info.node_id, "topologyKeys": keys});
    if let Some(count) = allocatable_count(info.max_volumes_per_node) {
        entry["allocatable"] = json!({"count": count});
    }
    entry
}

fn node_ids(node: &Value) -> BTreeMap<String, String> {
    let text = node["metadata"]["annotations"][annotations::CSI_NODE_ID].as_str().unwrap_or("{}");
    serde_json::from_str(text).unwrap_or_default()
}

fn to_text(ids: &BTreeMap<String, String>) -> String {
    json!(ids).to_string()
}
