//! What drivers tell of a node, written to its `Node` and `CSINode`.

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
    // Drivers register at the same time; their writes go to the same two objects.
    turn: tokio::sync::Mutex<()>,
}

enum Problem {
    Again(String),
    Final(String),
}

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        Self::Again(error.to_string())
    }
}

impl NodeInfo {
    pub(super) fn new(api: Api, name: &str) -> Self {
        Self { api, name: name.to_owned(), turn: tokio::sync::Mutex::new(()) }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::cluster(&self.name)
    }

    /// Annotation and labels first, then the `CSINode`.
    pub(super) async fn install(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), String> {
        if info.node_id.is_empty() {
            return Err(format!("driver {driver} returned an empty node id"));
        }
        let _turn = self.turn.lock().await;
        self.with_retries(|| self.install_node(driver, info)).await?;
        self.with_retries(|| self.install_csi_node(driver, info)).await
    }

    /// The `CSINode` first, then the annotation; labels stay.
    pub(super) async fn uninstall(&self, driver: &str) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        self.with_retries(|| self.uninstall_csi_node(driver)).await?;
        self.with_retries(|| self.uninstall_node(driver)).await
    }

    async fn with_retries<F>(&self, attempt: impl Fn() -> F) -> Result<(), String>
    where
        F: Future<Output = Result<(), Problem>>,
    {
        for pause in RETRY_PAUSES {
            match attempt().await {
                Ok(()) => return Ok(()),
                Err(Problem::Final(text)) => return Err(text),
                Err(Problem::Again(_)) => tokio::time::sleep(pause).await,
            }
        }
        attempt().await.map_err(|problem| match problem {
            Problem::Again(text) | Problem::Final(text) => text,
        })
    }

    async fn node(&self) -> Result<Value, Problem> {
        let node = self.api.get_raw::<Node>(&self.key()).await?;
        node.ok_or_else(|| Problem::Again(format!("node {} not found", self.name)))
    }

    async fn install_node(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), Problem> {
        let node = self.node().await?;
        let present = |key: &str| node["metadata"]["labels"][key].as_str();
        let segments = info.accessible_topology.iter().flat_map(|topology| &topology.segments);
        let segments = segments.map(|(key, value)| (key.as_str(), value.as_str()));
        let missing = topology_labels(present, segments).map_err(Problem::Final)?;
        let mut ids = node_ids(&node);
        let known = ids.insert(driver.to_owned(), info.node_id.clone());
        if missing.is_empty() && known.as_ref() == Some(&info.node_id) {
            return Ok(());
        }
        let labels: BTreeMap<&str, &str> = missing.into_iter().collect();
        let annotation = json!({annotations::CSI_NODE_ID: to_text(&ids)});
        self.patch_node(&json!({"metadata": {"annotations": annotation, "labels": labels}})).await
    }

    async fn uninstall_node(&self, driver: &str) -> Result<(), Problem> {
        let node = self.node().await?;
        let mut ids = node_ids(&node);
        if ids.remove(driver).is_none() {
            return Ok(());
        }
        let value = if ids.is_empty() { Value::Null } else { to_text(&ids).into() };
        self.patch_node(&json!({"metadata": {"annotations": {annotations::CSI_NODE_ID: value}}}))
            .await
    }

    async fn patch_node(&self, patch: &Value) -> Result<(), Problem> {
        Ok(self.api.patch::<Node>(&self.key(), Patch::Merge(patch)).await.map(drop)?)
    }

    /// The `CSINode` of this very node; one of an earlier node of the same name is deleted.
    async fn csi_node(&self) -> Result<Option<Value>, Problem> {
        let node = self.node().await?;
        let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
        let Some(object) = self.api.get_raw::<CsiNode>(&self.key()).await? else {
            return match self.api.create::<CsiNode>(&csi_node(&self.name, uid)).await {
                Ok(object) => Ok(Some(object)),
                Err(error) => Err(error.into()),
            };
        };
        let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let owner = owners.iter().find(|owner| owner["kind"] == "Node");
        if owner.is_some_and(|owner| owner["uid"] != uid) {
            let params = DeleteParams::uid(object["metadata"]["uid"].as_str().unwrap_or_default());
            self.api.delete::<CsiNode>(&self.key(), &params).await?;
            return Err(Problem::Again("the CSINode belonged to another node".to_owned()));
        }
        Ok(Some(object))
    }

    async fn install_csi_node(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), Problem> {
        let Some(mut object) = self.csi_node().await? else { return Ok(()) };
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

    async fn uninstall_csi_node(&self, driver: &str) -> Result<(), Problem> {
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
