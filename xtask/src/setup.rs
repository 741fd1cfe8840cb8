//! What the tests need from the machine, and how to get it.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

/// Programs that the tests run, and the Debian package of each.
const TOOLS: [(&str, &str); 5] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("losetup", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("cc", "gcc"),
];

/// Installs missing packages when root; otherwise says what is missing and goes on.
pub fn prepare() -> Result<()> {
    let missing: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| !present(tool)).map(|(_, package)| *package).collect();
    if !root_user() {
        eprintln!("not root: tests that mount or use loop devices will say SKIPPED");
        if !missing.is_empty() {
            eprintln!("missing packages: {}", missing.join(" "));
        }
        return Ok(());
    }
    if !missing.is_empty() {
        install(&missing)?;
    }
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    eprintln!("installing {}", packages.join(" "));
    apt(&["update"])?;
    let mut line = vec!["install", "--yes", "--no-install-recommends"];
    line.extend(packages);
    apt(&line)
}

fn apt(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet=2").args(args);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("apt-get {} failed ({status})", args.join(" ")),
        Err(error) => bail!("cannot start apt-get: {error}"),
    }
}

/// Looks a program up on `PATH` and where Debian keeps system tools.
fn present(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).to_path_buf());
    std::env::split_paths(&path).chain(fixed).any(|dir| dir.join(tool).is_file())
}

fn root_user() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    uids.split_whitespace().nth(1) == Some("0")
}
