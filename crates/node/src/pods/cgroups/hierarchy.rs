//! The cgroup hierarchies of the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longshore_files::mounts::MountTable;

/// A mounted cgroup hierarchy in which an instance has its cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub mount: PathBuf,
    /// Mount options; empty for the unified hierarchy.
    pub controllers: String,
}

impl Hierarchy {
    /// Finds the hierarchy that counts processes: one of the old kind before the unified one, since a
    /// controller is in one hierarchy only.
    pub(super) fn that_counts_processes(table: &MountTable) -> Option<Self> {
        old(table, "pids").or_else(|| {
            let unified = unified(table)?;
            let has = fs::read_to_string(unified.mount.join("cgroup.controllers"));
            has.unwrap_or_default().split_whitespace().any(|name| name == "pids").then_some(unified)
        })
    }

    /// Finds the hierarchy that judges devices. The unified one needs no controller for it.
    pub(super) fn that_judges_devices(table: &MountTable) -> Option<Self> {
        old(table, "devices").or_else(|| unified(table))
    }

    pub(super) fn is_unified(&self) -> bool {
        self.controllers.is_empty()
    }

    /// The directory of an instance's cgroups.
    pub(super) fn base(&self, instance: &str) -> PathBuf {
        self.mount.join("longshore").join(instance)
    }

    /// Lets the cgroups below the instance's directory count processes.
    pub(super) fn count_below(&self, instance: &str) -> io::Result<()> {
        if !self.is_unified() {
            return Ok(());
        }
        let base = self.base(instance);
        for dir in [&self.mount, &self.mount.join("longshore"), &base] {
            fs::write(dir.join("cgroup.subtree_control"), "+pids")?;
        }
        Ok(())
    }

    /// Leaves nothing behind when no pod is left.
    pub(super) fn tidy(&self, instance: &str) {
        tidy(&self.base(instance));
    }
}

/// Removes an instance's directory and the one above, when they are empty.
pub(super) fn tidy(base: &Path) {
    // The first fails while pods go on without the agent, the second while others need it.
    let _ = fs::remove_dir(base);
    let _ = base.parent().map(fs::remove_dir);
}

fn old(table: &MountTable, controller: &str) -> Option<Hierarchy> {
    table.cgroups().filter(|mount| mount.fstype == "cgroup").find_map(|mount| {
        let options = mount.options.split(',');
        let names: Vec<&str> = options.filter(|option| is_controller(option)).collect();
        let hierarchy = Hierarchy { mount: mount.path.clone(), controllers: names.join(",") };
        names.contains(&controller).then_some(hierarchy)
    })
}

fn unified(table: &MountTable) -> Option<Hierarchy> {
    let mount = table.cgroups().find(|mount| mount.fstype == "cgroup2")?;
    Some(Hierarchy { mount: mount.path.clone(), controllers: String::new() })
}

/// Options of a hierarchy of the old kind are its controllers and a few others.
fn is_controller(option: &str) -> bool {
    !option.contains('=')
        && !["rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode"].contains(&option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(point: &str, kind: &str, options: &str) -> String {
        format!("30 20 0:30 / {point} rw,relatime shared:9 - {kind} cgroup {options}\n")
    }

    fn table(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes()).unwrap()
    }

    fn found(mount: impl Into<PathBuf>, controllers: &str) -> Option<Hierarchy> {
        Some(Hierarchy { mount: mount.into(), controllers: controllers.into() })
    }

    #[test]
    fn the_hierarchy_that_counts_processes_is_found() {
        let memory = line("/sys/fs/cgroup/memory", "cgroup", "rw,memory");
        let pids = line("/sys/fs/cgroup/pids", "cgroup", "rw,xattr,pids,release_agent=/x");
        let find = |text: &str| Hierarchy::that_counts_processes(&table(text));
        assert_eq!(find(&memory), None);
        assert_eq!(find(&(memory + &pids)), found("/sys/fs/cgroup/pids", "pids"));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let unified = line(&dir.path().display().to_string(), "cgroup2", "rw,nsdelegate");
        assert_eq!(find(&unified), found(dir.path(), ""));
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(find(&unified), None);
    }

    #[test]
    fn the_hierarchy_that_judges_devices_is_found() {
        let unified = line("/sys/fs/cgroup/unified", "cgroup2", "rw");
        let devices = line("/sys/fs/cgroup/devices", "cgroup", "rw,devices");
        let find = |text: &str| Hierarchy::that_judges_devices(&table(text));
        assert_eq!(find(&line("/sys/fs/cgroup/pids", "cgroup", "rw,pids")), None);
        assert_eq!(find(&unified), found("/sys/fs/cgroup/unified", ""));
        assert_eq!(find(&(unified + &devices)), found("/sys/fs/cgroup/devices", "devices"));
    }
}
