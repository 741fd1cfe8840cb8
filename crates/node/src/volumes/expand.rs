//! NodeExpandVolume: with a mount, and under a running pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use longshore_cluster::{EventType, Outcome, Patch, clock};
use longshore_core::model::kinds::{Claim, Pod, Volume};
use longshore_core::model::{AccessMode, ObjectKey, ObjectRef, Quantity, Uid};
use longshore_core::names::UniqueName;
use longshore_core::stage::expand::{Record, Refused, Step, View, classify, decide, status_after};
use longshore_core::stage::paths::staging_target;
use longshore_core::stage::verdict::{Failure, Mounted};
use longshore_csi::capabilities::NodeCapability;
use longshore_csi::{CsiError, v1};
use serde_json::{Value, json};

use super::mount::text;
use super::mounting::Mounting;
use super::{OpError, VolumeManager};

/// The step of an expansion that is part of a mount.
pub(super) const EXPAND_IN_MOUNT: &str = "Setup failed while expanding volume";
/// The step of an expansion under a running pod.
pub(super) const EXPAND: &str = "NodeExpandVolume";
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// Conditions of the claim that are removed after an expansion.
const RESIZE_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "NodeResizeError", "ControllerResizeError"];

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
            if let Some(facts) = state.volumes.get_mut(&unique) {
                facts.volume = Some(volume.clone());
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
        let mounting = self.prepare(facts, one, pod, attachable).await?;
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
        let transient =
            |error: longshore_cluster::ApiError| OpError::new(step, Failure::Transient, error);
        let Some(key) = &mounting.one.claim else {
            self.change(unique, |known| known.no_expand = true);
            return Ok(());
        };
        let Some(claim) = self.deps.api.get::<Claim>(key).await.map_err(transient)? else {
            return Err(OpError::new(step, Failure::Transient, format!("claim {key} not found")));
        };
        let volume = ObjectKey::cluster(&claim.spec.volume_name);
        let Some(volume) = self.deps.api.get::<Volume>(&volume).await.map_err(transient)? else {
            return Err(OpError::new(
                step,
                Failure::Transient,
                format!("volume {volume} not found"),
            ));
        };
        let status = claim.status.allocated_resource_statuses.get("storage");
        let bytes = |amount: &Quantity| amount.bytes();
        let view = View {
            volume_size: volume.capacity().bytes(),
            claim_size: claim.status.capacity.get("storage").map_or(0, bytes),
            allocated: claim.status.allocated_resources.get("storage").map(bytes),
            status: status.map(String::as_str).unwrap_or_default(),
            many_writers: claim
                .spec
                .access_modes
                .iter()
                .any(|mode| *mode == AccessMode::ReadWriteMany),
            not_required: claim.metadata.annotation(NOT_REQUIRED).is_some(),
            read_only: mounting.one.read_only,
            driver_can: mounting.capabilities.has(NodeCapability::ExpandVolume),
        };
        match decide(&view) {
            Step::Done(size) => self.change(unique, |known| known.size = size),
            Step::Later => self.change(unique, |known| known.hold_size = true),
            Step::ReadOnly(size) => {
                let text = format!(
                    "MountVolume.NodeExpandVolume failed for volume \"{}\" requested read-only file system",
                    mounting.facts.spec_name
                );
                self.record_event(
                    mounting,
                    &claim,
                    EventType::Warning,
                    "FileSystemResizeFailed",
                    &text,
                );
                // With a mount nothing has grown: a pod that writes may come yet.
                if step == EXPAND {
                    self.change(unique, |known| known.size = size);
                }
            }
            Step::Unsupported => {
                let driver = &mounting.facts.driver;
                let text = format!("NodeExpand is not supported by the CSI driver {driver}");
                self.write_status(step, &claim, "NodeResizeInProgress", Some(&text)).await?;
                return Err(OpError::new(step, Failure::Final, text));
            }
            Step::Call { bytes, record } => {
                return self.call_expand(unique, step, mounting, &claim, bytes, record).await;
            }
        }
        Ok(())
    }

    async fn call_expand(
        &self,
        unique: &UniqueName,
        step: &'static str,
        mounting: &Mounting,
        claim: &Claim,
        bytes: i64,
        record: Record,
    ) -> Result<(), OpError> {
        if record == Record::Steps {
            self.write_status(step, claim, "NodeResizeInProgress", None).await?;
        }
        let request = self.expand_request(step, mounting, bytes).await?;
        if let Err(error) = mounting.client.node_expand_volume(request).await {
            return self.expand_refused(unique, step, claim, record, &error).await;
        }
        if record != Record::Nothing {
            self.write_size(step, claim, bytes).await?;
        }
        let volume = &mounting.facts.spec_name;
        let text = format!(
            "MountVolume.NodeExpandVolume succeeded for volume \"{volume}\" {}",
            self.deps.node_name
        );
        self.record_event(mounting, claim, EventType::Normal, "FileSystemResizeSuccessful", &text);
        self.change(unique, |known| known.size = bytes);
        Ok(())
    }

    async fn expand_request(
        &self,
        step: &'static str,
        mounting: &Mounting,
        bytes: i64,
    ) -> Result<v1::NodeExpandVolumeRequest, OpError> {
        let facts = &mounting.facts;
        let csi = facts.volume.as_ref().and_then(|volume| volume.spec.csi.as_ref());
        let secret = csi.and_then(|csi| csi.node_expand_secret_ref.as_ref());
        let staging = match facts.block {
            true => self.deps.paths.block(&facts.spec_name).staging,
            false => {
                let dir = self.deps.paths.staging(&facts.driver, &facts.handle);
                staging_target(&dir.map_err(|error| OpError::new(step, Failure::Transient, error))?)
            }
        };
        // A kubelet sends it whether or not the driver stages, but for a device that is just being
        // mapped.
        let stages = mounting.capabilities.has(NodeCapability::StageUnstageVolume);
        let sent = stages || !facts.block || step == EXPAND;
        Ok(v1::NodeExpandVolumeRequest {
            volume_id: facts.handle.clone(),
            volume_path: text(&mounting.one.path),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: if sent { text(&staging) } else { String::new() },
            volume_capability: Some(mounting.plain_capability(step)?),
            secrets: self.secrets(step, secret, None).await?,
        })
    }

    async fn expand_refused(
        &self,
        unique: &UniqueName,
        step: &'static str,
        claim: &Claim,
        record: Record,
        error: &CsiError,
    ) -> Result<(), OpError> {
        let said = longshore_csi::status_text(error.status());
        let refused = classify(error.code() as i32);
        if record == Record::Steps {
            let allocated = claim.status.allocated_resources.get("storage");
            let edited = allocated.is_some_and(|allocated| *allocated != claim.request());
            let mut again = false;
            self.change(unique, |known| again = std::mem::replace(&mut known.refused_size, true));
            let status = status_after(refused, edited && again);
            self.write_status(step, claim, status, Some(&said)).await?;
            if status == "NodeResizeInfeasible" {
                // The next change of the claim tries again.
                self.change(unique, |known| known.hold_size = true);
            }
        }
        if refused == Refused::InUse {
            // Not while it is in use: the next attachment tries again, and the mount is good.
            self.change(unique, |known| known.no_expand = true);
            tracing::warn!(volume = unique.as_str(), error = said, "cannot grow while in use");
            return Ok(());
        }
        let head = "Expander.NodeExpand failed to expand the volume";
        let colon = if refused == Refused::Infeasible { "" } else { ": " };
        Err(OpError::new(step, Failure::Final, format!("{head} {colon}{said}")))
    }

    async fn write_status(
        &self,
        step: &'static str,
        claim: &Claim,
        status: &str,
        trouble: Option<&str>,
    ) -> Result<(), OpError> {
        let mut patch = json!({"metadata": {"uid": claim.metadata.uid},
            "status": {"allocatedResourceStatuses": {"storage": status}}});
        if let Some(text) = trouble {
            let raw = self.raw_conditions(step, claim).await?;
            let mut all: Vec<Value> =
                raw.into_iter().filter(|one| one["type"] != "NodeResizeError").collect();
            all.push(json!({"type": "NodeResizeError", "status": "True", "message": text,
                "lastTransitionTime": clock::seconds(clock::now())}));
            patch["status"]["conditions"] = all.into();
        }
        self.patch_claim(step, claim, &patch).await
    }

    async fn write_size(
        &self,
        step: &'static str,
        claim: &Claim,
        bytes: i64,
    ) -> Result<(), OpError> {
        let raw = self.raw_conditions(step, claim).await?;
        let kept = |one: &Value| !RESIZE_CONDITIONS.iter().any(|kind| one["type"] == *kind);
        let conditions: Vec<Value> = raw.into_iter().filter(kept).collect();
        let size = Quantity::from_bytes(bytes).to_string();
        let patch = json!({"metadata": {"uid": claim.metadata.uid}, "status": {
            "capacity": {"storage": size}, "allocatedResourceStatuses": null, "conditions": conditions}});
        self.patch_claim(step, claim, &patch).await
    }

    async fn raw_conditions(
        &self,
        step: &'static str,
        claim: &Claim,
    ) -> Result<Vec<Value>, OpError> {
        let raw = self.deps.api.get_raw::<Claim>(&claim.metadata.key()).await;
        let raw = raw.map_err(|error| OpError::new(step, Failure::Transient, error))?;
        let raw = raw.unwrap_or_default();
        Ok(raw["status"]["conditions"].as_array().cloned().unwrap_or_default())
    }

    async fn patch_claim(
        &self,
        step: &'static str,
        claim: &Claim,
        patch: &Value,
    ) -> Result<(), OpError> {
        let key = claim.metadata.key();
        let written = self.deps.api.patch_status::<Claim>(&key, Patch::Merge(patch)).await;
        written.map(drop).map_err(|error| OpError::new(step, Failure::Transient, error))
    }

    fn record_event(
        &self,
        mounting: &Mounting,
        claim: &Claim,
        kind: EventType,
        reason: &str,
        text: &str,
    ) {
        let pod = ObjectRef::of::<Pod>(&mounting.pod.metadata);
        for about in [pod, ObjectRef::of::<Claim>(&claim.metadata)] {
            self.deps.recorder.event(&about, kind, reason, text);
        }
    }
}
