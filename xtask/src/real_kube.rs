//! The real Kubernetes programs: building them, starting and ending a cluster of them.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{
    Cluster, Controllers, Interrupt, Lifetime, Options, state,
    tools::{self, Tool},
};

use crate::interrupt;

const USAGE: &str = "\
real-kube build [TOOL…]
real-kube up [--node] [--rbac] [--audit] [--controllers none|volumes|all] [--no-scheduler]
real-kube down [DIR…]";

/// `real-kube build|up|down`.
pub fn run(args: &[String]) -> Result<()> {
    match args {
        [task, names @ ..] if task == "build" => build(names),
        [task, flags @ ..] if task == "up" => up(flags),
        [task, dirs @ ..] if task == "down" => down(dirs),
        _ => bail!("say one of\n{USAGE}"),
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

/// Starts a cluster that outlives this process. An interrupt half-way ends what was started.
fn up(flags: &[String]) -> Result<()> {
    let interrupt = interrupt::flag()?;
    let options = options(flags, Arc::clone(&interrupt))?;
    let wanted: Vec<Tool> =
        tools_of(&options).into_iter().filter(|tool| tools::path(*tool).is_err()).collect();
    tools::build(&wanted, &|line| eprintln!("{line}"))?;
    let cluster = Cluster::start(&options)?;
    let kubeconfig = cluster.kubeconfig().to_owned();
    if interrupt.load(Ordering::Relaxed) {
        bail!("interrupted; everything that was started is ended");
    }
    let dir = cluster.leave_running()?;
    let kubectl = tools::path(Tool::Kubectl)?;
    let bin = kubectl.parent().context("kubectl is in a directory")?;
    println!("export KUBECONFIG={}", kubeconfig.display());
    println!("export PATH={}:$PATH", bin.display());
    println!("# directory: {0}; end it with: cargo xtask real-kube down {0}", dir.display());
    Ok(())
}

fn options(flags: &[String], interrupt: Interrupt) -> Result<Options> {
    let mut options = Options {
        controllers: Controllers::All,
        scheduler: true,
        lifetime: Lifetime::Detached,
        interrupt: Some(interrupt),
        ..Options::default()
    };
    let mut flags = flags.iter().map(String::as_str);
    while let Some(flag) = flags.next() {
        match flag {
            "--node" => options.node = true,
            "--rbac" => options.rbac = true,
            "--audit" => options.audit = true,
            "--scheduler" => options.scheduler = true,
            "--no-scheduler" => options.scheduler = false,
            "--controllers" => options.controllers = controllers(flags.next().unwrap_or_default())?,
            other => bail!("real-kube up has no flag {other:?}; say\n{USAGE}"),
        }
    }
    Ok(options)
}

fn controllers(name: &str) -> Result<Controllers> {
    match name {
        "none" => Ok(Controllers::None),
        "volumes" => Ok(Controllers::Volumes),
        "all" => Ok(Controllers::All),
        other => bail!("--controllers is none, volumes or all, not {other:?}"),
    }
}

fn tools_of(options: &Options) -> Vec<Tool> {
    let mut tools = vec![Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl];
    if options.controllers != Controllers::None {
        tools.push(Tool::KubeControllerManager);
    }
    if options.scheduler {
        tools.push(Tool::KubeScheduler);
    }
    if options.node {
        tools.push(Tool::Kubelet);
    }
    tools
}

/// Ends the clusters named, or all whose owner has ended.
fn down(dirs: &[String]) -> Result<()> {
    let dirs: Vec<PathBuf> =
        if dirs.is_empty() { state::unowned()? } else { dirs.iter().map(PathBuf::from).collect() };
    if dirs.is_empty() {
        eprintln!("no cluster was left running");
    }
    let mut failed = Vec::new();
    for dir in dirs {
        match state::end(&dir) {
            Ok(ended) => eprintln!(
                "{}: {ended} programs ended; no process, mount or file is left",
                dir.display()
            ),
            Err(error) => failed.push(format!("{}: {error:#}", dir.display())),
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let flags: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        options(&flags, Interrupt::default())
    }

    #[test]
    fn flags_of_up() {
        let all = parse("").unwrap();
        assert!(all.controllers == Controllers::All && all.scheduler && !all.rbac);
        assert_eq!(all.lifetime, Lifetime::Detached);
        let node = parse("--node").unwrap();
        assert!(node.node && !all.node);
        assert!(tools_of(&node).contains(&Tool::Kubelet));
        let small = parse("--rbac --controllers none --no-scheduler").unwrap();
        assert!(small.controllers == Controllers::None && !small.scheduler && small.rbac);
        assert_eq!(tools_of(&small), [Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl]);
        assert!(parse("--controllers some").is_err());
        assert!(parse("--controllers").is_err());
        assert!(parse("--pods").is_err());
    }
}
