//! Proof that a run left nothing behind: mounts, loop devices, processes, cgroups, networks, files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use longshore_files::mounts::MountTable;
use longshore_real_kube::tools;

use crate::run;

/// Our directories in the temporary directory, our cgroups and our programs start with this.
const OURS: &str = "longshore";

/// What the machine held at one moment, by kind.
pub struct Snapshot(BTreeMap<String, BTreeSet<String>>);

impl Snapshot {
    /// Looks at the machine now.
    pub fn take() -> Result<Self> {
        let kinds = [
            ("mount", mounts()?),
            ("loop device", loops()?),
            ("process", processes()?),
            ("cgroup", cgroups()?),
            ("network namespace", names("/run/netns", |_| true)),
            ("network interface", names("/sys/class/net", |_| true)),
            ("temporary file", files()),
        ];
        Ok(Self(kinds.into_iter().map(|(kind, found)| (kind.to_owned(), found)).collect()))
    }

    /// Writes the snapshot into the target directory.
    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_string(&self.0)?;
        fs::create_dir_all(run::root().join("target"))?;
        fs::write(file(), text).context("cannot write the snapshot")
    }

    /// Reads what [`Snapshot::save`] wrote.
    pub fn load() -> Result<Self> {
        let text = fs::read_to_string(file()).context("no snapshot: run `leftovers save` first")?;
        let old = "the snapshot is of another version: run `leftovers save` again";
        Ok(Self(serde_json::from_str(&text).context(old)?))
    }

    /// Looks again and fails when something is there that was not.
    pub fn compare(&self) -> Result<()> {
        // A process that has just been told to end may take a moment to be gone.
        let mut left = self.left()?;
        for _ in 0..20 {
            if left.is_empty() {
                let kinds: Vec<&str> = self.0.keys().map(String::as_str).collect();
                eprintln!("nothing left behind: no {}", kinds.join(", "));
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(250));
            left = self.left()?;
        }
        bail!("left behind:\n  {}", left.join("\n  "))
    }

    fn left(&self) -> Result<Vec<String>> {
        let none = BTreeSet::new();
        let mut left = Vec::new();
        for (kind, after) in Self::take()?.0 {
            let before = self.0.get(&kind).unwrap_or(&none);
            left.extend(after.difference(before).map(|one| format!("{kind} {one}")));
        }
        Ok(left)
    }
}

fn file() -> std::path::PathBuf {
    run::root().join("target/leftovers.json")
}

fn mounts() -> Result<BTreeSet<String>> {
    let table = MountTable::read().context("cannot read the mount table")?;
    Ok(table.mounts.iter().map(|mount| mount.path.display().to_string()).collect())
}

/// Attached loop devices with their backing files.
fn loops() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/sys/block").context("cannot read /sys/block")? {
        let path = entry?.path();
        if let Ok(file) = fs::read_to_string(path.join("loop/backing_file")) {
            found.insert(format!("{} on {}", path.display(), file.trim()));
        }
    }
    Ok(found)
}

/// Our own programs, programs of the tools cache, and whatever works in a directory of ours: a
/// containerd of a test, and its shims, name its socket there.
fn processes() -> Result<BTreeSet<String>> {
    let cache = tools::cache_dir();
    let cache = fs::canonicalize(&cache).unwrap_or(cache);
    let temp = format!("{}/{OURS}-", std::env::temp_dir().display());
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let path = entry?.path();
        let pid = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        if pid.is_none_or(|pid| pid == std::process::id()) {
            continue;
        }
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        let exe = fs::read_link(path.join("exe")).unwrap_or_default();
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if name.starts_with(OURS) || exe.starts_with(&cache) || line.contains(&temp) {
            // Enough to know it again; some command lines fill pages.
            let line: String =
                line.trim().chars().map(|c| if c == '\n' { ' ' } else { c }).take(160).collect();
            found.insert(format!("{} {line}", path.display()));
        }
    }
    Ok(found)
}

/// Cgroups of ours in every hierarchy. What is inside goes with them.
fn cgroups() -> Result<BTreeSet<String>> {
    let table = MountTable::read().context("cannot read the mount table")?;
    let mut found = BTreeSet::new();
    table.cgroups().for_each(|mount| our_cgroups(&mount.path, &mut found));
    Ok(found)
}

fn our_cgroups(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        // The fixed names are those that containerd and the kubelet use when nobody names others.
        if name.starts_with(OURS) || name == "k8s.io" || name.starts_with("kubepods") {
            found.insert(entry.path().display().to_string());
        } else {
            our_cgroups(&entry.path(), found);
        }
    }
}

fn files() -> BTreeSet<String> {
    let temp = std::env::temp_dir().display().to_string();
    names(&temp, |name| name.starts_with(OURS))
}

/// The names in a directory that need not exist.
fn names(dir: &str, keep: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| keep(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_process_and_directory_are_seen() {
        let before = Snapshot::take().unwrap();
        let dir = std::env::temp_dir().join(format!("longshore-leftovers-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut child = std::process::Command::new("tail")
            .args(["-f", "/dev/null"])
            .arg(dir.join("nothing"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The kernel shows the command line once the program is loaded.
        let mut left = Vec::new();
        for _ in 0..100 {
            left = before.left().unwrap();
            if left.iter().any(|one| one.contains("tail")) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir(&dir).unwrap();
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        assert!(left.contains(&format!("temporary file {name}")), "{left:?}");
        let process = |one: &&String| one.starts_with("process") && one.contains(&name);
        assert!(left.iter().any(|one| process(&one)), "{left:?}");
    }
}
