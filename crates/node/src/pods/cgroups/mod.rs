//! Cgroups of pods: how many processes a pod may have, and which devices a container may open.
//!
//! The agent makes one cgroup per pod in the hierarchy that counts processes, and one per container in
//! the hierarchy that judges devices, below a directory of its own instance. It removes them when the
//! pod has ended. What an earlier life of the agent left is used again, or removed at the next start.

mod bpf;
mod devices;
mod hierarchy;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_files::mounts::MountTable;
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

pub(crate) use devices::Devices;
use hierarchy::{Hierarchy, tidy};

use super::worker::PodDeps;
use crate::shim::protocol::Cgroup;

/// How long the kernel may take to let go of a cgroup whose processes have ended.
const PATIENCE: u32 = 100;
/// File in the node's directory that says where its cgroups are, one directory a line.
const PLACE: &str = "cgroup";
const PAUSE: Duration = Duration::from_millis(10);

/// Where this node's pods have their cgroups.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    instance: String,
    /// Counts processes, up to the limit.
    pids: Option<(Hierarchy, u64)>,
    /// Why processes are not counted although there is a limit.
    uncounted: Option<String>,
    /// Judges devices. Without it, mounts refuse them.
    devices: Option<Hierarchy>,
}

impl Cgroups {
    /// Finds the hierarchies that can be used; processes are counted only with a limit.
    pub(crate) fn find(root_dir: &Path, limit: Option<u64>) -> Self {
        let table = MountTable::read().unwrap_or_default();
        let digest = Sha256::digest(root_dir.as_os_str().as_encoded_bytes());
        let mut found = Self { instance: hex::encode(&digest[..6]), ..Self::default() };
        if let Some(Err(error)) = limit.map(|limit| found.find_pids(&table, limit)) {
            tracing::warn!(%error, "the number of a pod's processes is not limited");
            found.uncounted = Some(error.to_string());
        }
        if let Err(error) = found.find_devices(&table) {
            longshore_cluster::log_process!(%error, "no cgroup judges devices, so mounts refuse them");
        }
        // For whoever removes what is left of an instance that will not start again.
        let bases: String = found.bases().map(|base| format!("{}\n", base.display())).collect();
        if let Err(error) = fs::write(root_dir.join(PLACE), bases) {
            tracing::warn!(%error, "cannot record where the pods' cgroups are");
        }
        found
    }

    fn find_pids(&mut self, table: &MountTable, limit: u64) -> io::Result<()> {
        let hierarchy = Hierarchy::that_counts_processes(table)
            .ok_or_else(|| io::Error::other("no cgroup hierarchy has the pids controller"))?;
        let tried = self.make_pod(&hierarchy, limit, "probe").and_then(|dir| remove(&dir));
        hierarchy.tidy(&self.instance);
        tried?;
        self.pids = Some((hierarchy, limit));
        Ok(())
    }

    fn find_devices(&mut self, table: &MountTable) -> io::Result<()> {
        let hierarchy = Hierarchy::that_judges_devices(table)
            .ok_or_else(|| io::Error::other("no cgroup hierarchy judges devices"))?;
        let usual = Devices::with_volumes(&[])?;
        let tried = self.make_container(&hierarchy, "probe", "probe", &usual);
        let removed = remove(&hierarchy.base(&self.instance).join("probe"));
        hierarchy.tidy(&self.instance);
        tried.and(removed)?;
        self.devices = Some(hierarchy);
        Ok(())
    }

    /// Why processes are not counted although they should be.
    pub(crate) fn uncounted(&self) -> Option<&str> {
        self.uncounted.as_deref()
    }

    fn hierarchies(&self) -> impl Iterator<Item = &Hierarchy> {
        let counts = self.pids.as_ref().map(|(hierarchy, _)| hierarchy);
        counts.into_iter().chain(self.devices.as_ref().filter(move |one| Some(*one) != counts))
    }

    fn bases(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies().map(|hierarchy| hierarchy.base(&self.instance))
    }

    /// Makes the cgroups of a container, or finds them, and sets what they limit. Nothing of the
    /// container runs yet.
    pub(crate) fn make(
        &self,
        uid: &str,
        container: &str,
        devices: &Devices,
    ) -> io::Result<Vec<Cgroup>> {
        let mut made = Vec::new();
        if let Some((hierarchy, limit)) = &self.pids {
            let dir = self.make_pod(hierarchy, *limit, uid)?;
            let controllers = hierarchy.controllers.clone();
            made.push(Cgroup { dir, controllers, judges_devices: false });
        }
        if let Some(hierarchy) = &self.devices {
            let dir = self.make_container(hierarchy, uid, container, devices)?;
            let controllers = hierarchy.controllers.clone();
            // A process is in one cgroup of a hierarchy; what the pod's limits holds below it too.
            made.retain(|one| one.controllers != controllers);
            made.push(Cgroup { dir, controllers, judges_devices: true });
        }
        Ok(made)
    }

    fn make_pod(&self, hierarchy: &Hierarchy, limit: u64, uid: &str) -> io::Result<PathBuf> {
        let base = hierarchy.base(&self.instance);
        let dir = base.join(uid);
        make_dirs(&dir, || {
            fs::create_dir_all(&base)?;
            hierarchy.count_below(&self.instance)
        })?;
        let file = dir.join("pids.max");
        fs::write(&file, limit.to_string()).map_err(|error| named(&file, &error))?;
        Ok(dir)
    }

    fn make_container(
        &self,
        hierarchy: &Hierarchy,
        uid: &str,
        container: &str,
        devices: &Devices,
    ) -> io::Result<PathBuf> {
        // The kernel's own files in a cgroup have names that a container could have.
        let name = format!("container-{container}");
        let dir = hierarchy.base(&self.instance).join(uid).join(name);
        make_dirs(&dir, || Ok(()))?;
        devices.apply(hierarchy, &dir).map_err(|error| named(&dir, &error))?;
        Ok(dir)
    }

    /// Removes a pod's cgroups; what should still be in them is killed.
    pub(crate) async fn remove(&self, uid: &str) {
        for base in self.bases() {
            let dir = base.join(uid);
            let removed = tokio::task::spawn_blocking(move || remove(&dir)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(uid, %error, "cgroup of a pod stays");
            }
        }
    }

    /// Removes the cgroups of pods that are not there any more.
    pub(crate) async fn sweep(&self, is_known: impl Fn(&str) -> bool) {
        for dir in self.bases().flat_map(|base| dirs_in(&base)) {
            let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !is_known(&name) {
                self.remove(&name).await;
            }
        }
    }

    /// Leaves nothing behind when no pod is left.
    pub(crate) fn tidy(&self) {
        self.bases().for_each(|base| tidy(&base));
    }
}

impl PodDeps {
    /// Removes the cgroups of a pod that has ended.
    pub(crate) async fn remove_cgroup(&self, uid: &str) {
        self.cgroups.remove(uid).await;
    }
}

/// Removes the cgroups of a node whose agent is gone; what should still be in them is killed.
///
/// # Errors
/// One of them stays.
pub fn remove_cgroups(root_dir: &Path) -> io::Result<()> {
    let bases = fs::read_to_string(root_dir.join(PLACE)).unwrap_or_default();
    for base in bases.lines().map(Path::new) {
        dirs_in(base).iter().try_for_each(|dir| remove(dir))?;
        tidy(base);
    }
    Ok(())
}

/// Makes a directory after what has to be above it.
fn make_dirs(dir: &Path, above: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let make = || above().and_then(|()| fs::create_dir_all(dir));
    // Another instance that ends may remove the directory above at this moment.
    let mut made = make();
    for _ in 0..3 {
        if !made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            break;
        }
        made = make();
    }
    made.map_err(|error| named(dir, &error))
}

fn dirs_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|one| one.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|one| one.path())
        .collect()
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Removes a cgroup and those below it.
fn remove(dir: &Path) -> io::Result<()> {
    dirs_in(dir).iter().try_for_each(|below| remove(below))?;
    let mut tries = 0;
    loop {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if tries >= PATIENCE => return Err(named(dir, &error)),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
        let inside = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            // It may be gone by now, which is what is wanted.
            let _ = kill_process(pid, Signal::KILL);
        }
        tries += 1;
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests;
