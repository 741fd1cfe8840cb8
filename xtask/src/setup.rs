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

/// `PATH` for the tests, with a kubectl on it if there is any way to get one.
///
/// Debian's own kubectl is too old, so a missing one is built from a pinned Go module into a cache
/// directory outside the checkout. Without Go the kubectl tests say SKIPPED.
pub fn path_with_kubectl() -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    if present("kubectl") {
        return Ok(path);
    }
    if !present("go") {
        eprintln!("neither kubectl nor go is here: kubectl tests will say SKIPPED");
        return Ok(path);
    }
    let dir = cache_dir().join("kubectl-0.32.4");
    if !dir.join("kubectl").is_file() {
        eprintln!("building kubectl (once, a few minutes)");
        std::fs::create_dir_all(&dir)?;
        let version = "v1.32.4";
        let flags = format!(
            "-X k8s.io/component-base/version.gitVersion={version} -X k8s.io/client-go/pkg/version.gitVersion={version}"
        );
        let status = Command::new("go")
            .current_dir(crate::run::root().join("tests/real-kube/tools/kubectl"))
            .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
            .arg(dir.join("kubectl"))
            .arg(".")
            .status()?;
        if !status.success() {
            bail!("building kubectl failed ({status})");
        }
    }
    Ok(format!("{}:{path}", dir.display()))
}

fn cache_dir() -> std::path::PathBuf {
    let home = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from).or_else(|| {
        std::env::var_os("HOME").map(|home| std::path::PathBuf::from(home).join(".cache"))
    });
    home.unwrap_or_else(std::env::temp_dir).join("longshore-tools")
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
