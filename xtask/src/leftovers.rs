//! Proof that a run left nothing behind: mounts, loop devices, processes, temporary files.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// What the machine held at one moment.
pub struct Snapshot {
    mounts: BTreeSet<String>,
    loops: BTreeSet<String>,
    processes: BTreeSet<String>,
    files: BTreeSet<String>,
}

impl Snapshot {
    /// Looks at the machine now.
    pub fn take() -> Result<Self> {
        Ok(Self { mounts: mounts()?, loops: loops()?, processes: processes()?, files: files()? })
    }

    /// Writes the snapshot into the target directory.
    pub fn save(&self) -> Result<()> {
        let sets = [&self.mounts, &self.loops, &self.processes, &self.files];
        let text = serde_json::to_string(&sets)?;
        fs::create_dir_all(run::root().join("target"))?;
        fs::write(file(), text).context("cannot write the snapshot")
    }

    /// Reads what [`Snapshot::save`] wrote.
    pub fn load() -> Result<Self> {
        let text = fs::read_to_string(file()).context("no snapshot: run `leftovers save` first")?;
        let [mounts, loops, processes, files] = serde_json::from_str(&text)?;
        Ok(Self { mounts, loops, processes, files })
    }

    /// Looks again and fails when something is there that was not.
    pub fn compare(&self) -> Result<()> {
        // A process that has just been told to end may take a moment to be gone.
        let mut left = self.left()?;
        for _ in 0..20 {
            if left.is_empty() {
                eprintln!("nothing left behind: no mount, loop device, process or temporary file");
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(250));
            left = self.left()?;
        }
        bail!("left behind:\n  {}", left.join("\n  "))
    }

    fn left(&self) -> Result<Vec<String>> {
        let now = Self::take()?;
        let pairs = [
            ("mount", &self.mounts, &now.mounts),
            ("loop device", &self.loops, &now.loops),
            ("process", &self.processes, &now.processes),
            ("temporary file", &self.files, &now.files),
        ];
        let left = pairs.into_iter().flat_map(|(what, before, after)| {
            after.difference(before).map(move |one| format!("{what} {one}"))
        });
        Ok(left.collect())
    }
}

fn file() -> std::path::PathBuf {
    run::root().join("target/leftovers.json")
}

fn mounts() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mount table")?;
    Ok(text.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect())
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

/// Our own programs that are still running.
fn processes() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let path = entry?.path();
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.starts_with("longshore") {
            let line = fs::read_to_string(path.join("cmdline")).unwrap_or_default();
            found.insert(format!("{} {}", path.display(), line.replace('\0', " ").trim()));
        }
    }
    Ok(found)
}

fn files() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(std::env::temp_dir()).context("cannot read the temp directory")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("longshore") {
            found.insert(name);
        }
    }
    Ok(found)
}
