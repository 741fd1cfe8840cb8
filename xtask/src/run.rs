//! Running other programs.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

/// The top of the checkout.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where cargo puts what it builds.
pub fn target_dir() -> Result<PathBuf> {
    let text = output("cargo", &["metadata", "--no-deps", "--format-version", "1", "--locked"])?;
    let metadata: serde_json::Value = serde_json::from_str(&text).context("cargo metadata")?;
    let dir =
        metadata["target_directory"].as_str().context("cargo metadata: no target_directory")?;
    Ok(PathBuf::from(dir))
}

/// Runs cargo in the checkout and shows the line it runs.
pub fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let mut command = cargo_command();
    command.current_dir(root()).args(args).envs(env.iter().copied());
    eprintln!("+ cargo {}", args.join(" "));
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

/// Runs cargo at the lowest priority, for work beside tests.
pub fn cargo_gently(args: &[&str]) -> Result<()> {
    let cargo = cargo_command();
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(cargo.get_program()).args(args).current_dir(root());
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    eprintln!("+ nice cargo {}", args.join(" "));
    let status = command.status().context("cannot start nice")?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

/// A cargo that sees the environment of the caller's shell, not that of `cargo xtask`.
///
/// `cargo xtask` sets `CARGO_MANIFEST_DIR`, `CARGO_PKG_NAME` and more for xtask itself. Build
/// scripts of dependencies watch some of them; passed on, they would be rebuilt each time.
pub fn cargo_command() -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Builds the `longshore` binary of this checkout, unless `LONGSHORE_BIN` names another to use.
pub fn build_longshore() -> Result<()> {
    if std::env::var_os("LONGSHORE_BIN").is_some() {
        return Ok(());
    }
    cargo(&["build", "--workspace", "--bin", "longshore"], &[])
}

/// Runs a program and returns its standard output.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
    let done = Command::new(program)
        .current_dir(root())
        .args(args)
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !done.status.success() {
        let text = String::from_utf8_lossy(&done.stderr);
        bail!("`{program} {}` failed: {}", args.join(" "), text.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
