//! Nodes of an earlier start that this one does not run.
//!
//! `--nodes 3` and then `--nodes 1` leaves nodes in the API that nobody runs. They are marked as nodes
//! whose process has ended, and their pods and volumes are named with what to do: silently, a pod of
//! such a node would be shown as running for ever.

use std::path::Path;

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, EventType, ListParams, Recorder};
use longshore_core::model::{
    ObjectRef,
    kinds::{Node, Pod, Volume},
};
use longshore_node::pods::shim_client::living_shim;
use tokio_util::sync::CancellationToken;

use super::{datadir::DataDir, outage};

/// How many names a sentence lists.
const NAMED: usize = 5;

/// What is known of a node that does not run.
struct Absent {
    node: Node,
    pods: Vec<Pod>,
    /// Volumes that only this node can reach.
    volumes: Vec<String>,
    /// Pods whose processes run on without an agent.
    alive: usize,
}

/// Marks the nodes of this data directory that `running` does not name, and tells their pods. Returns
/// whether there are any.
pub(super) async fn tell(api: &Api, data: &DataDir, running: &[String]) -> Result<bool> {
    let all = ListParams::default();
    let nodes = api.list::<Node>(None, &all).await.context("cannot list nodes")?;
    // A node without a directory here is run by another program.
    let absent = nodes.into_iter().filter(|node| {
        let name = &node.metadata.name;
        !running.contains(name) && data.node(name).exists()
    });
    let absent: Vec<Node> = absent.collect();
    if absent.is_empty() {
        return Ok(false);
    }
    let volumes = api.list::<Volume>(None, &all).await.context("cannot list volumes")?;
    let written = CancellationToken::new();
    let (recorder, writer) = Recorder::start(api, "longshore-up", "", &written);
    for node in absent {
        let root = data.node(&node.metadata.name);
        let one = Absent::look(api, node, &volumes, &root).await?;
        one.tell(api, &recorder).await?;
    }
    written.cancel();
    writer.await.context("the events about absent nodes were not written")?;
    Ok(true)
}

impl Absent {
    async fn look(api: &Api, node: Node, volumes: &[Volume], root: &Path) -> Result<Self> {
        let name = &node.metadata.name;
        let on_node = format!("spec.nodeName={name}");
        let params = ListParams { field_selector: Some(on_node), ..ListParams::default() };
        let pods = api.list::<Pod>(None, &params).await.context("cannot list a node's pods")?;
        let pods = pods.into_iter().filter(|pod| !pod.finished()).collect();
        let bound_to = |volume: &&Volume| {
            volume.spec.node_affinity.required.is_some()
                && volume.reachable_from(name, &node.metadata.labels)
        };
        let volumes = volumes.iter().filter(bound_to).map(|one| one.metadata.name.clone());
        let volumes = volumes.collect();
        let dirs = root.join("pods").read_dir().into_iter().flatten().flatten();
        let alive = dirs.filter(|dir| living_shim(&dir.path()).is_some()).count();
        Ok(Self { node, pods, volumes, alive })
    }

    async fn tell(&self, api: &Api, recorder: &Recorder) -> Result<()> {
        let node = &self.node.metadata.name;
        outage::absent(api, node).await?;
        let text = self.text();
        tracing::warn!(node, "{text}");
        let about = ObjectRef::of::<Node>(&self.node.metadata);
        recorder.event(&about, EventType::Warning, "NodeNotStarted", &text);
        for pod in &self.pods {
            let about = ObjectRef::of::<Pod>(&pod.metadata);
            recorder.event(&about, EventType::Warning, "NodeNotReady", self.text_for(pod));
        }
        Ok(())
    }

    fn text(&self) -> String {
        let node = &self.node.metadata.name;
        let pods: Vec<String> =
            self.pods.iter().map(|pod| pod.metadata.key().to_string()).collect();
        let mut text = format!("Node {node} ran at an earlier start and is not started now");
        if !pods.is_empty() {
            text += &format!("; its pods wait: {}", named(&pods));
        }
        if self.alive > 0 {
            text += &format!("; {} of them run on without an agent", self.alive);
        }
        if !self.volumes.is_empty() {
            text += &format!("; volumes that only it can reach: {}", named(&self.volumes));
        }
        text + ". Start with as many --nodes as before to have it back, or delete its pods with --force \
                --grace-period=0 and then the node"
    }

    fn text_for(&self, pod: &Pod) -> String {
        let (node, name) = (&self.node.metadata.name, &pod.metadata.name);
        format!(
            "Node {node} is not started now, and nobody looks after this pod. Start with as many --nodes as \
             before to have it back, or give the pod up: kubectl delete pod {name} -n {} --force \
             --grace-period=0",
            pod.metadata.namespace
        )
    }
}

fn named(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
