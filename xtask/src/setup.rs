//! What the tests need from the machine, and how to get it.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use longshore_real_kube::{
    node,
    tools::{self, Tool, ToolError},
};

use crate::golden;

/// Programs that the tests run, and the Debian package of each.
const TOOLS: &[(&str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("fsfreeze", "util-linux"),
    ("losetup", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("cc", "gcc"),
    ("curl", "curl"),
    ("fish", "fish"),
    ("zsh", "zsh"),
];

/// Installs missing packages when root; otherwise says what is missing and goes on.
pub fn prepare() -> Result<()> {
    let own = TOOLS.iter().filter(|(tool, _)| !present(tool)).map(|(_, package)| *package);
    // Once, before tests that run at the same time each find them missing.
    let mut missing: Vec<&str> = own.chain(node::missing_packages()).collect();
    missing.sort_unstable();
    missing.dedup();
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

/// Builds the real programs that are missing, installing Go when there is none.
///
/// Where that cannot be done, tests that need them say SKIPPED, and one line here says why; with
/// `LONGSHORE_TEST_STRICT=1` it is a failure.
pub fn real_tools() -> Result<()> {
    let strict = strict();
    for tool in Tool::ALL.into_iter().filter(|tool| tool.pinned()) {
        // Each on its own: one that cannot be built does not take the others along.
        if tools::path(tool).is_ok() {
            continue;
        }
        match tools::build(&[tool], &|line| eprintln!("{line}")) {
            Ok(()) => {}
            Err(error) if strict => return Err(error.into()),
            // Without Go none of the others can be built either.
            Err(error @ ToolError::Go { .. }) => {
                eprintln!("tests against the real Kubernetes will say SKIPPED: {error}");
                return Ok(());
            }
            Err(error) => {
                eprintln!("tests that need {} will say SKIPPED: {error}", tool.program());
            }
        }
    }
    Ok(())
}

/// The Python that has the Kubernetes client. Where it cannot be made, its test says SKIPPED, and one
/// line here says why; with `LONGSHORE_TEST_STRICT=1` it is a failure.
pub fn python_client() -> Result<String> {
    match golden::python::client() {
        Ok(program) => Ok(program.display().to_string()),
        Err(error) if strict() => Err(error),
        Err(error) => {
            eprintln!("the test of the Python client will say SKIPPED: {error:#}");
            Ok(String::new())
        }
    }
}

/// `PATH` for the tests, with the pinned kubectl before any other: transcripts depend on its version.
pub fn path_with_kubectl() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let kubectl = tools::path(Tool::Kubectl).ok();
    match kubectl.as_deref().and_then(Path::parent) {
        Some(dir) => format!("{}:{path}", dir.display()),
        None => path,
    }
}

/// Builds those of these real programs that are missing.
pub fn build(tools: &[Tool]) -> Result<()> {
    let missing: Vec<Tool> =
        tools.iter().copied().filter(|tool| tools::path(*tool).is_err()).collect();
    tools::build(&missing, &|line| eprintln!("{line}"))?;
    Ok(())
}

/// Whether something left out is a failure.
pub fn strict() -> bool {
    std::env::var("LONGSHORE_TEST_STRICT").is_ok_and(|value| value == "1")
}

/// Installs packages that a task cannot do without, or says which they are.
pub fn install_or_say(packages: &[&str]) -> Result<()> {
    if !root_user() {
        bail!("missing: install {} (Debian package)", packages.join(" "));
    }
    install(packages)
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

/// Whether this runs as root.
pub fn root_user() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    uids.split_whitespace().nth(1) == Some("0")
}
