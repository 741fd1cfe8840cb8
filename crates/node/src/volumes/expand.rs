//! NodeExpandVolume: with a mount, and under a running pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use longshore_cluster::{EventType, Outcome, Patch, clock};
use longshore_core::model::keys::annotations;
use longshore_core::model::kinds::{Claim, Pod, Volume};
use longshore_core::model::{AccessMode, ObjectKey, ObjectRef, Quantity, Uid};
use longshore_core::names::UniqueName;
use longshore_core::resize::conditions;
use longshore_core::stage::expand::{Record, Refused, Step, View, classify, decide, status_after};
use longshore_core::stage::paths::staging_target;
use longshore_core::stage::verdict::{Failure, Mounted};
use longshore_core::stage::world::Known;
use longshore_csi::capabilities::NodeCapability;
use longshore_csi::{CsiError, v1};
use serde_json::{Value, json};

use super::mount::text;
use super::mounting::Mounting;
use super::{OpCause, OpError, State, VolumeManager};

/// The step of an expansion that is part of a mount.
pub(super) const EXPAND_IN_MOUNT: &str = "Setup failed while expanding volume";
/// The step of an expansion under a running pod.
pub(super) const EXPAND: &str = "NodeExpandVolume";

impl VolumeManager {
    /// Whether a claim waits for its node to expand the volume.
    pub(super) fn waits_for_node(&self, claim: &Claim) -> bool {
        let status = claim.status.allocated_resource_statuses.get("storage");
        let pending =
            claim.status.conditions.iter().any(|one| one.kind == "FileSystemResizePending");
        (pending || status.is_some_and(|status| status.starts_with("Node")))
            && !self.volumes_of_claim(&claim.metadata.key()).is_empty()
    }

    /// Volumes that pods of this node use through a claim.
    fn volumes_of_claim(&self, key: &ObjectKey) -> BTreeSet<UniqueName> {
        let state = self.state();
        let uses = state.pods.values().filter_map(|pod| pod.uses.as_ref());
        let of_claim =
            uses.flat_map(|uses| uses.values()).filter(|one| one.claim.as_ref() == Some(key));
        of_claim.map(|one| one.unique.clone()).collect()
    }

    /// Reads the size of the volume of a claim that waits for its node.
    pub(super) async fn read_size(&self, key: &ObjectKey) -> Outcome {
        let Some(claim) = self.deps.claims.get(key) else { return Outcome::Done };
        let name = ObjectKey::cluster(&claim.spec.volume_name);
        let volume = match self.deps.api.get::<Volume>(&name).await {
            Ok(Some(volume)) => Arc::new(volume),
            Ok(None) => return Outcome::Done,
            Err(error) => return Outcome::retry(error),
        };
        let size = volume.capacity().bytes();
        for unique in self.volumes_of_claim(key) {
            let mut state = self.state();
            if let Some(wanted) = state.world.desired.get_mut(&unique) {
                wanted.size = wanted.size.max(size);
            }
            if let Some(known) = state.world.actual.get_mut(&unique) {
                known.hold_size = false;
            }
            let State { volumes, mounts, .. } = &mut *state;
            let of_pods = mounts.get_mut(&unique).into_iter().flat_map(BTreeMap::values_mut);
            for facts in volumes.get_mut(&unique).into_iter().chain(of_pods) {
                if facts.spec_name == volume.metadata.name {
                    facts.volume = Some(volume.clone());
                }
            }
        }
        self.notify();
        Outcome::Done
    }

    /// Whether a volume is larger than its claim, so that a mount has to bring the size along.
    pub(super) fn needs_expansion(&self, unique: &UniqueName, mounting: &Mounting) -> bool {
        let mut state = self.state();
        // The volume itself, because a pod that only reads does not ask for a size; it is told why
        // it does not see it.
        let volume = mounting.facts.volume.as_ref().map_or(0, |volume| volume.capacity().bytes());
        let wanted = state.world.desired.get(unique).map_or(0, |wanted| wanted.size).max(volume);
        let known = state.world.actual.entry(unique.to_owned()).or_default();
        if known.size == 0 {
            known.size = mounting.one.claim_size;
        }
        !known.no_expand && known.size > 0 && wanted > known.size
    }

    /// The pod must not start before its filesystem has the size.
    pub(super) async fn expand_after_mount(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        self.expand_volume(unique, EXPAND_IN_MOUNT, mounting).await?;
        self.change(unique, |known| {
            if let Some(mount) = known.pods.get_mut(uid) {
                mount.state = Mounted::Yes;
            }
        });
        Ok(())
    }

    /// Expands a volume under a running pod.
    pub(super) async fn expand(&self, unique: &UniqueName, uid: &Uid) -> Result<(), OpError> {
        let writer = self.writer_of(unique);
        let uid = writer.as_ref().unwrap_or(uid);
        let Some((facts, one, pod, attachable)) = self.mount_view(unique, uid) else {
            return Ok(());
        };
        let mounting = self.prepare(EXPAND, facts, one, pod, attachable).await?;
        self.expand_volume(unique, EXPAND, &mounting).await
    }

    /// A pod that has the volume and may write to it: one that only reads cannot let it grow.
    fn writer_of(&self, unique: &UniqueName) -> Option<Uid> {
        let state = self.state();
        let known = state.world.actual.get(unique)?;
        let writes = |uid: &Uid| {
            let uses = state.pods.get(uid).and_then(|pod| pod.uses.as_ref());
            let mut uses = uses.into_iter().flat_map(|uses| uses.values());
            uses.any(|one| one.unique == *unique && !one.read_only)
        };
        let mounted = known.pods.iter().filter(|(_, mount)| mount.state == Mounted::Yes);
        mounted.map(|(uid, _)| uid).find(|uid| writes(uid)).cloned()
    }

    async fn expand_volume(
        &self,
        unique: &UniqueName,
        step: &'static str,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        let Some(key) = &mounting.one.claim else {
            self.change(unique, |known| known.no_expand = true);
            return Ok(());
        };
        let transient = |cause: OpCause| OpError::new(step, Failure::Transient, cause);
        let claim =
            self.deps.api.get::<Claim>(key).await.map_err(|error| transient(error.into()))?;
        let claim = claim.ok_or_else(|| transient(format!("claim {key} not found").into()))?;
        let key = ObjectKey::cluster(&claim.spec.volume_name);
        let volume = self.deps.api.get::<Volume>(&key).await;
        let volume = volume.map_err(|error| transient(error.into()))?;
        let volume = volume.ok_or_else(|| transient(format!("volume {key} not found").into()))?;
        Expansion { manager: self, unique, step, mounting, claim: &claim }.run(&volume).await
    }
}

/// The expansion of a volume for one of its pods.
struct Expansion<'a> {
    manager: &'a VolumeManager,
    unique: &'a UniqueName,
    step: &'static str,
    mounting: &'a Mounting,
    claim: &'a Claim,
}

impl Expansion<'_> {
    fn change(&self, change: impl FnOnce(&mut Known)) {
        self.manager.change(self.unique, change);
    }

    fn transient(&self, cause: impl Into<OpCause>) -> OpError {
        OpError::new(self.step, Failure::Transient, cause)
    }

    async fn run(&self, volume: &Volume) -> Result<(), OpError> {
        let Self { mounting, claim, .. } = self;
        let status = claim.status.allocated_resource_statuses.get("storage");
        let bytes = |amount: &Quantity| amount.bytes();
        let view = View {
            volume_size: volume.capacity().bytes(),
            claim_size: claim.status.capacity.get("storage").map_or(0, bytes),
            allocated: claim.status.allocated_resources.get("storage").map(bytes),
            status: status.map(String::as_str).unwrap_or_default(),
            many_writers: claim.spec.access_modes.contains(&AccessMode::ReadWriteMany),
            not_required: claim
                .metadata
                .annotation(annotations::NODE_EXPANSION_NOT_REQUIRED)
                .is_some(),
            read_only: mounting.one.read_only,
            driver_can: mounting.capabilities.has(NodeCapability::ExpandVolume),
        };
        match decide(&view) {
            Step::Done(size) => self.change(|known| known.size = size),
            Step::Later => self.change(|known| known.hold_size = true),
            Step::ReadOnly(size) => {
                let text = format!(
                    "MountVolume.NodeExpandVolume failed for volume \"{}\" requested read-only file system",
                    mounting.facts.spec_name
                );
                self.record_event(EventType::Warning, "FileSystemResizeFailed", &text);
                // With a mount nothing has grown: a pod that writes may come yet.
                if self.step == EXPAND {
                    self.change(|known| known.size = size);
                }
            }
            Step::Unsupported => {
                let driver = &mounting.facts.driver;
                let text = format!("NodeExpand is not supported by the CSI driver {driver}");
                self.write_status("NodeResizeInProgress", Some(&text)).await?;
                return Err(OpError::new(self.step, Failure::Final, text));
            }
            Step::Call { bytes, record } => return self.call(bytes, record).await,
        }
        Ok(())
    }

    async fn call(&self, bytes: i64, record: Record) -> Result<(), OpError> {
        if record == Record::Steps {
            self.write_status("NodeResizeInProgress", None).await?;
        }
        let faults = &self.manager.deps.faults;
        faults.at("expand.recorded");
        let request = self.request(bytes).await?;
        if let Err(error) = self.mounting.client.node_expand_volume(request).await {
            return self.refused(record, &error).await;
        }
        faults.at("expand.answered");
        if record != Record::Nothing {
            self.write_size(bytes).await?;
        }
        faults.at("expand.claim-written");
        let text = format!(
            "MountVolume.NodeExpandVolume succeeded for volume \"{}\" {}",
            self.mounting.facts.spec_name, self.manager.deps.node_name
        );
        self.record_event(EventType::Normal, "FileSystemResizeSuccessful", &text);
        self.change(|known| known.size = bytes);
        Ok(())
    }

    async fn request(&self, bytes: i64) -> Result<v1::NodeExpandVolumeRequest, OpError> {
        let Self { manager, step, mounting, .. } = *self;
        let (facts, paths) = (&mounting.facts, &manager.deps.paths);
        let csi = facts.volume.as_ref().and_then(|volume| volume.spec.csi.as_ref());
        let secret = csi.and_then(|csi| csi.node_expand_secret_ref.as_ref());
        let staging = match facts.block {
            true => paths.block(&mounting.staged_as).staging,
            false => {
                let dir = paths.staging(&facts.driver, &facts.handle);
                staging_target(&dir.map_err(|error| self.transient(error))?)
            }
        };
        // A kubelet sends it whether or not the driver stages, but for a device that is just being
        // mapped.
        let stages = mounting.capabilities.has(NodeCapability::StageUnstageVolume);
        let sent = stages || !facts.block || step == EXPAND;
        Ok(v1::NodeExpandVolumeRequest {
            volume_id: facts.handle.to_string(),
            volume_path: text(&mounting.one.path),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: if sent { text(&staging) } else { String::new() },
            volume_capability: Some(mounting.plain_capability(step)?),
            secrets: manager.secrets(step, secret, None).await?,
        })
    }

    async fn refused(&self, record: Record, error: &CsiError) -> Result<(), OpError> {
        let said = error.to_string();
        let refused = classify(error.code() as i32);
        if record == Record::Steps {
            let allocated = self.claim.status.allocated_resources.get("storage");
            let edited = allocated.is_some_and(|allocated| *allocated != self.claim.request());
            let mut again = false;
            self.change(|known| again = std::mem::replace(&mut known.refused_size, true));
            let status = status_after(refused, edited && again);
            self.write_status(status, Some(&said)).await?;
            if status == "NodeResizeInfeasible" {
                // The next change of the claim tries again.
                self.change(|known| known.hold_size = true);
            }
        }
        if refused == Refused::InUse {
            // Not while it is in use: the next attachment tries again, and the mount is good.
            self.change(|known| known.no_expand = true);
            let volume = self.unique.as_str();
            tracing::warn!(volume, error = said, "cannot expand the volume while it is in use");
            let text = format!(
                "NodeExpandVolume failed for volume \"{}\" and is called again when a pod starts: {said}",
                self.mounting.facts.spec_name
            );
            self.record_event(EventType::Warning, "FileSystemResizeFailed", &text);
            return Ok(());
        }
        let head = "Expander.NodeExpand failed to expand the volume";
        let colon = if refused == Refused::Infeasible { "" } else { ": " };
        Err(OpError::new(self.step, Failure::Final, format!("{head} {colon}{said}")))
    }

    async fn write_status(&self, status: &str, trouble: Option<&str>) -> Result<(), OpError> {
        let mut patch = json!({"metadata": {"uid": self.claim.metadata.uid},
            "status": {"allocatedResourceStatuses": {"storage": status}}});
        if let Some(text) = trouble {
            let mut all = self.conditions_without(&["NodeResizeError"]).await?;
            all.push(json!({"type": "NodeResizeError", "status": "True", "message": text,
                "lastTransitionTime": clock::seconds(clock::now())}));
            patch["status"]["conditions"] = all.into();
        }
        self.patch_claim(&patch).await
    }

    async fn write_size(&self, bytes: i64) -> Result<(), OpError> {
        let conditions = self.conditions_without(&conditions::OF_RESIZE).await?;
        let size = Quantity::from_bytes(bytes).to_string();
        let patch = json!({"metadata": {"uid": self.claim.metadata.uid}, "status": {
            "capacity": {"storage": size}, "allocatedResourceStatuses": null, "conditions": conditions}});
        self.patch_claim(&patch).await
    }

    async fn conditions_without(&self, kinds: &[&str]) -> Result<Vec<Value>, OpError> {
        let raw = self.manager.deps.api.get_raw::<Claim>(&self.claim.metadata.key()).await;
        let raw = raw.map_err(|error| self.transient(error))?.unwrap_or_default();
        let all = raw["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let kept = |one: &Value| !kinds.iter().any(|kind| one["type"] == *kind);
        Ok(all.into_iter().filter(kept).collect())
    }

    async fn patch_claim(&self, patch: &Value) -> Result<(), OpError> {
        let (api, key) = (&self.manager.deps.api, self.claim.metadata.key());
        let written = api.patch_status::<Claim>(&key, Patch::Merge(patch)).await;
        written.map(drop).map_err(|error| self.transient(error))
    }

    fn record_event(&self, kind: EventType, reason: &str, text: &str) {
        let pod = ObjectRef::of::<Pod>(&self.mounting.pod.metadata);
        for about in [pod, ObjectRef::of::<Claim>(&self.claim.metadata)] {
            self.manager.deps.recorder.event(&about, kind, reason, text);
        }
    }
}
