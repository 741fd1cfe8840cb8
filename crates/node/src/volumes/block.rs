//! Volumes that pods use as devices.
//!
//! The driver puts the device to a publish file. This node binds it once more beside the volume's
//! metadata, which keeps it from vanishing silently, and links to it from the pod's directory.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use longshore_core::model::Uid;
use longshore_core::model::kinds::Pod;
use longshore_core::names::UniqueName;
use longshore_core::stage::paths::{VOL_DATA, VolData};
use longshore_core::stage::verdict::{Failure, Mounted};
use longshore_core::stage::world::Action;
use longshore_files::mounts::is_mount_point;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::mounting::Mounting;
use super::unmount::{TEAR_DOWN, UNMOUNT_DEVICE};
use super::{OpError, VolumeFacts, VolumeManager, files};

/// Steps as users know them.
pub(super) const MAP_DEVICE: &str = "SetUpDevice";
pub(super) const MAP_POD: &str = "MapPodDevice";

impl VolumeManager {
    /// Writes the metadata and stages. Returns without a call for drivers that do not stage.
    pub(super) async fn try_stage_block(
        &self,
        unique: &UniqueName,
        mounting: &Mounting,
        staging: bool,
    ) -> Result<(), OpError> {
        let facts = &mounting.facts;
        let local = |error: io::Error| OpError::new(MAP_DEVICE, Failure::Transient, error);
        let places = self.deps.paths.block(&mounting.staged_as);
        self.write_mapped(facts, &mounting.staged_as).map_err(local)?;
        self.change(unique, |known| known.device = known.device.max(Mounted::Unknown));
        if !staging {
            return Ok(());
        }
        let request = mounting.stage_request(self, MAP_DEVICE, &places.staging).await?;
        files::make_dir(&places.staging).map_err(local)?;
        let Err(error) = mounting.client.node_stage_volume(request).await else { return Ok(()) };
        let error = OpError::call(MAP_DEVICE, error);
        if error.failure == Failure::Final && !self.is_reconstructed(unique) {
            self.clean_block(&mounting.staged_as).map_err(local)?;
        }
        Err(error)
    }

    fn write_mapped(&self, facts: &VolumeFacts, name: &str) -> io::Result<()> {
        let dir = self.deps.paths.block(name).data;
        let data = VolData::mapped(&facts.driver, &facts.handle, name, &self.deps.node_name);
        files::make_dir(&dir)?;
        files::write_vol_data(&dir, &data)
    }

    /// Publishes the device and makes it the pod's.
    pub(super) async fn try_publish_block(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        mounting: &Mounting,
    ) -> Result<(), OpError> {
        let facts = &mounting.facts;
        let local = |error: io::Error| OpError::new(MAP_POD, Failure::Transient, error);
        mounting.check_lifecycle()?;
        let places = self.deps.paths.block(&facts.spec_name);
        let target = places.publish.join(uid.as_str());
        let staging = self.deps.paths.block(&mounting.staged_as).staging;
        let request = mounting.publish_request(self, MAP_POD, &target, Some(&staging)).await?;
        if mounting.staged_as != facts.spec_name {
            self.write_mapped(facts, &facts.spec_name).map_err(local)?;
        }
        files::make_dir(&places.publish).map_err(local)?;
        self.begin_publish(unique, uid);
        let called = mounting.client.node_publish_volume(request).await;
        called.map_err(|error| OpError::call(MAP_POD, error))?;
        let global = places.dev.join(uid.as_str());
        let link = self.deps.paths.block_link(uid, &facts.spec_name);
        let mapped = bind_device(&target, &global).and_then(|()| link_device(&target, &link));
        mapped.map_err(|error| OpError::new(MAP_POD, Failure::Uncertain, error))?;
        self.record_mapped(
            &mounting.pod,
            &facts.spec_name,
            &places.dev,
            link.parent().unwrap_or(&link),
        );
        Ok(())
    }

    fn record_mapped(&self, pod: &Pod, name: &str, global: &Path, link: &Path) {
        for (what, place) in [("globalMapPath", global), ("volumeMapPath", link)] {
            let text = format!(
                "MapVolume.MapPodDevice succeeded for volume \"{name}\" {what} \"{}\"",
                place.display()
            );
            self.deps.recorder.normal(pod, "SuccessfulMountVolume", text);
        }
    }

    /// Takes the device away from a pod: link and bind first, then the driver.
    pub(super) async fn unpublish_block(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        facts: &VolumeFacts,
    ) -> Result<(), OpError> {
        let local = |error: io::Error| OpError::new(TEAR_DOWN, Failure::Uncertain, error);
        let places = self.deps.paths.block(&facts.spec_name);
        self.mark_pod_unknown(unique, uid);
        let link = self.deps.paths.block_link(uid, &facts.spec_name);
        files::tolerate_absence(fs::remove_file(link)).map_err(local)?;
        unbind_device(&places.dev.join(uid.as_str())).map_err(local)?;
        let target = places.publish.join(uid.as_str());
        let action = Action::Unpublish { volume: unique.clone(), pod: uid.clone() };
        self.call_unpublish(action, &facts.driver, &facts.handle, &target).await?;
        // A driver may leave the empty file, never a mount.
        files::unmount_forgotten(&target).map_err(local)?;
        files::tolerate_absence(fs::remove_file(&target)).map_err(local)?;
        if self.was_last_of_name(unique, uid, &facts.spec_name) {
            self.clean_block(&facts.spec_name).map_err(local)?;
        }
        self.forget_pod(unique, uid);
        Ok(())
    }

    /// Whether a pod was the last that had the device through a PersistentVolume, and the device is
    /// staged through another one, with which this one's directories will not go.
    fn was_last_of_name(&self, unique: &UniqueName, uid: &Uid, name: &str) -> bool {
        let state = self.state();
        let staged = state.volumes.get(unique).is_none_or(|facts| facts.spec_name == name);
        let Some(known) = state.world.actual.get(unique) else { return false };
        let of_name =
            |pod: &Uid| state.facts(unique, Some(pod)).is_some_and(|one| one.spec_name == name);
        !staged && !known.pods.keys().any(|pod| pod != uid && of_name(pod))
    }

    pub(super) async fn unstage_block(
        &self,
        unique: &UniqueName,
        facts: &VolumeFacts,
    ) -> Result<(), OpError> {
        let local = |error: io::Error| OpError::new(UNMOUNT_DEVICE, Failure::Uncertain, error);
        let places = self.deps.paths.block(&facts.spec_name);
        self.set_device(unique, Mounted::Unknown);
        if places.staging.exists() {
            self.call_unstage(unique, facts, &places.staging).await?;
        }
        self.clean_block(&facts.spec_name).map_err(local)?;
        self.set_device(unique, Mounted::No);
        Ok(())
    }

    /// Removes the volume's directories. Nothing is recursive: what is not empty holds something.
    fn clean_block(&self, name: &str) -> io::Result<()> {
        let places = self.deps.paths.block(name);
        for dir in [&places.staging, &places.publish, &places.dev] {
            files::tolerate_absence(fs::remove_dir(dir))?;
        }
        files::tolerate_absence(fs::remove_file(places.data.join(VOL_DATA)))?;
        files::tolerate_absence(fs::remove_dir(&places.data))?;
        match places.data.parent() {
            Some(dir) => files::tolerate_absence(fs::remove_dir(dir)),
            None => Ok(()),
        }
    }
}

fn bind_device(source: &Path, place: &Path) -> io::Result<()> {
    if is_mount_point(place)? {
        return Ok(());
    }
    files::make_dir(place.parent().unwrap_or(place))?;
    fs::OpenOptions::new().create(true).append(true).open(place)?;
    Ok(mount_bind(source, place)?)
}

fn unbind_device(place: &Path) -> io::Result<()> {
    while is_mount_point(place)? {
        unmount(place, UnmountFlags::NOFOLLOW)?;
    }
    files::tolerate_absence(fs::remove_file(place))
}

fn link_device(source: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|present| present == source) {
        return Ok(());
    }
    files::make_dir(link.parent().unwrap_or(link))?;
    files::tolerate_absence(fs::remove_file(link))?;
    symlink(source, link)
}
