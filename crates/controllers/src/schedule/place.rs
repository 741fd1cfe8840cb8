//! Carrying a placement out: volumes first, then the pod.

use std::sync::Arc;

use longshore_cluster::{ApiError, OptionalExt as _, Outcome, Patch};
use longshore_core::{
    bind::is_for,
    model::{
        Kind, NodeName, ObjectKey, ObjectRef, VolumeName,
        keys::annotations,
        kinds::{Claim, Pod, Volume},
    },
    schedule::{
        BindingView, Progress, ProvisionedClaim, StaticClaim, binding_progress, not_considered,
    },
};
use serde_json::json;
use tokio::time::Instant;

use super::{PlaceError, Scheduler, state::Placement};

impl Scheduler {
    /// Brings a placement as far as it goes now.
    pub(super) async fn place(
        &self,
        pod: &Pod,
        placement: Placement,
    ) -> Result<Outcome, PlaceError> {
        let key = pod.metadata.key();
        if !placement.plan.is_empty() {
            if !placement.written {
                self.write_plan(&placement).await.map_err(PlaceError::Write)?;
                self.state.set_written(&key);
            }
            match self.progress(pod, &placement) {
                Progress::Bound => {}
                Progress::Failed(why) => return Err(PlaceError::Volumes(why)),
                Progress::Waiting => {
                    let left = placement.deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(PlaceError::TimedOut);
                    }
                    // A change of the claims comes first, as a rule.
                    return Ok(Outcome::After(left));
                }
            }
        }
        self.bind_pod(pod, &placement.node).await
    }

    /// Volumes before claims: a volume that knows its claim is safe from others.
    async fn write_plan(&self, placement: &Placement) -> Result<(), ApiError> {
        for (claim, volume) in &placement.plan.bind {
            self.keep_volume(claim, volume).await?;
        }
        for claim in &placement.plan.provision {
            self.select_node(claim, &placement.node).await?;
        }
        Ok(())
    }

    /// Keeps an existing volume for a claim; the binder does the rest.
    async fn keep_volume(&self, claim: &ObjectKey, volume: &VolumeName) -> Result<(), ApiError> {
        let key = ObjectKey::cluster(volume);
        let (claim, volume) = (self.claims.get(claim), self.volumes.get(&key));
        // Gone meanwhile: the look at the progress says so.
        let (Some(claim), Some(volume)) = (claim, volume) else { return Ok(()) };
        let uid_known = volume.spec.claim_ref.as_ref().is_some_and(|owner| !owner.uid.is_empty());
        if uid_known && is_for(&volume, &claim.metadata) {
            return Ok(());
        }
        let mut metadata = json!({"resourceVersion": volume.metadata.resource_version});
        if volume.spec.claim_ref.is_none() {
            // Nobody but us chose this claim for it.
            metadata["annotations"] = json!({annotations::BOUND_BY_CONTROLLER: "yes"});
        }
        let reference = ObjectRef::of::<Claim>(&claim.metadata);
        let patch = json!({"metadata": metadata, "spec": {"claimRef": reference}});
        self.volumes.assume(&self.api.patch::<Volume>(&key, Patch::Merge(&patch)).await?);
        Ok(())
    }

    /// Tells the provisioner where the claim's volume is wanted. The version is a precondition,
    /// so that a choice made by someone else meanwhile is not overwritten.
    async fn select_node(&self, key: &ObjectKey, node: &NodeName) -> Result<(), ApiError> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        if claim.metadata.annotation(annotations::SELECTED_NODE) == Some(node) {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {annotations::SELECTED_NODE: node},
        }});
        self.claims.assume(&self.api.patch::<Claim>(key, Patch::Merge(&patch)).await?);
        Ok(())
    }

    fn progress(&self, pod: &Pod, placement: &Placement) -> Progress {
        let node = self.nodes.get(&ObjectKey::cluster(&placement.node));
        let claim = |key: &ObjectKey| self.claims.get(key);
        let volume = |name: &VolumeName| self.volumes.get(&ObjectKey::cluster(name));
        let of_claim = |claim: &Option<Arc<Claim>>| {
            claim.as_ref().and_then(|claim| volume(&claim.spec.volume_name))
        };
        let bind: Vec<_> = placement
            .plan
            .bind
            .iter()
            .map(|(key, name)| (key, name, claim(key), volume(name)))
            .collect();
        let bind: Vec<_> = bind
            .iter()
            .map(|(key, name, claim, volume)| StaticClaim {
                name: &key.name,
                volume_name: name,
                claim: claim.as_deref(),
                volume: volume.as_deref(),
            })
            .collect();
        let provision: Vec<_> = placement
            .plan
            .provision
            .iter()
            .map(|key| (key, claim(key)))
            .map(|(key, claim)| (key, of_claim(&claim), claim))
            .collect();
        let provision: Vec<_> = provision
            .iter()
            .map(|(key, volume, claim)| ProvisionedClaim {
                name: &key.name,
                claim: claim.as_deref(),
                volume: volume.as_deref(),
            })
            .collect();
        let seen = self.pods.get(&pod.metadata.key());
        binding_progress(&BindingView {
            node: node.as_deref(),
            pod_waits: seen.is_some_and(|seen| seen.metadata.uid == pod.metadata.uid),
            bind: &bind,
            provision: &provision,
        })
    }

    async fn bind_pod(&self, pod: &Pod, node: &NodeName) -> Result<Outcome, PlaceError> {
        let meta = &pod.metadata;
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": longshore_core::model::kinds::Node::KIND,
                "name": node},
        });
        let bound = self.api.create_subresource::<Pod>(&meta.key(), "binding", &body).await;
        if bound.optional().map_err(PlaceError::Bind)?.is_none() {
            self.state.forget(&meta.key());
            return Ok(Outcome::Done);
        }
        self.state.set_bound(pod, node);
        let text = format!("Successfully assigned {} to {node}", meta.key());
        self.recorder.normal(pod, "Scheduled", text);
        let ignored = not_considered(pod);
        if !ignored.is_empty() {
            let text = format!(
                "this scheduler placed the pod without regard to: {}; it obeys nodeSelector and \
                 required node affinity",
                ignored.join(", ")
            );
            self.recorder.warning(pod, "NotEnforced", text);
        }
        Ok(Outcome::Done)
    }
}
