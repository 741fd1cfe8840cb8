//! Unpublish and unstage.

use std::io;
use std::path::Path;

use longshore_core::model::{DriverName, Uid, VolumeHandle};
use longshore_core::names::UniqueName;
use longshore_core::stage::paths::{VolData, publish_target, staging_target};
use longshore_core::stage::verdict::{Failure, Mounted};
use longshore_csi::{CsiError, v1};
use longshore_files::mounts::MountTable;
use tonic::Code;

use super::mount::text;
use super::{OpCause, OpError, Plugin, VolumeFacts, VolumeManager, files, sub_path};

pub(super) const TEAR_DOWN: &str = "TearDown";
pub(super) const UNMOUNT_DEVICE: &str = "UnmountDevice";

impl VolumeManager {
    /// Takes the mount away from a pod. The driver and id come from disk, the only place that
    /// knows what was really published.
    pub(super) async fn unpublish(&self, unique: &UniqueName, uid: &Uid) -> Result<(), OpError> {
        let known = self.state().volumes.get(unique).cloned();
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
            self.call_unpublish(&driver, &handle, &target).await?;
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
        driver: &DriverName,
        handle: &VolumeHandle,
        target: &Path,
    ) -> Result<(), OpError> {
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: handle.to_string(),
            target_path: text(target),
        };
        let called = self.client(TEAR_DOWN, driver)?.node_unpublish_volume(request).await;
        unmount_forgotten(TEAR_DOWN, called, target)
    }

    /// Calls NodeUnstageVolume, likewise.
    pub(super) async fn call_unstage(
        &self,
        facts: &VolumeFacts,
        staging: &Path,
    ) -> Result<(), OpError> {
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: facts.handle.to_string(),
            staging_target_path: text(staging),
        };
        let client = self.client(UNMOUNT_DEVICE, &facts.driver)?;
        unmount_forgotten(UNMOUNT_DEVICE, client.node_unstage_volume(request).await, staging)
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
            let called = self.call_unstage(&facts, &target).await;
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

/// The result of a call. A driver that does not know the volume any more, because it was deleted too
/// early, never will: what is left of its mount is unmounted here, never lazily.
fn unmount_forgotten<T>(
    step: &'static str,
    called: Result<T, CsiError>,
    target: &Path,
) -> Result<(), OpError> {
    match called {
        Err(call) if call.code() == Code::NotFound => {
            files::unmount_forgotten(target).map_err(|unmount| {
                OpError::new(step, Failure::Uncertain, OpCause::Forgotten { call, unmount })
            })
        }
        called => called.map(drop).map_err(|error| OpError::call(step, error)),
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
