//! Rebuilds the actual state from what an earlier process left on disk.

use std::fs;
use std::path::{Path, PathBuf};

use longshore_core::model::{ObjectKey, Uid};
use longshore_core::names::UniqueName;
use longshore_core::stage::paths::{
    CSI_DIR, NodePaths, VOL_DATA, VolData, publish_target, staging_target,
};
use longshore_core::stage::verdict::Mounted;
use longshore_core::stage::world::PodMount;

use longshore_files::mounts::is_mount_point;
use rustix::mount::{UnmountFlags, unmount};

use crate::fault::Forgets;

use super::{Plugin, State, VolumeFacts, VolumeManager, files};

/// A mount that was found on disk and may be there.
const FOUND: PodMount = PodMount { state: Mounted::Unknown, reconstructed: true, remount: false };

impl VolumeManager {
    /// Reads the directories of pods and of staged volumes. Everything found may be mounted.
    ///
    /// Pods found here count as possibly running until they are announced or released; their UIDs
    /// are returned. The caches must be synced.
    pub(crate) fn reconstruct(&self) -> Vec<Uid> {
        let mut pods = Vec::new();
        for uid in names_in(&self.deps.paths.pods()).into_iter().map(Uid::from) {
            let volumes = self.deps.paths.pod(&uid).join("volumes").join(CSI_DIR);
            for name in names_in(&volumes) {
                self.found_published(&uid, &name);
            }
            for plugin in [Plugin::Local, Plugin::Nfs] {
                let dir = plugin.dir();
                for name in names_in(&self.deps.paths.own_volume(&uid, dir, "")) {
                    self.found_in_tree(&uid, plugin, &name);
                }
            }
            self.state().world.unresolved.insert(uid.clone());
            pods.push(uid);
        }
        for name in names_in(&self.deps.paths.local_mounts()) {
            let unique = UniqueName::local(&name);
            self.remember(&unique, in_tree_facts(Plugin::Local, &name));
            self.state().world.actual.entry(unique).or_default().device = Mounted::Unknown;
        }
        for name in names_in(&self.deps.paths.block_volumes()) {
            self.found_mapped(&name);
        }
        let drivers = match self.deps.faults.forgets(Forgets::Staged) {
            true => Vec::new(),
            false => drivers_with_staging(&self.deps.paths),
        };
        for driver in drivers {
            let dir = self.deps.paths.csi_plugins().join(&driver);
            for hash in names_in(&dir) {
                match readable(&dir.join(&hash)) {
                    Some(data) => self.found_staged(&data),
                    None => remove_unwritten(&dir.join(hash)),
                }
            }
        }
        pods
    }

    fn found_published(&self, uid: &Uid, name: &str) {
        let dir = self.deps.paths.publish(uid, name);
        self.deps.metrics.reconstructed.inc();
        let data = readable(&dir);
        let parts = data.as_ref().and_then(|data| data.volume().map(|both| (data, both)));
        let Some((data, (driver, handle))) = parts else {
            self.deps.metrics.not_reconstructed.inc();
            self.broken.lock().push(Broken { uid: uid.to_owned(), name: name.to_owned(), dir });
            return;
        };
        let inline = data.get("volumeLifecycleMode") == Some("Ephemeral");
        let unique =
            if inline { UniqueName::of_pod(uid, name) } else { UniqueName::new(&driver, &handle) };
        let spec_name = data.get("specVolID").unwrap_or(name);
        let facts = VolumeFacts { inline, ..VolumeFacts::csi(&driver, &handle, spec_name) };
        self.remember(&unique, facts.clone());
        let mut state = self.state();
        state.mounts.entry(unique.clone()).or_default().insert(uid.to_owned(), facts);
        let known = state.world.actual.entry(unique).or_default();
        known.pods.insert(uid.to_owned(), FOUND);
        if !inline {
            known.device = Mounted::Unknown;
            known.context = data.get("seLinuxMountContext").unwrap_or_default().to_owned();
        }
    }

    /// Volumes whose metadata was lost and whose pods are gone are unmounted without their driver,
    /// once. Those of pods in the desired state are left alone.
    pub(super) fn clean_broken(&self) {
        if self.broken.lock().is_empty() {
            return;
        }
        let unwanted: Vec<Broken> = {
            let state = self.state();
            if !state.world.ready_to_unmount {
                return;
            }
            let gone = |one: &mut Broken| {
                !state.pods.contains_key(&one.uid) && !state.world.unresolved.contains(&one.uid)
            };
            self.broken.lock().extract_if(.., gone).collect()
        };
        for one in unwanted {
            self.deps.metrics.forced.inc();
            match force_clean(&one.dir) {
                Ok(()) => tracing::warn!(
                    dir = %one.dir.display(),
                    volume = one.name,
                    "unmounted without its driver: its metadata was lost"
                ),
                Err(error) => {
                    self.deps.metrics.not_forced.inc();
                    tracing::error!(dir = %one.dir.display(), %error, "a volume without metadata stays; unmount it by hand");
                }
            }
        }
    }

    /// A volume that pods use as a device: each pod that has a file of it may have it mapped.
    fn found_mapped(&self, name: &str) {
        let places = self.deps.paths.block(name);
        let Some(data) = readable(&places.data) else { return };
        let Some((driver, handle)) = data.volume() else { return };
        let unique = UniqueName::new(&driver, &handle);
        let spec_name = data.get("specVolID").unwrap_or(name);
        let facts = VolumeFacts { block: true, ..VolumeFacts::csi(&driver, &handle, spec_name) };
        self.remember(&unique, facts.clone());
        let mut state = self.state();
        if places.staging.exists() {
            // Another PersistentVolume with this handle may have been found before.
            state.volumes.insert(unique.clone(), facts.clone());
        }
        let State { world, mounts, .. } = &mut *state;
        let known = world.actual.entry(unique.clone()).or_default();
        known.device = Mounted::Unknown;
        for uid in files_in(&places.publish).into_iter().chain(files_in(&places.dev)) {
            let uid = Uid::from(uid);
            mounts.entry(unique.clone()).or_default().insert(uid.clone(), facts.clone());
            if known.pods.insert(uid, FOUND).is_none() {
                self.deps.metrics.reconstructed.inc();
            }
        }
    }

    /// Also finds volumes that are staged and nothing else: a crash between two calls.
    fn found_staged(&self, data: &VolData) {
        let Some((driver, handle)) = data.volume() else { return };
        let unique = UniqueName::new(&driver, &handle);
        self.remember(&unique, VolumeFacts::csi(&driver, &handle, ""));
        let mut state = self.state();
        let known = state.world.actual.entry(unique).or_default();
        known.device = Mounted::Unknown;
        known.context = data.get("seLinuxMountContext").unwrap_or_default().to_owned();
    }

    /// A directory below a pod in which this node itself mounts something.
    fn found_in_tree(&self, uid: &Uid, plugin: Plugin, name: &str) {
        let unique = plugin.unique_name(uid, name);
        self.remember(&unique, in_tree_facts(plugin, name));
        let mut state = self.state();
        state.world.actual.entry(unique).or_default().pods.insert(uid.to_owned(), FOUND);
    }

    fn remember(&self, unique: &UniqueName, facts: VolumeFacts) {
        let object = self.deps.csi_drivers.get(&ObjectKey::cluster(&facts.driver));
        let csi = facts.plugin == Plugin::Csi && !facts.inline;
        let attachable = csi && object.is_none_or(|object| object.attach_required());
        let mut state = self.state();
        let known = state.world.actual.entry(unique.to_owned()).or_default();
        known.reconstructed = true;
        known.attachable = attachable;
        state.volumes.entry(unique.to_owned()).or_insert(facts);
        longshore_cluster::log_process!(volume = unique.as_str(), "volume found on disk");
    }
}

/// Drivers that have directories for staged volumes. Block volumes of all drivers share one directory beside theirs.
fn drivers_with_staging(paths: &NodePaths) -> Vec<String> {
    let blocks = paths.block_volumes();
    let mut names = names_in(&paths.csi_plugins());
    names.retain(|name| blocks.file_name() != Some(name.as_ref()));
    names
}

/// A published volume whose metadata cannot be read.
pub(super) struct Broken {
    uid: Uid,
    name: String,
    dir: PathBuf,
}

fn force_clean(dir: &Path) -> std::io::Result<()> {
    let target = publish_target(dir);
    while is_mount_point(&target)? {
        unmount(&target, UnmountFlags::NOFOLLOW)?;
    }
    files::clean(&target)
}

/// A staging directory whose making or removal was interrupted: without the file its driver was not
/// asked, or has undone it. What holds anything stays.
fn remove_unwritten(dir: &Path) {
    if dir.join(VOL_DATA).exists() {
        return;
    }
    // Left by a write that was interrupted; usually there is none.
    let _ = fs::remove_file(dir.join(files::UNFINISHED));
    if let Err(error) = files::clean(&staging_target(dir)) {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove a staging directory without metadata");
    }
}

fn in_tree_facts(plugin: Plugin, name: &str) -> VolumeFacts {
    VolumeFacts { plugin, ..VolumeFacts::csi(&"".into(), &"".into(), name) }
}

fn readable(dir: &Path) -> Option<VolData> {
    match files::read_vol_data(dir) {
        Ok(data) => data,
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "metadata of a volume cannot be read; the directory stays");
            None
        }
    }
}

/// Names of whatever is in `dir`; none when it does not exist.
fn files_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Names of the directories in `dir`; none when it does not exist.
pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_block_volumes_is_no_driver() {
        let root = tempfile::tempdir().unwrap();
        let paths = NodePaths::new(root.path());
        fs::create_dir_all(paths.block_volumes().join("pvc-1/data")).unwrap();
        let staging = paths.staging(&"main.csi.test".into(), &"vol-1".into()).unwrap();
        fs::create_dir_all(staging).unwrap();
        assert_eq!(drivers_with_staging(&paths), ["main.csi.test"]);
    }
}
