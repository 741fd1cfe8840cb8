//! Builds the views of scheduling decisions from the caches.

use std::{collections::BTreeSet, sync::Arc};

use longshore_cluster::Cache;
use longshore_core::{
    model::{
        NodeName, ObjectKey, VolumePhase,
        kinds::{Claim, CsiDriver, Node, Pod, StorageClass, Volume},
    },
    schedule::{Amounts, ClaimFacts, VolumeUse, add, requests_of, volume_use},
};

use super::{Scheduler, state::Inner};
use crate::index::{attachments_on_node, pods_on_node};

/// Volumes that are not bound, by their class, or by the claim that they are kept for.
const UNBOUND: &str = "schedule-unbound-volumes";

fn of_class(class: &str) -> String {
    format!("class {class}")
}

fn of_claim(claim: &ObjectKey) -> String {
    format!("claim {claim}")
}

/// Lets volumes be found that a claim could still be given.
pub(super) fn index_volumes(volumes: &Cache<Volume>) {
    volumes.index(UNBOUND, |volume: &Volume| match &volume.spec.claim_ref {
        _ if volume.status.phase == VolumePhase::Bound => Vec::new(),
        Some(claim) => vec![of_claim(&ObjectKey::new(&claim.namespace, &claim.name))],
        None => vec![of_class(volume.class_name())],
    });
}

/// One claim and what belongs to it, held for as long as a decision takes.
pub(super) struct HeldClaim {
    name: String,
    claim: Arc<Claim>,
    class: Option<Arc<StorageClass>>,
    volume: Option<Arc<Volume>>,
    driver: Option<Arc<CsiDriver>>,
}

impl HeldClaim {
    pub(super) fn facts(&self) -> ClaimFacts<'_> {
        ClaimFacts {
            claim: &self.claim,
            class: self.class.as_deref(),
            volume: self.volume.as_deref(),
            driver: self.driver.as_deref(),
        }
    }

    pub(super) fn find<'a>(held: &'a [Self], name: &str) -> Option<ClaimFacts<'a>> {
        held.iter().find(|one| one.name == name).map(Self::facts)
    }
}

impl Scheduler {
    /// The pod's claims that exist.
    pub(super) fn claims_of(&self, pod: &Pod) -> Vec<HeldClaim> {
        let hold = |(name, _): (String, _)| {
            let claim = self.claims.get(&ObjectKey::new(&pod.metadata.namespace, &name))?;
            let class = self.classes.get(&ObjectKey::cluster(claim.class_name()));
            let volume = self.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name));
            let driver = class
                .as_ref()
                .and_then(|class| self.drivers.get(&ObjectKey::cluster(&class.provisioner)));
            Some(HeldClaim { name, claim, class, volume, driver })
        };
        pod.claim_names().filter_map(hold).collect()
    }

    /// Volumes that could still be given to these claims: free ones of their classes, and those
    /// kept for them.
    pub(super) fn free_volumes(&self, claims: &[ClaimFacts<'_>]) -> Vec<Arc<Volume>> {
        let classes: BTreeSet<&str> = claims.iter().map(|facts| facts.claim.class_name()).collect();
        let mut wanted: Vec<String> = classes.into_iter().map(of_class).collect();
        wanted.extend(claims.iter().map(|facts| of_claim(&facts.claim.metadata.key())));
        wanted.iter().flat_map(|value| self.volumes.by_index(UNBOUND, value)).collect()
    }

    /// What the pod's claims add to a node's count of volumes.
    pub(super) fn uses_of(&self, pod: &Pod) -> BTreeSet<VolumeUse> {
        self.claims_of(pod).iter().filter_map(|held| volume_use(&held.facts())).collect()
    }

    /// Volumes that count on a node already: of its pods, of pods on their way, of attachments.
    pub(super) fn used_on(&self, node: &Node, state: &Inner) -> BTreeSet<VolumeUse> {
        let name = &node.name();
        let mut used = BTreeSet::new();
        for pod in pods_on_node(&self.pods, name) {
            if !pod.finished() {
                used.extend(self.uses_of(&pod));
            }
        }
        for key in state.heading_to(name) {
            if let Some(pod) = self.pods.get(&key) {
                used.extend(self.uses_of(&pod));
            }
        }
        for attachment in attachments_on_node(&self.attachments, name) {
            let volume = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| self.volumes.get(&ObjectKey::cluster(name)));
            if let Some(csi) = volume.as_ref().and_then(|volume| volume.spec.csi.as_ref()) {
                let driver = attachment.spec.attacher.as_str().into();
                used.insert(VolumeUse { driver, handle: csi.volume_handle.clone() });
            }
        }
        used
    }

    /// What the pods request that are or will be on a node.
    pub(super) fn requested_on(&self, node: &NodeName, state: &Inner) -> Amounts {
        let mut all = Amounts::new();
        let there = pods_on_node(&self.pods, node);
        for pod in there.iter().filter(|pod| !pod.finished()) {
            add(&mut all, &requests_of(pod));
        }
        for key in state.heading_to(node) {
            let coming = self.pods.get(&key).filter(|pod| pod.spec.node_name.is_empty());
            if let Some(pod) = coming {
                add(&mut all, &requests_of(&pod));
            }
        }
        all
    }

    /// How many pods are or will be on a node.
    pub(super) fn pods_on(&self, node: &NodeName, state: &Inner) -> usize {
        let there = pods_on_node(&self.pods, node);
        let live = there.iter().filter(|pod| !pod.finished());
        let coming = state.heading_to(node);
        let coming =
            coming.iter().filter(|key| there.iter().all(|pod| pod.metadata.key() != **key));
        live.count() + coming.count()
    }
}
