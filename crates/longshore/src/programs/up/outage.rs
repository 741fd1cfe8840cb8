//! What the API is told about nodes that are down, fenced, or back.

use anyhow::{Context as _, Result};
use longshore_cluster::{
    Api, ApiError, DeleteParams, EventType, ListParams, Patch, Recorder, clock,
};
use longshore_core::model::{
    ObjectKey, ObjectRef,
    keys::taints,
    kinds::{Node, Pod},
};
use serde_json::{Value, json};

/// How often a change of taints is tried when others change the node too.
const TRIES: usize = 5;

/// Marks a silent node NotReady, and keeps new pods away from it.
pub(super) async fn down(api: &Api, node: &str, why: &str) -> Result<()> {
    let message = format!(
        "the node's process {why}; its volumes stay where they are until it is back or carries the \
         taint {}",
        taints::OUT_OF_SERVICE
    );
    not_ready(api, node, &message).await?;
    set_unreachable(api, node, true).await
}

/// Marks a node NotReady that this start does not run, and keeps new pods away from it.
pub(super) async fn absent(api: &Api, node: &str) -> Result<()> {
    not_ready(api, node, "this start does not run the node; its volumes stay where they are")
        .await?;
    set_unreachable(api, node, true).await
}

/// Says that a node is back; the node itself says when it is ready.
pub(super) async fn back(api: &Api, node: &str) -> Result<()> {
    set_unreachable(api, node, false).await
}

/// Says that a node is fenced: it uses nothing, and its pods are gone.
pub(super) async fn fenced(api: &Api, recorder: &Recorder, node: &str) -> Result<()> {
    not_ready(api, node, "the node is out of service: its pods are ended, its mounts undone")
        .await?;
    let key = ObjectKey::cluster(node);
    let unused = json!({"status": {"volumesInUse": null}});
    api.patch_status::<Node>(&key, Patch::Merge(&unused)).await.context("cannot free volumes")?;
    let on_node = format!("spec.nodeName={node}");
    let params = ListParams { field_selector: Some(on_node), ..ListParams::default() };
    let pods = api.list::<Pod>(None, &params).await.context("cannot list the node's pods")?;
    for pod in &pods {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::uid(pod.metadata.uid.as_str())
        };
        match api.delete::<Pod>(&pod.metadata.key(), &now).await {
            Err(error) if !error.is_not_found() => {
                let name = &pod.metadata.name;
                return Err(error).with_context(|| format!("cannot delete the ended pod {name}"));
            }
            _ => {}
        }
    }
    tracing::warn!(node, pods = pods.len(), "fenced: its pods are ended and deleted");
    let text = format!(
        "Node {node} is out of service: {} pod(s) ended and deleted, all mounts undone. It starts \
         again when the taint is removed",
        pods.len()
    );
    let about = reference(api, node).await;
    recorder.event(&about, EventType::Warning, "NodeFenced", text);
    Ok(())
}

async fn reference(api: &Api, node: &str) -> ObjectRef {
    let found = api.get::<Node>(&ObjectKey::cluster(node)).await.ok().flatten();
    ObjectRef {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: found.map(|node| node.metadata.uid).unwrap_or_default(),
        ..ObjectRef::default()
    }
}

async fn not_ready(api: &Api, node: &str, message: &str) -> Result<()> {
    let key = ObjectKey::cluster(node);
    let stored = api.get_raw::<Node>(&key).await.context("cannot read the node")?;
    let Some(stored) = stored else { return Ok(()) };
    let mut conditions = stored["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let now = clock::seconds(clock::now());
    let ready = |one: &Value| one["type"] == "Ready";
    let since = conditions.iter().find(|one| ready(one) && one["status"] == "Unknown");
    let since = since.map_or_else(|| json!(now), |one| one["lastTransitionTime"].clone());
    conditions.retain(|one| !ready(one));
    conditions.push(json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": message, "lastHeartbeatTime": now, "lastTransitionTime": since}));
    let patch = json!({"status": {"conditions": conditions}});
    let told = api.patch_status::<Node>(&key, Patch::Merge(&patch)).await;
    told.map(drop).context("cannot say that the node is not ready")
}

/// Adds or removes the taint that keeps new pods away. The list is replaced as a whole, so the change
/// holds only for the version that was read.
async fn set_unreachable(api: &Api, node: &str, wanted: bool) -> Result<()> {
    let key = ObjectKey::cluster(node);
    for _ in 0..TRIES {
        let Some(stored) = api.get_raw::<Node>(&key).await? else { return Ok(()) };
        let mut all = stored["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = |one: &Value| one["key"] == taints::UNREACHABLE;
        if all.iter().any(ours) == wanted {
            return Ok(());
        }
        all.retain(|one| !ours(one));
        if wanted {
            all.push(json!({"key": taints::UNREACHABLE, "effect": "NoSchedule"}));
        }
        let version = &stored["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": all}});
        match api.patch::<Node>(&key, Patch::Merge(&patch)).await {
            Err(ApiError::Conflict { .. }) => {}
            other => return other.map(drop).context("cannot change the node's taints"),
        }
    }
    anyhow::bail!("the taints of node {node} were changed by others again and again")
}
