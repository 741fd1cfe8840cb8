//! Values of the chart that fit our clusters.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node;

/// The image's name without its tag.
const REPOSITORY: &str = "longshore.test/longshore";
/// The name under which the image is to be imported.
pub const IMAGE: &str = "longshore.test/longshore:test";

/// Values for a cluster with a node and [`crate::Options::service_accounts`]: where its kubelet and its API server
/// are, and a pool below its directory. Its class has xfs, which grows under a pod everywhere.
///
/// # Errors
/// When the cluster has no node.
pub fn values(cluster: &Cluster) -> Result<Value> {
    let node = cluster.node().context("the chart needs a cluster with a node")?;
    // There is nothing that leads to service addresses.
    let api = json!([
        {"name": "KUBERNETES_SERVICE_HOST", "value": node::API_ADDRESS},
        {"name": "KUBERNETES_SERVICE_PORT", "value": cluster.port()},
    ]);
    let image = json!({"repository": REPOSITORY, "tag": "test", "pullPolicy": "Never"});
    Ok(json!({
        "image": image,
        "kubeletPath": node.root(),
        "local": {"pools": [{"name": "default", "hostPath": cluster.dir().join("pool")}],
            "defaultFsType": "xfs"},
        "storageClasses": [{"name": "longshore-local", "driver": "local",
            "parameters": {"csi.storage.k8s.io/fstype": "xfs"}}],
        "node": {"env": api, "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}},
        "controller": {"env": api},
        "snapshot-controller": {"image": image, "env": api, "replicas": 1,
            "tolerations": [{"operator": "Exists"}]},
    }))
}
