//! Observes the caches: changes become desired and actual state.

use std::collections::BTreeSet;

use longshore_cluster::{Change, Sources};
use longshore_core::{
    attach::{
        AttachSpec,
        resolve::{
            Unresolved, attach_required, attach_spec, bound_volume_name, inline_attach_spec,
            pod_id, spec_of_volume, terminated,
        },
    },
    model::{
        ClaimPhase, NodeName, ObjectKey, Uid,
        keys::annotations,
        kinds::{Claim, CsiDriver, Node, Pod, PodVolume, Volume, VolumeAttachment},
    },
    names::{UniqueName, metrics_plugin},
};

use super::{
    Controller,
    reconcile::{out_of_service, refused},
    state::Inner,
};
use crate::index::{pods_of_claim, pods_on_node};

impl Controller {
    /// Takes every change in. Nodes come first: pods are looked at only on managed nodes.
    pub(super) fn observe(&self, sources: &mut Sources<Self>) {
        sources
            .observe(&self.nodes, Self::node_changed)
            .observe(&self.drivers, Self::driver_changed)
            .observe(&self.volumes, Self::volume_changed)
            .observe(&self.claims, Self::claim_changed)
            .observe(&self.pods, Self::pod_changed)
            .observe(&self.attachments, Self::attachment_changed);
    }

    pub(super) fn pod_changed(&self, change: &Change<Pod>) {
        match change {
            Change::Applied { old, new } => {
                let replaced = old.as_ref().filter(|old| old.metadata.uid != new.metadata.uid);
                if let Some(old) = replaced {
                    self.forget_pod(&old.metadata.uid);
                }
                self.observe_pod(new);
            }
            Change::Deleted { old } => self.forget_pod(&old.metadata.uid),
        }
    }

    /// Takes in what a pod wants, or that it wants nothing any more.
    pub(super) fn observe_pod(&self, pod: &Pod) {
        if pod.spec.node_name.is_empty() {
            return;
        }
        if terminated(pod) {
            return self.forget_pod(&pod.metadata.uid);
        }
        let specs = self.wanted_by(pod);
        let (id, node) = (pod_id(pod), &pod.spec.node_name);
        if specs.is_empty() || !self.state.lock().desired.manages(node) {
            return;
        }
        self.state.change(|state| {
            for spec in specs {
                let volume = spec.unique_name();
                if state.desired.add_pod(&id, &volume, &spec, node) == Ok(true) {
                    state.mark(&volume);
                }
            }
        });
    }

    /// The volumes that have to be attached for a pod. What cannot be resolved yet is left out:
    /// the change that resolves it brings the pod back here.
    pub(super) fn wanted_by(&self, pod: &Pod) -> Vec<AttachSpec> {
        let mut specs = Vec::new();
        for volume in &pod.spec.volumes {
            match self.resolve(pod, volume) {
                Ok(spec) if self.must_attach(&spec.driver) => specs.push(spec),
                Ok(_) => {}
                Err(why) => tracing::debug!(pod = %pod.metadata.key(), %why, "volume left out"),
            }
        }
        specs
    }

    fn resolve(&self, pod: &Pod, volume: &PodVolume) -> Result<AttachSpec, Unresolved> {
        let Some(name) = pod.claim_name(volume) else { return inline_attach_spec(pod, volume) };
        let key = ObjectKey::new(&pod.metadata.namespace, &name);
        let claim = self.claims.get(&key);
        let pv = bound_volume_name(pod, volume, &name, claim.as_deref())?;
        let volume = self.volumes.get(&ObjectKey::cluster(pv));
        attach_spec(claim.as_deref().unwrap_or(&Claim::default()), volume.as_deref())
    }

    /// What metrics call the plugins of a pod's volumes, those included that are not attached.
    pub(super) fn plugins_of(&self, pod: &Pod) -> Vec<String> {
        let plugin = |volume: &PodVolume| match &volume.csi {
            Some(inline) => Some(metrics_plugin(&inline.driver)),
            None => self.resolve(pod, volume).ok().map(|spec| spec.plugin()),
        };
        pod.spec.volumes.iter().filter_map(plugin).collect()
    }

    pub(super) fn must_attach(&self, driver: &str) -> bool {
        attach_required(self.drivers.get(&ObjectKey::cluster(driver)).as_deref())
    }

    fn forget_pod(&self, uid: &Uid) {
        self.state.change(|state| {
            for volume in state.desired.remove_pod(uid) {
                state.mark(&volume);
            }
        });
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        if let Change::Applied { new, .. } = change
            && new.status.phase == ClaimPhase::Bound
        {
            self.observe_pods_of(&new.metadata.key());
        }
    }

    /// Watches of two kinds are not ordered: a volume may be seen after its claim is bound.
    fn volume_changed(&self, change: &Change<Volume>) {
        if let Change::Applied { new, .. } = change
            && let Some(claim) = &new.spec.claim_ref
        {
            self.observe_pods_of(&ObjectKey::new(&claim.namespace, &claim.name));
        }
    }

    fn observe_pods_of(&self, claim: &ObjectKey) {
        for pod in pods_of_claim(&self.pods, claim) {
            self.observe_pod(&pod);
        }
    }

    fn driver_changed(&self, change: &Change<CsiDriver>) {
        let known = matches!(change, Change::Applied { old: Some(old), new }
            if old.attach_required() == new.attach_required());
        if !known && self.pods.is_synced() {
            // Later, once for all drivers that come together, as they do at start.
            self.populate_soon.notify_one();
            self.sweep_soon.notify_one();
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        match change {
            Change::Applied { old, new } => {
                let old = old.as_deref().filter(|old| old.metadata.uid == new.metadata.uid);
                self.observe_node(new, old.is_none());
                let same = |old: &Node| {
                    old.ready() == new.ready() && out_of_service(old) == out_of_service(new)
                };
                if !old.is_some_and(same) {
                    self.state.change(|state| mark_node(state, &new.name()));
                }
            }
            Change::Deleted { old } => {
                let name = &old.name();
                self.state.change(|state| {
                    // A node with desired volumes left is kept until they are gone.
                    let _ = state.desired.remove_node(name);
                    state.actual.set_in_use(name, in_use(old));
                    mark_node(state, name);
                });
            }
        }
    }

    /// Takes in a node's word. A fresh one may have wiped what was reported to it.
    pub(super) fn observe_node(&self, node: &Node, fresh: bool) {
        let name = &node.name();
        let managed = node.metadata.annotation(annotations::CONTROLLER_MANAGED_ATTACH).is_some();
        let newly_managed = self.state.change(|state| {
            if state.actual.set_in_use(name, in_use(node)) {
                mark_node(state, name);
            }
            if fresh && report_lost(state, node) {
                state.actual.rewrite_report(name);
            }
            let newly_managed = managed && !state.desired.manages(name);
            if managed {
                state.desired.add_node(name);
            }
            newly_managed
        });
        if newly_managed {
            for pod in pods_on_node(&self.pods, name) {
                self.observe_pod(&pod);
            }
        }
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        let attachment = change.object();
        self.notifiers.notify(&attachment.metadata.name);
        let settled = match change {
            Change::Applied { new, .. } => new.status.attached && !new.metadata.deleting(),
            Change::Deleted { .. } => true,
        };
        if !settled && !refused(attachment) {
            return;
        }
        if let Some(volume) = self.volume_of(attachment) {
            self.state.change(|state| {
                // What an earlier failure waited for has come: no need to sit out the pause. After a
                // refusal the node itself does, another one may have the volume.
                if settled {
                    state.pending.end_pauses(&volume);
                }
                state.mark(&volume);
            });
        }
    }

    fn volume_of(&self, attachment: &VolumeAttachment) -> Option<UniqueName> {
        let source = &attachment.spec.source;
        if let Some(inline) = &source.inline_volume_spec {
            let csi = inline.csi.as_ref()?;
            return Some(UniqueName::new(&csi.driver, &csi.volume_handle));
        }
        let pv = source.persistent_volume_name.as_deref()?;
        let volume = self.volumes.get(&ObjectKey::cluster(pv))?;
        Some(spec_of_volume(&volume).ok()?.unique_name())
    }

    /// Repairs desired state that events cannot repair; with `all`, also observes every pod again.
    pub(super) fn populate(&self, all: bool) {
        let desired = self.state.lock().desired.pods();
        for pod in desired {
            let seen = self.pods.get(&ObjectKey::new(&pod.namespace, &pod.name));
            let wants = seen.is_some_and(|seen| seen.metadata.uid == pod.uid && !terminated(&seen));
            if !wants {
                self.forget_pod(&pod.uid);
            }
        }
        let needless: Vec<UniqueName> = {
            let state = self.state.lock();
            let specs = state.desired.all().map(|(_, volume, wanted)| (volume, &wanted.spec));
            specs
                .filter(|(_, spec)| !self.must_attach(&spec.driver))
                .map(|(volume, _)| volume.clone())
                .collect()
        };
        self.state.change(|state| {
            for volume in needless {
                state.desired.remove_volume(&volume);
                state.mark(&volume);
            }
        });
        if all {
            for pod in self.pods.list() {
                self.observe_pod(&pod);
            }
        }
    }
}

fn in_use(node: &Node) -> BTreeSet<UniqueName> {
    node.status.volumes_in_use.iter().cloned().collect()
}

/// Whether the node's object lacks something that was reported to it.
fn report_lost(state: &Inner, node: &Node) -> bool {
    let name = &node.name();
    let listed: BTreeSet<&str> =
        node.status.volumes_attached.iter().map(|volume| volume.name.as_str()).collect();
    let lost = |volume: &UniqueName| {
        state.actual.is_reported(volume, name) && !listed.contains(volume.as_str())
    };
    state.actual.volumes_on(name).iter().any(lost)
}

/// Health, taints and use of a node matter for every volume on it.
fn mark_node(state: &mut Inner, node: &NodeName) {
    for volume in state.actual.volumes_on(node) {
        state.mark(&volume);
    }
}
