//! What a node leaves in the kernel, and taking it away.
//!
//! Processes, mounts and network interfaces go with the node's namespaces. Cgroups and loop devices
//! belong to no namespace and are removed by name.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context as _, Result, bail};
use longshore_files::mounts::MountTable;

use super::machine::Record;

/// How long the kernel may take to let go.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Removes what is left of a node whose process 1 has ended, and checks that nothing is left.
pub(super) fn remove(record: &Record, dir: &Path, namespace: Option<&Namespace>) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        for device in loops_below(dir)? {
            detach(&device.0);
        }
        for path in cgroups(&record.cgroup)? {
            remove_cgroup(&path);
        }
        let left = left(record, dir, namespace)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            bail!("the node in {} left behind: {}", dir.display(), left.join(", "));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Everything of the node that is still there.
fn left(record: &Record, dir: &Path, namespace: Option<&Namespace>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (device, file) in loops_below(dir)? {
        found.push(format!("loop device {} on {file}", device.display()));
    }
    found.extend(cgroups(&record.cgroup)?.iter().map(|path| format!("cgroup {}", path.display())));
    let link = record.link.iter().filter(|link| Path::new("/sys/class/net").join(link).exists());
    found.extend(link.map(|link| format!("network interface {link}")));
    let processes = namespace.map(Namespace::processes).unwrap_or_default();
    found.extend(processes.iter().map(|pid| format!("process {pid}")));
    for mount in crate::sweep::mounts_below(dir)? {
        found.push(format!("mount {}", mount.display()));
    }
    Ok(found)
}

/// Attached loop devices with a backing file below `dir`.
fn loops_below(dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").context("cannot read /sys/block")? {
        let entry = entry?;
        let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let file = file.trim().to_owned();
        if Path::new(&file).starts_with(dir) {
            found.push((Path::new("/dev").join(entry.file_name()), file));
        }
    }
    Ok(found)
}

fn detach(device: &Path) {
    // A device that is still in use is tried again, and named if that does not help.
    let _ = Command::new("losetup").arg("--detach").arg(device).output();
}

/// The cgroup of that name in every hierarchy that has it.
fn cgroups(name: &str) -> Result<Vec<PathBuf>> {
    let table = MountTable::read().context("cannot read the mounts")?;
    let dirs = table.cgroups().map(|mount| mount.path.join(name));
    Ok(dirs.filter(|path| path.is_dir()).collect())
}

/// Only directories can be removed in a cgroup; its files go with it.
fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

/// A pid namespace. As long as this lives, no other gets its number.
#[derive(Debug)]
pub struct Namespace {
    number: u64,
    _open: fs::File,
}

impl Namespace {
    /// That of a process.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let open = fs::File::open(format!("/proc/{pid}/ns/pid"))?;
        Ok(Self { number: open.metadata()?.ino(), _open: open })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The processes in it.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
        let here = |pid: &u32| {
            let found = fs::metadata(format!("/proc/{pid}/ns/pid"));
            found.is_ok_and(|found| found.ino() == self.number)
        };
        pids.filter(here).collect()
    }
}
