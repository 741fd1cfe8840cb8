//! One provisioner on each node: which claims and volumes are this node's.

use std::{sync::Arc, time::Duration};

use longshore_cluster::ApiError;
use longshore_core::{
    bind::edit::select_node,
    claim::selected_node,
    model::{
        NodeName, ObjectKey,
        kinds::{Claim, StorageClass, Volume},
    },
    provision::{
        Plan,
        contest::{Stake, delay, look_every, stake},
        topology::Term,
    },
};
use longshore_csi::{
    CsiError,
    v1::{GetCapacityRequest, Topology},
};
use longshore_provisioner::{ProvisionError, Request};
use tokio::time::{Instant, sleep, sleep_until};

use super::{call::capabilities, make::CsiProvisioner};

/// The node that a provisioner is for, in a deployment with one on each node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDeployment {
    pub node: NodeName,
    /// Where the driver says it is.
    pub segments: Term,
    /// Also take claims that bind at once.
    pub immediate_binding: bool,
    /// First wait before such a claim is taken.
    pub base_delay: Duration,
    pub max_delay: Duration,
}

/// Why it cannot be said whether a claim is this node's.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeCheckError {
    #[error("PVC {claim}: storageclass.storage.k8s.io \"{class}\" not found")]
    NoClass { claim: ObjectKey, class: String },
    #[error("PVC {claim}: {source}")]
    Contest { claim: ObjectKey, source: ContestError },
}

/// Why the contest for a claim ended without a result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContestError {
    #[error("PVC not found: persistentvolumeclaim \"{0}\" not found")]
    NotCached(String),
    #[error("PVC not found")]
    Deleted,
    #[error("PVC was replaced")]
    Replaced,
    #[error("selecting node {node:?} for PVC failed: {source}")]
    Select { node: NodeName, source: ApiError },
}

/// Why the room for a claim is not known.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum RoomError {
    Plan(#[from] ProvisionError),
    Driver(#[from] CsiError),
}

/// How one attempt to become a claim's owner ended.
enum Attempted {
    /// The claim has an owner, or gets none from us.
    Over,
    /// Somebody else wrote to it; try again.
    Again,
}

impl CsiProvisioner {
    /// Whether a claim is this node's. A claim without a node may become it, and is seen again when
    /// it has.
    pub(super) async fn is_ours_to_make(
        &self,
        claim: &Claim,
        class: Option<&Arc<StorageClass>>,
    ) -> Result<bool, NodeCheckError> {
        let Some(deployment) = &self.config.deployment else { return Ok(true) };
        let cached = || self.parts.classes.get(&ObjectKey::cluster(claim.class_name()));
        let class = match (selected_node(claim), class) {
            (Some(node), _) => return Ok(deployment.node == node),
            (None, Some(class)) => class.clone(),
            (None, None) => cached().ok_or_else(|| NodeCheckError::NoClass {
                claim: claim.metadata.key(),
                class: claim.class_name().to_owned(),
            })?,
        };
        let fits = || {
            !self.topology_in_use()
                || self.requirement(claim, &class, Some(&deployment.node)).is_ok()
        };
        match stake(claim, &class, &deployment.node, deployment.immediate_binding, fits) {
            Stake::Ours => Ok(true),
            Stake::NotOurs => Ok(false),
            Stake::Open => {
                let fought = self.become_owner(deployment, claim, &class).await;
                let claim = claim.metadata.key();
                fought.map(|()| false).map_err(|source| NodeCheckError::Contest { claim, source })
            }
        }
    }

    /// The same as an answer to a request.
    pub(super) async fn check_node(&self, request: &Request) -> Result<(), ProvisionError> {
        match self.is_ours_to_make(&request.claim, Some(&request.class)).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let key = request.claim.metadata.key();
                let node = self.config.deployment.as_ref().map_or("", |one| &one.node);
                Err(ProvisionError::Ignored(format!(
                    "not responsible for provisioning of PVC {key} because it is not assigned to node {node:?}"
                )))
            }
            Err(error) => Err(ProvisionError::unchanged(format!("node check failed: {error}"))),
        }
    }

    /// Whether a volume can be reached from this node, which is where it was made.
    pub(super) fn is_on_this_node(&self, volume: &Volume) -> bool {
        let Some(deployment) = &self.config.deployment else { return true };
        deployment.segments.is_empty()
            || volume.reachable_from(&deployment.node, &deployment.segments)
    }

    async fn become_owner(
        &self,
        deployment: &NodeDeployment,
        claim: &Claim,
        class: &Arc<StorageClass>,
    ) -> Result<(), ContestError> {
        while let Attempted::Again = self.try_to_own(deployment, claim, class).await? {}
        Ok(())
    }

    async fn try_to_own(
        &self,
        deployment: &NodeDeployment,
        claim: &Claim,
        class: &Arc<StorageClass>,
    ) -> Result<Attempted, ContestError> {
        let uid = &claim.metadata.uid;
        let earlier = self.attempts.draft(uid, |draft| {
            draft.contests += 1;
            draft.contests - 1
        });
        let wait = delay(deployment.base_delay, deployment.max_delay, earlier, fastrand::f64());
        let Some(current) = self.wait_for_turn(claim, wait, deployment.base_delay).await? else {
            self.attempts.draft(uid, |draft| draft.contests = 0);
            return Ok(Attempted::Over);
        };
        match self.has_room(&current, class, &deployment.node).await {
            Ok(true) => {}
            // Another node may have more.
            Ok(false) => return Ok(Attempted::Over),
            Err(error) => {
                // Somebody must try, or nobody would tell the user what is wrong.
                longshore_cluster::log_result!(claim = %current.metadata.key(), error = error.to_string(), "taking the claim although its room is not known");
            }
        }
        self.write_node(&current, &deployment.node).await
    }

    /// Waits; `None` as soon as the claim has a node.
    async fn wait_for_turn(
        &self,
        claim: &Claim,
        wait: Duration,
        base: Duration,
    ) -> Result<Option<Arc<Claim>>, ContestError> {
        let end = Instant::now() + wait;
        let key = claim.metadata.key();
        loop {
            let over = tokio::select! {
                biased;
                () = sleep_until(end) => true,
                () = sleep(look_every(base)) => false,
            };
            let current = self.parts.claims.get(&key);
            let current = current.ok_or_else(|| ContestError::NotCached(key.name.clone()))?;
            if current.metadata.uid != claim.metadata.uid {
                return Err(ContestError::Replaced);
            }
            if selected_node(&current).is_some() {
                return Ok(None);
            }
            if over {
                return Ok(Some(current));
            }
        }
    }

    /// Whether the driver has room here for what the claim asks for.
    async fn has_room(
        &self,
        claim: &Arc<Claim>,
        class: &Arc<StorageClass>,
        node: &NodeName,
    ) -> Result<bool, RoomError> {
        let bytes = claim.request().bytes();
        if bytes == 0 {
            return Ok(true);
        }
        let plan = self.plan_for(claim, class, Some(node)).await?;
        Ok(self.room_for(&plan).await?)
    }

    async fn room_for(&self, plan: &Plan) -> Result<bool, CsiError> {
        let places: Vec<Option<Topology>> = match &plan.topology {
            Some(wanted) => {
                let all = wanted.requisite.iter();
                all.map(|term| Some(Topology { segments: term.clone() })).collect()
            }
            None => vec![None],
        };
        for accessible_topology in places {
            let request = GetCapacityRequest {
                volume_capabilities: capabilities(plan),
                parameters: plan.parameters.clone(),
                accessible_topology,
            };
            if self.parts.csi.get_capacity(request).await?.available_capacity >= plan.bytes {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn write_node(&self, claim: &Claim, node: &NodeName) -> Result<Attempted, ContestError> {
        let key = claim.metadata.key();
        let failed = |source| ContestError::Select { node: node.clone(), source };
        let live = self.parts.api.get_raw::<Claim>(&key).await.map_err(failed)?;
        let Some(mut object) = live else { return Err(ContestError::Deleted) };
        if object["metadata"]["resourceVersion"] != claim.metadata.resource_version.as_str() {
            // What we decided on is not what is there; the cache will show it.
            return Ok(Attempted::Again);
        }
        select_node(&mut object, node);
        match self.parts.api.update::<Claim>(&object).await {
            Ok(written) => {
                self.parts.claims.assume(&written);
                self.attempts.draft(&claim.metadata.uid, |draft| draft.contests = 0);
                Ok(Attempted::Over)
            }
            Err(error) if error.is_conflict() => Ok(Attempted::Again),
            Err(error) => Err(failed(error)),
        }
    }
}
