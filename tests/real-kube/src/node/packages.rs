//! What a node needs from the machine beside the Kubernetes programs.

use std::{env, fs, path::PathBuf, process::Command, sync::Mutex};

use anyhow::{Context as _, Result, bail};

use crate::tools::{self, Tool};

/// Programs, and the Debian package of each.
const PROGRAMS: [(&str, &str); 8] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("losetup", "mount"),
];
/// Where network plugins may be.
const PLUGIN_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const PLUGINS: [&str; 3] = ["ptp", "host-local", "loopback"];
/// Where a busybox may be.
const BUSYBOX: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

/// The programs of the machine that a node uses.
#[derive(Debug, Clone)]
pub(super) struct Packages {
    pub(super) containerd: PathBuf,
    /// Where containerd looks for its shim and for runc.
    pub(super) path: String,
    pub(super) ctr: PathBuf,
    pub(super) plugins: PathBuf,
    pub(super) busybox: PathBuf,
}

impl Packages {
    /// Finds everything, after installing what is missing when root.
    pub(super) fn get() -> Result<Self> {
        // One installer at a time: the package manager has one lock.
        static ONE: Mutex<()> = Mutex::new(());
        let _held = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let missing = missing();
        if !missing.is_empty() {
            install(&missing)?;
        }
        let (Some(containerd), Some(ctr)) = (find("containerd"), find("ctr")) else {
            bail!("containerd is not there although its package was installed");
        };
        let plugins =
            plugins().context("no network plugins: install containernetworking-plugins")?;
        let busybox = busybox().context("no static busybox: install busybox-static")?;
        Ok(Self { containerd, path: search_path(), ctr, plugins, busybox })
    }

    /// Takes the pinned containerd with its shim. runc and ctr stay the machine's.
    pub(super) fn pin_containerd(&mut self) -> Result<()> {
        self.containerd = tools::path(Tool::Containerd)?;
        let shim = tools::path(Tool::ContainerdShim)?;
        let dir = shim.parent().context("the shim has no directory")?;
        self.path = format!("{}:{}", dir.display(), search_path());
        Ok(())
    }
}

/// Packages that are missing.
pub(super) fn missing() -> Vec<&'static str> {
    let mut found: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if plugins().is_none() {
        found.push("containernetworking-plugins");
    }
    if busybox().is_none() {
        found.push("busybox-static");
    }
    found.dedup();
    found
}

/// Whether this process may do what a node needs.
pub(super) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !root() || find("apt-get").is_none() {
        bail!("a node needs the packages {list}: install them");
    }
    eprintln!("installing {list}");
    apt(&["update"])?;
    let mut line = vec!["install", "--yes", "--no-install-recommends"];
    line.extend(packages);
    apt(&line)
}

fn apt(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["--quiet=2", "--option=DPkg::Lock::Timeout=300"]).args(args);
    let output = command.output().context("cannot start apt-get")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("apt-get {} failed ({}): {}", args.join(" "), output.status, why.trim());
    }
    Ok(())
}

/// `PATH` with the places where Debian keeps system programs.
pub(super) fn search_path() -> String {
    let path = env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

fn find(program: &str) -> Option<PathBuf> {
    let path = search_path();
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn plugins() -> Option<PathBuf> {
    let whole = |dir: &PathBuf| PLUGINS.iter().all(|name| dir.join(name).is_file());
    PLUGIN_DIRS.iter().map(PathBuf::from).find(whole)
}

/// A busybox that needs no libraries: an image holds nothing else.
fn busybox() -> Option<PathBuf> {
    let fixed = |file: &PathBuf| fs::read(file).is_ok_and(|bytes| statically_linked(&bytes));
    BUSYBOX.iter().map(PathBuf::from).find(fixed)
}

/// Whether a 64-bit little-endian ELF file asks for no loader (program header kind 3).
fn statically_linked(elf: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| {
        let field = elf.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let headers = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count).map(|index| number(start + index * size, 4)).collect::<Option<Vec<_>>>()
    };
    elf.starts_with(b"\x7fELF\x02\x01") && headers().is_some_and(|kinds| !kinds.contains(&3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        // A test program of this build has a loader.
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        assert!(own.starts_with(b"\x7fELF"));
        assert!(!statically_linked(&own));
        assert!(!statically_linked(b"#!/bin/sh"));
        assert!(!statically_linked(b"\x7fELF\x02\x01"));
    }
}
