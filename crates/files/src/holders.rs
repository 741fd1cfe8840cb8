//! Processes that keep a mount or a block device in use.
//!
//! Found in `/proc`: mount tables of other mount namespaces, open files, working directories and
//! roots. Links are read and never followed, so a filesystem that hangs does not hang the search.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mounts::MountTable;

/// How many holders [`name`] lists; more would not fit a line.
const NAMED: usize = 5;

/// What keeps something in use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A process with an open file, or the first one of a mount namespace with a mount of its own.
    Process {
        /// Its number.
        pid: u32,
        /// Name of its program.
        program: String,
    },
    /// Another mount in the mount namespace of this process.
    Mount(PathBuf),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, program } => write!(f, "pid {pid} ({program})"),
            Self::Mount(path) => write!(f, "the mount at {}", path.display()),
        }
    }
}

/// Names the holders in one line; `None` without any.
#[must_use]
pub fn name(holders: &[Holder]) -> Option<String> {
    let shown: Vec<String> = holders.iter().take(NAMED).map(ToString::to_string).collect();
    match holders.len() {
        0 => None,
        1..=NAMED => Some(shown.join(", ")),
        more => Some(format!("{} and {} more", shown.join(", "), more - NAMED)),
    }
}

/// Holders of what is, or was, mounted at a path.
#[must_use]
pub fn of_mount(path: &Path) -> Vec<Holder> {
    let table = MountTable::read().unwrap_or_default();
    // A device of its own is held wherever it is mounted; one that many mounts share is not.
    let device = table.at(path).map(|mount| mount.device).filter(|(major, _)| *major != 0);
    Search { path: Some(path), device, node: None }.run(&table)
}

/// Holders of a block device, whose node is at `node`.
#[must_use]
pub fn of_device(device: (u32, u32), node: &Path) -> Vec<Holder> {
    let table = MountTable::read().unwrap_or_default();
    let search = Search { path: None, device: Some(device), node: Some(node) };
    let mut found = search.run(&table);
    found.extend(table.of_device(device, node).iter().map(|one| Holder::Mount(one.path.clone())));
    found
}

struct Search<'a> {
    path: Option<&'a Path>,
    device: Option<(u32, u32)>,
    node: Option<&'a Path>,
}

impl Search<'_> {
    fn run(&self, own: &MountTable) -> Vec<Holder> {
        let own_space = fs::read_link("/proc/thread-self/ns/mnt").ok();
        let mut spaces = BTreeSet::new();
        let mut found = Vec::new();
        for (pid, dir) in processes() {
            let space = fs::read_link(dir.join("ns/mnt")).ok();
            let holds = match space {
                // A kernel thread, or a process that has just ended.
                None => false,
                space if space == own_space => self.opened_by(&dir),
                // One process stands for all of its namespace.
                Some(space) => {
                    (self.mounted_in(&dir) && spaces.insert(space)) || self.opened_by(&dir)
                }
            };
            if holds {
                let program = fs::read_to_string(dir.join("comm")).unwrap_or_default();
                found.push(Holder::Process { pid, program: program.trim().to_owned() });
            }
        }
        found.extend(self.mounted_over(own));
        found.sort();
        found
    }

    /// Whether the mount table of a process has the mount or the device.
    fn mounted_in(&self, dir: &Path) -> bool {
        let Ok(table) = MountTable::read_from(&dir.join("mountinfo")) else { return false };
        table.mounts.iter().any(|mount| {
            Some(mount.device) == self.device || self.path.is_some_and(|path| mount.path == path)
        })
    }

    /// Mounts of this namespace on top of the path's tree.
    fn mounted_over(&self, own: &MountTable) -> Vec<Holder> {
        let Some(path) = self.path else { return Vec::new() };
        own.below(path).map(|mount| Holder::Mount(mount.path.clone())).collect()
    }

    /// Whether a process has something of it open, or stands in it.
    fn opened_by(&self, dir: &Path) -> bool {
        let links = ["cwd", "root", "exe"].map(|name| dir.join(name));
        let files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let mut links = links.into_iter().chain(files.map(|one| one.path()));
        links.any(|link| fs::read_link(link).is_ok_and(|place| self.covers(&place)))
    }

    fn covers(&self, place: &Path) -> bool {
        self.path.is_some_and(|path| place.starts_with(path)) || self.node == Some(place)
    }
}

fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str().and_then(|name: &str| name.parse().ok())?;
        Some((pid, entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn process_that_stands_in_a_directory_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000").current_dir(dir.path()).stdin(Stdio::null());
        let sleeper = Killed(command.spawn().unwrap());
        let pid = sleeper.0.id();
        let want =
            |one: &Holder| matches!(one, Holder::Process { pid: found, .. } if *found == pid);
        let found = of_mount(dir.path());
        assert!(found.iter().any(want), "{found:?}");
        assert!(!of_mount(&dir.path().join("other")).iter().any(want));
    }

    #[test]
    fn names_of_many_holders_fit_a_line() {
        let some = |count: u32| -> Vec<Holder> {
            (1..=count).map(|pid| Holder::Process { pid, program: "sh".to_owned() }).collect()
        };
        assert_eq!(name(&some(0)), None);
        assert_eq!(name(&some(2)).unwrap(), "pid 1 (sh), pid 2 (sh)");
        assert!(name(&some(7)).unwrap().ends_with("pid 5 (sh) and 2 more"));
        assert_eq!(name(&[Holder::Mount("/a".into())]).unwrap(), "the mount at /a");
    }
}
