//! Running other programs.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

/// The top of the checkout.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs cargo in the checkout and shows the line it runs.
pub fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(program);
    command.current_dir(root()).args(args).envs(env.iter().copied());
    eprintln!("+ cargo {}", args.join(" "));
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

/// Builds the `longshore` binary of this checkout, unless `LONGSHORE_BIN` names another to use.
pub fn build_longshore() -> Result<()> {
    if std::env::var_os("LONGSHORE_BIN").is_some() {
        return Ok(());
    }
    cargo(&["build", "--package", "longshore"], &[])
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
