//! What an earlier life of this process left on disk.

use std::fs;
use std::path::Path;

use longshore_core::model::ObjectKey;
use longshore_core::stage::names::{local_volume_name, pod_volume_name, unique_volume_name};
use longshore_core::stage::paths::{CSI_DIR, VolData};
use longshore_core::stage::verdict::Mounted;
use longshore_core::stage::world::PodMount;

use super::{Plugin, VolumeFacts, VolumeManager, files};

impl VolumeManager {
    /// Reads the directories of pods and of staged volumes. Everything found may be mounted.
    ///
    /// Pods found here count as possibly running until they are announced or released; their UIDs
    /// are returned. The caches must be synced.
    pub fn reconstruct(&self) -> Vec<String> {
        let mut pods = Vec::new();
        for uid in names_in(&self.deps.paths.pods()) {
            let volumes = self.deps.paths.pod(&uid).join("volumes").join(CSI_DIR);
            for name in names_in(&volumes) {
                self.found_published(&uid, &name);
            }
            for plugin in [Plugin::Local, Plugin::Nfs] {
                let dir = plugin.dir();
                for name in names_in(&self.deps.paths.own_volume(&uid, dir, "")) {
                    self.found_own(&uid, plugin, &name);
                }
            }
            self.state().world.unresolved.insert(uid.clone());
            pods.push(uid);
        }
        for name in names_in(&self.deps.paths.local_mounts()) {
            let unique = local_volume_name(&name);
            self.remember(&unique, own_facts(Plugin::Local, &name));
            self.state().world.actual.entry(unique).or_default().device = Mounted::Unknown;
        }
        for driver in names_in(&self.deps.paths.csi_plugins()) {
            let dir = self.deps.paths.csi_plugins().join(&driver);
            for hash in names_in(&dir) {
                if let Some(data) = readable(&dir.join(hash)) {
                    self.found_staged(&data);
                }
            }
        }
        pods
    }

    fn found_published(&self, uid: &str, name: &str) {
        let Some(data) = readable(&self.deps.paths.publish(uid, name)) else { return };
        let (Some(driver), Some(handle)) = (data.get("driverName"), data.get("volumeHandle"))
        else {
            return;
        };
        let inline = data.get("volumeLifecycleMode") == Some("Ephemeral");
        let unique =
            if inline { pod_volume_name(uid, name) } else { unique_volume_name(driver, handle) };
        let spec_name = data.get("specVolID").unwrap_or(name);
        self.remember(&unique, csi_facts(driver, handle, spec_name, inline));
        let mount = PodMount { state: Mounted::Unknown, reconstructed: true, remount: false };
        let mut state = self.state();
        let known = state.world.actual.entry(unique).or_default();
        known.pods.insert(uid.to_owned(), mount);
        if !inline {
            known.device = Mounted::Unknown;
        }
    }

    /// Also finds volumes that are staged and nothing else: a crash between two calls.
    fn found_staged(&self, data: &VolData) {
        let (Some(driver), Some(handle)) = (data.get("driverName"), data.get("volumeHandle"))
        else {
            return;
        };
        let unique = unique_volume_name(driver, handle);
        self.remember(&unique, csi_facts(driver, handle, "", false));
        self.state().world.actual.entry(unique).or_default().device = Mounted::Unknown;
    }

    /// A directory below a pod in which this node itself mounts something.
    fn found_own(&self, uid: &str, plugin: Plugin, name: &str) {
        let unique = plugin.unique_name(uid, name);
        self.remember(&unique, own_facts(plugin, name));
        let mount = PodMount { state: Mounted::Unknown, reconstructed: true, remount: false };
        let mut state = self.state();
        state.world.actual.entry(unique).or_default().pods.insert(uid.to_owned(), mount);
    }

    fn remember(&self, unique: &str, facts: VolumeFacts) {
        let object = self.deps.csi_drivers.get(&ObjectKey::cluster(&facts.driver));
        let csi = facts.plugin == Plugin::Csi && !facts.inline;
        let attachable = csi && object.is_none_or(|object| object.attach_required());
        let mut state = self.state();
        let known = state.world.actual.entry(unique.to_owned()).or_default();
        known.reconstructed = true;
        known.attachable = attachable;
        state.volumes.entry(unique.to_owned()).or_insert(facts);
        tracing::info!(volume = unique, "found on disk");
    }
}

fn csi_facts(driver: &str, handle: &str, spec_name: &str, inline: bool) -> VolumeFacts {
    VolumeFacts {
        plugin: Plugin::Csi,
        driver: driver.to_owned(),
        handle: handle.to_owned(),
        spec_name: spec_name.to_owned(),
        volume: None,
        inline,
    }
}

fn own_facts(plugin: Plugin, name: &str) -> VolumeFacts {
    VolumeFacts { plugin, ..csi_facts("", "", name, false) }
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
