//! Cgroups of pods: how many processes a pod may have.
//!
//! The agent makes one cgroup per pod in the hierarchy that counts processes, below a directory of
//! its own instance, and removes it when the pod has ended. One that an earlier life of the agent
//! left is used again, or removed at the next start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use super::worker::PodDeps;
use crate::shim::protocol::Cgroup;

/// How long the kernel may take to let go of a cgroup whose processes have ended.
const PATIENCE: u32 = 100;
/// File in the node's directory that says where its cgroups are.
const PLACE: &str = "cgroup";
const PAUSE: Duration = Duration::from_millis(10);

/// Where this node's pods have their cgroups.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    /// Of the hierarchy.
    mount: PathBuf,
    /// Mount options; empty for the unified hierarchy.
    controllers: String,
    instance: String,
    limit: u64,
}

impl Cgroups {
    /// Finds the hierarchy that counts processes, and makes sure that it can be used.
    ///
    /// # Errors
    /// There is none, or it cannot be written.
    pub(crate) fn find(root_dir: &Path, limit: u64) -> io::Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let (mount, controllers) = hierarchy(&table)
            .ok_or_else(|| io::Error::other("no cgroup hierarchy has the pids controller"))?;
        let digest = Sha256::digest(root_dir.as_os_str().as_encoded_bytes());
        let instance = hex::encode(&digest[..6]);
        let cgroups = Self { mount, controllers, instance, limit };
        let probe = cgroups.make("probe")?;
        fs::remove_dir(probe.dir)?;
        cgroups.tidy();
        // For whoever removes what is left of an instance that will not start again.
        fs::write(root_dir.join(PLACE), cgroups.base().as_os_str().as_encoded_bytes())?;
        Ok(cgroups)
    }

    fn base(&self) -> PathBuf {
        self.mount.join("longshore").join(&self.instance)
    }

    /// Makes a pod's cgroup, or finds it, and sets its limit.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn make(&self, uid: &str) -> io::Result<Cgroup> {
        let dir = self.base().join(uid);
        // Another instance that ends may remove the directory above at this moment.
        let mut made = self.make_dirs(&dir);
        for _ in 0..3 {
            if !made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                break;
            }
            made = self.make_dirs(&dir);
        }
        made.map_err(|error| named(&dir, &error))?;
        let file = dir.join("pids.max");
        fs::write(&file, self.limit.to_string()).map_err(|error| named(&file, &error))?;
        Ok(Cgroup { dir, controllers: self.controllers.clone() })
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(self.base())?;
        if self.controllers.is_empty() {
            let above = [self.mount.clone(), self.mount.join("longshore"), self.base()];
            for dir in above {
                fs::write(dir.join("cgroup.subtree_control"), "+pids")?;
            }
        }
        fs::create_dir_all(dir)
    }

    /// Removes a pod's cgroup; what should still be in it is killed.
    pub(crate) async fn remove(&self, uid: &str) {
        let dir = self.base().join(uid);
        let removed = tokio::task::spawn_blocking(move || remove(&dir)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(uid, %error, "cgroup of a pod stays");
        }
    }

    /// Removes the cgroups of pods that are not there any more.
    pub(crate) async fn sweep(&self, is_known: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(self.base()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_known(&name) {
                self.remove(&name).await;
            }
        }
    }

    /// Leaves nothing behind when no pod is left.
    pub(crate) fn tidy(&self) {
        // The first fails while pods go on without the agent, the second while others need it.
        let _ = fs::remove_dir(self.base());
        let _ = fs::remove_dir(self.mount.join("longshore"));
    }
}

impl PodDeps {
    /// Removes the cgroup of a pod that has ended.
    pub(crate) async fn remove_cgroup(&self, uid: &str) {
        if let Some(Ok(cgroups)) = &self.cgroups {
            cgroups.remove(uid).await;
        }
    }
}

/// Removes the cgroups of a node whose agent is gone; what should still be in them is killed.
///
/// # Errors
/// One of them stays.
pub fn remove_cgroups(root_dir: &Path) -> io::Result<()> {
    let Ok(base) = fs::read_to_string(root_dir.join(PLACE)).map(PathBuf::from) else {
        return Ok(());
    };
    for entry in fs::read_dir(&base).into_iter().flatten().flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    // Others may need what is above.
    let _ = fs::remove_dir(&base);
    let _ = base.parent().map(fs::remove_dir);
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn remove(dir: &Path) -> io::Result<()> {
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

/// Mount point and controllers of the hierarchy that counts processes: one of the old kind before
/// the unified one, since a controller is in one hierarchy only.
fn hierarchy(table: &str) -> Option<(PathBuf, String)> {
    let mounts = || {
        table.lines().filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            Some((mount.split(' ').nth(4)?, kind.next()?, kind.nth(1)?))
        })
    };
    let old = mounts().filter(|(_, kind, _)| *kind == "cgroup").find_map(|(point, _, options)| {
        let names: Vec<&str> = options.split(',').filter(|option| is_controller(option)).collect();
        names.contains(&"pids").then(|| (PathBuf::from(point), names.join(",")))
    });
    old.or_else(|| {
        let (point, ..) = mounts().find(|(_, kind, _)| *kind == "cgroup2")?;
        let point = PathBuf::from(point);
        let has = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
        has.split_whitespace().any(|name| name == "pids").then(|| (point, String::new()))
    })
}

/// Options of a hierarchy of the old kind are its controllers and a few others.
fn is_controller(option: &str) -> bool {
    !option.contains('=')
        && !["rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode"].contains(&option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_counts_processes_is_found() {
        let line = |point: &str, kind: &str, options: &str| {
            format!("30 20 0:30 / {point} rw,relatime shared:9 - {kind} cgroup {options}\n")
        };
        let memory = line("/sys/fs/cgroup/memory", "cgroup", "rw,memory");
        let pids = line("/sys/fs/cgroup/pids", "cgroup", "rw,xattr,pids,release_agent=/x");
        assert_eq!(hierarchy(&memory), None);
        let found = hierarchy(&(memory + &pids));
        assert_eq!(found, Some(("/sys/fs/cgroup/pids".into(), "pids".into())));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let unified = line(&dir.path().display().to_string(), "cgroup2", "rw,nsdelegate");
        assert_eq!(hierarchy(&unified), Some((dir.path().to_owned(), String::new())));
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(hierarchy(&unified), None);
    }

    #[test]
    fn the_unified_hierarchy_counts_processes_on_every_level_above_the_pod() {
        let mount = tempfile::tempdir().unwrap();
        let cgroups = Cgroups {
            mount: mount.path().to_owned(),
            controllers: String::new(),
            instance: "instance".into(),
            limit: 7,
        };
        let made = cgroups.make("uid").unwrap();
        assert_eq!(made.dir, mount.path().join("longshore/instance/uid"));
        for above in ["", "longshore", "longshore/instance"] {
            let file = mount.path().join(above).join("cgroup.subtree_control");
            assert_eq!(fs::read_to_string(file).unwrap(), "+pids", "{above:?}");
        }
        assert_eq!(fs::read_to_string(made.dir.join("pids.max")).unwrap(), "7");
        cgroups.make("uid").unwrap();
    }
}
