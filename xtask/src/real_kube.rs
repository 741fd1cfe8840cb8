//! The real Kubernetes programs: building them, starting and ending a cluster of them.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{
    Cluster, Controllers, Interrupt, Lifetime, Options, chart, state,
    tools::{self, Tool},
};

use crate::{image, interrupt, run, setup};

const USAGE: &str = "\
real-kube build [TOOL…]
real-kube up [--node] [--chart] [--rbac] [--audit] [--controllers none|volumes|all] [--no-scheduler]
real-kube down [DIR…]
real-kube suite [--binary FILE]";

/// Our image and chart on a cluster with a node: the image around `binary`, or around the release build. With `long`
/// also what takes minutes more.
pub fn suite(binary: Option<&Path>, long: bool) -> Result<()> {
    setup::prepare()?;
    let missing: Vec<Tool> = Tool::ALL.into_iter().filter(|tool| tool.pinned()).collect();
    tools::build(&missing, &|line| eprintln!("{line}"))?;
    let image = image::make_as(binary, chart::IMAGE)?;
    let archive = image.archive.display().to_string();
    let line = ["test", "--package", "longshore-real-kube", "--test", "chart", "--"];
    let line = [&line[..], &["--ignored", "--nocapture", "--test-threads=1"]].concat();
    let mut env = vec![("LONGSHORE_IMAGE", archive.as_str())];
    if long {
        env.push(("LONGSHORE_LONG", "1"));
    }
    run::cargo(&line, &env)
}

/// Installs the chart on a cluster that has a node.
fn install_chart(cluster: &Cluster) -> Result<()> {
    let image = image::make_as(None, chart::IMAGE)?;
    let node = cluster.node().context("--chart needs --node")?;
    node.import_archive(&image.archive)?;
    let values = cluster.dir().join("values.json");
    std::fs::write(&values, chart::values(cluster)?.to_string())
        .with_context(|| values.display().to_string())?;
    let mut helm = std::process::Command::new(tools::path(Tool::Helm)?);
    helm.args(["install", "longshore"]).arg(run::root().join("deploy/charts/longshore"));
    helm.args(["--namespace", "longshore-system", "--create-namespace", "--wait", "--values"]);
    helm.arg(values).env("KUBECONFIG", cluster.kubeconfig()).stdout(std::process::Stdio::null());
    for name in ["CACHE", "CONFIG", "DATA"] {
        helm.env(format!("HELM_{name}_HOME"), cluster.dir().join("helm"));
    }
    let status = helm.status().context("cannot run helm")?;
    anyhow::ensure!(status.success(), "helm install failed ({status})");
    eprintln!("the chart is installed in the namespace longshore-system");
    Ok(())
}

/// `real-kube build|up|down|suite`.
pub fn run(args: &[String]) -> Result<()> {
    match args {
        [task, names @ ..] if task == "build" => build(names),
        [task, flags @ ..] if task == "up" => up(flags),
        [task, dirs @ ..] if task == "down" => down(dirs),
        [task] if task == "suite" => suite(None, false),
        [task, flag, file] if task == "suite" && flag == "--binary" => {
            suite(Some(file.as_ref()), false)
        }
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
    let with_chart = flags.iter().any(|flag| flag == "--chart");
    let options = options(flags, Arc::clone(&interrupt))?;
    let wanted: Vec<Tool> =
        tools_of(&options).into_iter().filter(|tool| tools::path(*tool).is_err()).collect();
    tools::build(&wanted, &|line| eprintln!("{line}"))?;
    let cluster = Cluster::start(&options)?;
    let kubeconfig = cluster.kubeconfig().to_owned();
    if with_chart {
        install_chart(&cluster)?;
    }
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
            "--chart" => {
                (options.node, options.rbac, options.service_accounts) = (true, true, true);
            }
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
    if options.service_accounts {
        tools.push(Tool::Helm);
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
        let chart = parse("--node --chart").unwrap();
        assert!(chart.rbac && chart.service_accounts && tools_of(&chart).contains(&Tool::Helm));
        let small = parse("--rbac --controllers none --no-scheduler").unwrap();
        assert!(small.controllers == Controllers::None && !small.scheduler && small.rbac);
        assert_eq!(tools_of(&small), [Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl]);
        assert!(parse("--controllers some").is_err());
        assert!(parse("--controllers").is_err());
        assert!(parse("--pods").is_err());
    }
}
