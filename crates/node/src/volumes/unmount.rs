//! Unpublish and unstage.

use std::io;
use std::path::Path;

use longshore_core::model::{DriverName, Uid, VolumeHandle};
use longshore_core::names::UniqueName;
use longshore_core::stage::forgotten::{self, Belief};
use longshore_core::stage::paths::{VolData, publish_target, staging_target};
use longshore_core::stage::verdict::{Failure, Mounted};
use longshore_core::stage::world::Action;
use longshore_csi::{Client, v1};
use longshore_files::mounts::MountTable;

use super::mount::text;
use super::{OpCause, OpError, Plugin, VolumeFacts, VolumeManager, files, sub_path};

pub(super) const TEAR_DOWN: &str = "TearDown";
pub(super) const UNMOUNT_DEVICE: &str = "UnmountDevice";

impl VolumeManager {
    /// Takes the mount away from a pod. The driver and id come from disk, the only place that
    /// knows what was really published.
    pub(super) async fn unpublish(&self, unique: &UniqueName, uid: &Uid) -> Result<(), OpError> {
        let known = self.state().facts(unique, Some(uid)).cloned();
        if let Some(facts) = known.as_ref().filter(|facts| facts.plugin != Plugin::Csi) {
            return self.unmount_in_tree(unique, uid, facts).await;
        }
        if let Some(facts) = known.as_ref().filter(|facts| facts.block) {
            return self.unpublish_block(unique, uid, facts).await;
        }
        let spec_name = known.as_ref().map(|facts| facts.spec_name.clone()).unwrap_or_default();
        let dir = self.deps.paths.publish(uid, &spec_name);
        let local = |error: io::Error| OpError::new(TEAR_DOWN, Failure::Uncertain, error);
        let target = publish_target(&dir);
        sub_path::remove(&self.deps.paths, uid, &spec_name).map_err(local)?;
        let data = files::read_vol_data(&dir).map_err(local)?;
        let data =
            data.or_else(|| known.map(|facts| VolData::staged(&facts.driver, &facts.handle)));
        if let Some(data) = data.filter(|_| dir.exists()) {
            self.mark_pod_unknown(unique, uid);
            self.deps.faults.at("unpublish.begun");
            let (driver, handle) = data.volume().ok_or_else(|| {
                let text = "vol_data.json names no driver or handle";
                OpError::new(TEAR_DOWN, Failure::Uncertain, text)
            })?;
            let action = Action::Unpublish { volume: unique.clone(), pod: uid.clone() };
            self.call_unpublish(action, &driver, &handle, &target).await?;
            self.deps.faults.at("unpublish.answered");
            files::clean_forgotten(&target).map_err(local)?;
            self.deps.faults.at("unpublish.cleaned");
        }
        self.forget_pod(unique, uid);
        Ok(())
    }

    /// Nothing of the volume is mounted for the pod any more.
    pub(super) fn forget_pod(&self, unique: &UniqueName, uid: &Uid) {
        if let Some(known) = self.state().world.actual.get_mut(unique) {
            known.pods.remove(uid);
        }
    }

    pub(super) fn mark_pod_unknown(&self, unique: &UniqueName, uid: &Uid) {
        let mut state = self.state();
        let mount = state.world.actual.get_mut(unique).and_then(|known| known.pods.get_mut(uid));
        if let Some(mount) = mount {
            mount.state = Mounted::Unknown;
        }
    }

    /// Calls NodeUnpublishVolume. What is left of a volume that its driver does not know any more is
    /// unmounted here.
    pub(super) async fn call_unpublish(
        &self,
        action: Action,
        driver: &DriverName,
        handle: &VolumeHandle,
        target: &Path,
    ) -> Result<(), OpError> {
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: handle.to_string(),
            target_path: text(target),
        };
        let client = self.client(TEAR_DOWN, driver)?;
        let Err(error) = client.node_unpublish_volume(request).await else { return Ok(()) };
        self.failed_unmount(&action, OpError::call(TEAR_DOWN, error), &client, target).await
    }

    /// Calls NodeUnstageVolume, likewise.
    pub(super) async fn call_unstage(
        &self,
        unique: &UniqueName,
        facts: &VolumeFacts,
        staging: &Path,
    ) -> Result<(), OpError> {
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: facts.handle.to_string(),
            staging_target_path: text(staging),
        };
        let client = self.client(UNMOUNT_DEVICE, &facts.driver)?;
        let Err(error) = client.node_unstage_volume(request).await else { return Ok(()) };
        let action = Action::Unstage { volume: unique.clone() };
        self.failed_unmount(&action, OpError::call(UNMOUNT_DEVICE, error), &client, staging).await
    }

    /// A driver that does not know the volume any more, because it was deleted too early, never will.
    /// Once it is believed, what is left of the mount is unmounted here, never lazily.
    async fn failed_unmount(
        &self,
        action: &Action,
        error: OpError,
        client: &Client,
        target: &Path,
    ) -> Result<(), OpError> {
        if !error.says_not_found() {
            return Err(error);
        }
        let before = self.state().backoff.get(action).map_or(0, |failures| failures.not_found);
        let mut view = forgotten::View { answers: before.saturating_add(1), ready: None };
        if forgotten::decide(&view) == Belief::AskReady {
            let probed = client.probe(v1::ProbeRequest {}).await;
            // A driver that does not say is ready, as everywhere in CSI.
            view.ready = probed.ok().map(|response| response.ready.unwrap_or(true));
        }
        if forgotten::decide(&view) != Belief::Forgotten {
            return Err(error);
        }
        match (files::unmount_forgotten(target), *error.cause) {
            (Ok(()), _) => Ok(()),
            (Err(unmount), OpCause::Call(call)) => {
                let cause = OpCause::Forgotten { call, unmount };
                Err(OpError::new(error.step, Failure::Uncertain, cause))
            }
            (Err(unmount), _) => Err(OpError::new(error.step, Failure::Uncertain, unmount)),
        }
    }

    pub(super) async fn unstage(&self, unique: &UniqueName) -> Result<(), OpError> {
        let Some(facts) = self.state().volumes.get(unique).cloned() else {
            self.set_device(unique, Mounted::No);
            return Ok(());
        };
        if facts.plugin != Plugin::Csi {
            return self.unmount_in_tree_device(unique, &facts).await;
        }
        if facts.block {
            return self.unstage_block(unique, &facts).await;
        }
        let local = |error: io::Error| OpError::new(UNMOUNT_DEVICE, Failure::Uncertain, error);
        let dir = self.deps.paths.staging(&facts.driver, &facts.handle);
        let dir = dir.map_err(|error| OpError::new(UNMOUNT_DEVICE, Failure::Transient, error))?;
        let target = staging_target(&dir);
        // Without the file the driver was never asked (it does not stage): only empty directories
        // are left.
        if files::read_vol_data(&dir).map_err(local)?.is_some() {
            refuse_while_mounted_elsewhere(&target)?;
            self.set_device(unique, Mounted::Unknown);
            self.deps.faults.at("unstage.begun");
            let called = self.call_unstage(unique, &facts, &target).await;
            self.deps.faults.at("unstage.answered");
            called?;
        }
        files::clean_forgotten(&target).map_err(local)?;
        self.deps.faults.at("unstage.cleaned");
        self.set_device(unique, Mounted::No);
        Ok(())
    }

    pub(super) fn set_device(&self, unique: &UniqueName, device: Mounted) {
        if let Some(known) = self.state().world.actual.get_mut(unique) {
            known.device = device;
        }
    }
}

fn refuse_while_mounted_elsewhere(target: &Path) -> Result<(), OpError> {
    let table = MountTable::read()
        .map_err(|error| OpError::new(UNMOUNT_DEVICE, Failure::Transient, error))?;
    let others = table.others_of(target);
    if others.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the device mount path {} is still mounted by other references {others:?}",
        target.display()
    );
    Err(OpError::new(UNMOUNT_DEVICE, Failure::Transient, text))
}
