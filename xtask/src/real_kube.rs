//! The real Kubernetes programs: building them, starting and ending a cluster of them.

use anyhow::{Result, bail};
use longshore_real_kube::tools::{self, Tool};

/// `real-kube build [TOOL…]`.
pub fn run(args: &[String]) -> Result<()> {
    match args {
        [task, names @ ..] if task == "build" => build(names),
        _ => bail!("say `real-kube build [TOOL…]`"),
    }
}

fn build(names: &[String]) -> Result<()> {
    let log = |line: &str| eprintln!("{line}");
    if !names.is_empty() {
        let tools: Result<Vec<Tool>, _> = names.iter().map(|name| Tool::named(name)).collect();
        tools::build(&tools?, &log)?;
        return Ok(());
    }
    let (pinned, brought): (Vec<Tool>, Vec<Tool>) =
        Tool::ALL.into_iter().partition(|tool| tool.pinned());
    tools::build(&pinned, &log)?;
    eprintln!("{} tools are in {}", pinned.len(), tools::cache_dir().display());
    let missing: Vec<&str> =
        brought.into_iter().filter(|tool| tools::path(*tool).is_err()).map(Tool::program).collect();
    if !missing.is_empty() {
        let names = missing.join(", ");
        eprintln!(
            "left out, as they cannot be pinned (bring them in ${}): {names}",
            tools::BROUGHT
        );
    }
    Ok(())
}
