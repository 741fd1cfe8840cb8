//! Stage and publish.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_core::access_mode::only_one_pod;
use longshore_core::model::kinds::{Pod, VolumeAttachment};
use longshore_core::model::{ObjectKey, Uid};
use longshore_core::names::UniqueName;
use longshore_core::names::attachment_name;
use longshore_core::stage::paths::{VolData, publish_target, staging_target};
use longshore_core::stage::verdict::{Failure, Mounted, after_failure};
use longshore_core::stage::world::{Known, PodMount};
use longshore_csi::Client;
use longshore_csi::capabilities::NodeCapability;

use super::block::{MAP_DEVICE, MAP_POD};
use super::mounting::Mounting;
use super::{OpCause, OpError, Plugin, Use, VolumeFacts, VolumeManager, files};

pub(super) const STAGE: &str = "MountDevice";
pub(super) const PUBLISH: &str = "SetUp";
pub(super) const NODE_AFFINITY: &str = "NodeAffinity check";

impl VolumeManager {
    /// Stages the volume if it is not, then publishes it to the pod.
    pub(super) async fn mount(&self, unique: &UniqueName, uid: &Uid) -> Result<(), OpError> {
        let Some((facts, one, pod, attachable)) = self.mount_view(unique, uid) else {
            return Ok(());
        };
        self.check_node(&facts)?;
        self.check_other_pods(unique, uid, &facts)?;
        if facts.plugin != Plugin::Csi {
            return self.mount_in_tree(unique, uid, &facts, &one, &pod).await;
        }
        let step = self.first_step(unique, &facts);
        let mounting = self.prepare(step, facts, one, pod, attachable).await?;
        if !mounting.facts.inline {
            self.stage(unique, attachable, &mounting).await?;
        }
        let grows = self.needs_expansion(unique, &mounting);
        self.publish(unique, uid, &mounting, grows).await?;
        if grows { self.expand_after_mount(unique, uid, &mounting).await } else { Ok(()) }
    }

    /// The step that calls the driver first, as a kubelet names it.
    fn first_step(&self, unique: &UniqueName, facts: &VolumeFacts) -> &'static str {
        let state = self.state();
        let device = state.world.actual.get(unique).map(|known| known.device);
        let staged = facts.inline || device == Some(Mounted::Yes);
        match (facts.block, staged) {
            (false, false) => STAGE,
            (false, true) => PUBLISH,
            (true, false) => MAP_DEVICE,
            (true, true) => MAP_POD,
        }
    }

    /// Gathers what the driver's calls need; `step` is the one that fails if that is impossible.
    pub(super) async fn prepare(
        &self,
        step: &'static str,
        facts: VolumeFacts,
        one: Use,
        pod: Arc<Pod>,
        attachable: bool,
    ) -> Result<Mounting, OpError> {
        let publish_context = self.verified(&facts, attachable).await?;
        let client = self.client(step, &facts.driver)?;
        let capabilities = client.node_capabilities().await;
        let capabilities = capabilities.map_err(|error| OpError::call(step, error))?;
        let driver_object = self.deps.csi_drivers.get(&ObjectKey::cluster(&facts.driver));
        let label = one.label.clone();
        let staged_as = self.staged_as(&facts);
        Ok(Mounting {
            facts,
            one,
            pod,
            driver_object,
            client,
            capabilities,
            publish_context,
            label,
            staged_as,
        })
    }

    /// The name under which a volume is staged, or else will be.
    fn staged_as(&self, facts: &VolumeFacts) -> String {
        let unique = UniqueName::new(&facts.driver, &facts.handle);
        let state = self.state();
        let known = state.world.actual.get(&unique).filter(|known| known.device != Mounted::No);
        let staged = known.and_then(|_| state.volumes.get(&unique));
        staged.unwrap_or(facts).spec_name.clone()
    }

    pub(super) fn mount_view(
        &self,
        unique: &UniqueName,
        uid: &Uid,
    ) -> Option<(VolumeFacts, Use, Arc<Pod>, bool)> {
        let state = self.state();
        let pod = state.pods.get(uid)?;
        let one = pod.uses.as_ref()?.values().find(|one| one.unique == *unique)?.clone();
        let attachable = state.world.desired.get(unique)?.attachable;
        Some((state.facts(unique, Some(uid))?.clone(), one, pod.pod.clone(), attachable))
    }

    fn check_node(&self, facts: &VolumeFacts) -> Result<(), OpError> {
        let Some(volume) = &facts.volume else { return Ok(()) };
        let node = self.deps.node.get(&ObjectKey::cluster(&self.deps.node_name));
        let labels = node.map(|node| node.metadata.labels.clone()).unwrap_or_default();
        if volume.reachable_from(&self.deps.node_name, &labels) {
            return Ok(());
        }
        let text = format!(
            "no matching NodeSelectorTerms: volume cannot be reached from node {}",
            self.deps.node_name
        );
        Err(OpError::new(NODE_AFFINITY, Failure::Transient, text))
    }

    fn check_other_pods(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        facts: &VolumeFacts,
    ) -> Result<(), OpError> {
        let single =
            facts.volume.as_ref().is_some_and(|volume| only_one_pod(&volume.spec.access_modes));
        if single && self.state().world.used_by_other_pod(unique, uid) {
            let text =
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            let step = if facts.block { MAP_DEVICE } else { PUBLISH };
            return Err(OpError::new(step, Failure::Transient, text));
        }
        Ok(())
    }

    /// That the volume may be used here, as far as attaching goes, and its publish context.
    async fn verified(
        &self,
        facts: &VolumeFacts,
        attachable: bool,
    ) -> Result<BTreeMap<String, String>, OpError> {
        let began = tokio::time::Instant::now();
        let context = if attachable { self.attachment(facts).await } else { Ok(BTreeMap::new()) };
        if !facts.inline {
            let part = "verify_controller_attached_volume";
            self.measured_part(facts, part, began.elapsed(), context.is_ok());
        }
        context
    }

    /// The attachment's publish context; it must be there now, whatever the node object said.
    async fn attachment(&self, facts: &VolumeFacts) -> Result<BTreeMap<String, String>, OpError> {
        let step = "WaitForAttach";
        let name = attachment_name(&facts.handle, &facts.driver, &self.deps.node_name);
        let found = self.deps.api.get::<VolumeAttachment>(&ObjectKey::cluster(&name)).await;
        let found = found.map_err(|error| OpError::new(step, Failure::Transient, error))?;
        let problem = match &found {
            None => format!("volumeattachments.storage.k8s.io \"{name}\" not found"),
            Some(one) if one.metadata.deleting() => {
                format!("volume attachment {name} is being deleted")
            }
            Some(one) if !one.status.attached => {
                format!("volume attachment {name} is not attached yet")
            }
            Some(one) => return Ok(one.status.attachment_metadata.clone().into_iter().collect()),
        };
        Err(OpError::new(step, Failure::Transient, problem))
    }

    async fn stage(
        &self,
        unique: &UniqueName,
        attachable: bool,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        let before = {
            let mut state = self.state();
            let known = state.world.actual.entry(unique.to_owned()).or_default();
            known.attachable = attachable;
            known.context.clone_from(&mounting.label);
            let before = (known.device, known.reconstructed);
            if before.0 == Mounted::No {
                // From here on the volume is staged under this name.
                state.volumes.insert(unique.to_owned(), mounting.facts.clone());
            }
            before
        };
        if before.0 == Mounted::Yes {
            return Ok(());
        }
        let staging = mounting.capabilities.has(NodeCapability::StageUnstageVolume);
        let result = match mounting.facts.block {
            true => self.try_stage_block(unique, mounting, staging).await,
            false => self.try_stage(unique, mounting, staging).await,
        };
        self.change(unique, |known| match &result {
            Ok(()) => (known.device, known.reconstructed) = (Mounted::Yes, false),
            Err(error) => known.device = after_failure(before.0, error.failure, before.1),
        });
        result
    }

    async fn try_stage(
        &self,
        unique: &UniqueName,
        mounting: &Mounting,
        staging: bool,
    ) -> Result<(), OpError> {
        let Mounting { facts, client, .. } = mounting;
        let local = |error: std::io::Error| OpError::new(STAGE, Failure::Transient, error);
        let dir = self.deps.paths.staging(&facts.driver, &facts.handle);
        let dir = dir.map_err(|error| OpError::new(STAGE, Failure::Transient, error))?;
        let target = staging_target(&dir);
        if !staging {
            return files::make_dir(&target).map_err(local);
        }
        let request = mounting.stage_request(self, STAGE, &target).await?;
        files::make_dir(&target).map_err(local)?;
        let data = VolData::staged(&facts.driver, &facts.handle).with_context(&mounting.label);
        files::write_vol_data(&dir, &data).map_err(local)?;
        self.deps.faults.at("stage.recorded");
        // From here on the driver may have done it, whatever becomes of this task.
        self.change(unique, |known| known.device = known.device.max(Mounted::Unknown));
        let response = client.node_stage_volume(request).await;
        self.deps.faults.at("stage.answered");
        let Err(error) = response else { return Ok(()) };
        let error = OpError::call(STAGE, error);
        if error.failure == Failure::Final && !self.is_reconstructed(unique) {
            files::clean(&target).map_err(local)?;
        }
        Err(error)
    }

    /// Whether a volume was found on disk and has not been confirmed since.
    pub(super) fn is_reconstructed(&self, unique: &UniqueName) -> bool {
        self.state().world.actual.get(unique).is_some_and(|known| known.reconstructed)
    }

    /// `grows`: the pod must not start yet, the volume has to grow first.
    async fn publish(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        mounting: &Mounting,
        grows: bool,
    ) -> Result<(), OpError> {
        let before = {
            let mut state = self.state();
            let known = state.world.actual.entry(unique.to_owned()).or_default();
            known.pods.get(uid).copied().unwrap_or_default()
        };
        let result = match mounting.facts.block {
            true => self.try_publish_block(unique, uid, mounting).await,
            false => self.try_publish(unique, uid, before, mounting).await,
        };
        let done = if grows { Mounted::Unknown } else { Mounted::Yes };
        self.change(unique, |known| match &result {
            Ok(()) => {
                known.pods.insert(uid.to_owned(), PodMount { state: done, ..PodMount::default() });
            }
            Err(error) => match after_failure(before.state, error.failure, before.reconstructed) {
                Mounted::No => drop(known.pods.remove(uid)),
                state => drop(known.pods.insert(uid.to_owned(), PodMount { state, ..before })),
            },
        });
        result
    }

    async fn try_publish(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        before: PodMount,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        let local = |error: std::io::Error| OpError::new(PUBLISH, Failure::Transient, error);
        let facts = &mounting.facts;
        mounting.check_lifecycle()?;
        let dir = self.deps.paths.publish(uid, &facts.spec_name);
        let staging = self.staging_for_publish(mounting)?;
        let target = publish_target(&dir);
        let request = mounting.publish_request(self, PUBLISH, &target, staging.as_deref()).await?;
        files::make_dir(&dir).map_err(local)?;
        let node = &self.deps.node_name;
        let data =
            VolData::published(&facts.driver, &facts.handle, &facts.spec_name, node, facts.inline);
        let data = data.with_context(&mounting.label);
        files::write_vol_data(&dir, &data).map_err(local)?;
        self.begin_publish(unique, uid);
        self.deps.faults.at("publish.recorded");
        let response = mounting.client.node_publish_volume(request).await;
        self.deps.faults.at("publish.answered");
        if let Err(error) = response {
            let error = OpError::call(PUBLISH, error);
            // What the pod may be using, now or before a crash, is not taken from it by a "no".
            let may_be_used = before.reconstructed || before.state == Mounted::Yes;
            if error.failure == Failure::Final && !may_be_used {
                files::clean(&target).map_err(local)?;
            }
            return Err(error);
        }
        mounting.apply_group(self, &target).await
    }

    /// The staging path, for drivers that stage.
    fn staging_for_publish(&self, mounting: &Mounting) -> Result<Option<PathBuf>, OpError> {
        let Mounting { facts, capabilities, .. } = mounting;
        if facts.inline || !capabilities.has(NodeCapability::StageUnstageVolume) {
            return Ok(None);
        }
        let staging = self.deps.paths.staging(&facts.driver, &facts.handle);
        let staging = staging.map_err(|error| OpError::new(PUBLISH, Failure::Transient, error))?;
        Ok(Some(staging_target(&staging)))
    }

    /// From here on the volume may be mounted for the pod, whatever becomes of the call.
    pub(super) fn begin_publish(&self, unique: &UniqueName, uid: &Uid) {
        self.change(unique, |known| {
            let mount = known.pods.entry(uid.to_owned()).or_default();
            mount.state = mount.state.max(Mounted::Unknown);
        });
    }

    /// The client of a registered driver.
    pub(super) fn client(&self, step: &'static str, driver: &str) -> Result<Client, OpError> {
        let not_registered = || OpCause::NotRegistered(driver.to_owned());
        let client = self.deps.drivers.client(driver).ok_or_else(not_registered);
        client.map_err(|cause| OpError::new(step, Failure::Transient, cause))
    }

    pub(super) fn change(&self, unique: &UniqueName, change: impl FnOnce(&mut Known)) {
        change(self.state().world.actual.entry(unique.to_owned()).or_default());
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
