//! `longshore reset`: ends everything of a data directory, then removes it.
//!
//! The order is that of a fence: processes, cgroups, mounts, loop devices. The directory goes last and only when nothing
//! of it is in use, so a reset that could not end something can simply be run again.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_files::{mounts::mounts_below, remove_tree};
use longshore_node::{ApiAddress, PodLimits};

use super::{NodeConfig, absolute, datadir::DataDir, fence};
use crate::cli::{self, Program, Syntax, Threads};
use crate::flags::{Logging, UsageError};
use crate::process::root;
use crate::programs::{apiserver::DEFAULT_DATA_DIR, pool::Pool};

/// Flags of `longshore reset`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The data directory to end and remove.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

/// What `longshore reset` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reset {
    data_dir: PathBuf,
    yes: bool,
}

impl Program for Reset {
    const NAME: &'static str = "reset";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str =
        "End the pods, mounts and loop devices of a data directory, and remove it with its volumes";
    const EXAMPLES: &'static str = "longshore reset --data-dir /var/lib/longshore";
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { data_dir, yes } = flags;
        Ok(Self { data_dir: absolute("--data-dir", data_dir)?, yes })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> Result<()> {
        root::require("reset")?;
        let shown = self.data_dir.display();
        if !self.data_dir.exists() {
            return cli::print(&format!("{shown} is not there; nothing to do\n"));
        }
        ensure!(
            is_ours(&self.data_dir),
            "{shown} is not a data directory of longshore: it has no file `lock` beside `api` or `nodes`; nothing was changed"
        );
        let data = DataDir::lock(&self.data_dir)?;
        let dir = data.path().to_owned();
        let nodes = nodes(&dir)?;
        if !self.yes && !confirmed(&dir, &nodes)? {
            return cli::print("nothing was changed\n");
        }
        end(&dir, &nodes).await?;
        remove(&dir)?;
        // Held until here, so that nobody starts in a directory that is going.
        drop(data);
        say_what_stays(&dir, &nodes)
    }
}

/// Whether an instance has been here.
fn is_ours(dir: &Path) -> bool {
    dir.join("lock").is_file() && ["api", "nodes"].iter().any(|name| dir.join(name).is_dir())
}

/// The nodes of a data directory: as they were run last, or as they are run by default.
pub(crate) fn nodes(dir: &Path) -> Result<Vec<NodeConfig>> {
    let mut found = Vec::new();
    for root in fence::entries(&dir.join("nodes"))? {
        let name = root.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        found.push(NodeConfig::load(&root).unwrap_or_else(|| usual(dir, &name)));
    }
    Ok(found)
}

/// A node of an instance that did not write down how it runs.
fn usual(dir: &Path, name: &str) -> NodeConfig {
    NodeConfig {
        node: name.to_owned(),
        data_dir: dir.to_owned(),
        root: dir.join("nodes").join(name),
        kubeconfig: dir.join("kubeconfig"),
        api_address: ApiAddress { host: String::new(), port: 0 },
        pools: vec![Pool { name: "default".to_owned(), dir: dir.join("pool").join(name) }],
        shared_pool: dir.join("pool-shared"),
        csi_endpoints: Vec::new(),
        stop_timeout: std::time::Duration::ZERO,
        run_any_image_on_host: false,
        limits: PodLimits::default(),
        only_node: true,
        first: true,
    }
}

/// Asks on the terminal; without one there is nobody to ask.
fn confirmed(dir: &Path, nodes: &[NodeConfig]) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("there is no terminal to ask on; say --yes to remove {}", dir.display());
    }
    let pods =
        nodes.iter().map(|node| fence::entries(&node.root.join("pods")).map(|all| all.len()));
    let pods: usize = pods.sum::<Result<usize>>()?;
    let mounts = mounts_below(dir).context("cannot read the mount table")?.len();
    let mut err = std::io::stderr().lock();
    write!(
        err,
        "This ends {pods} pod(s) and {mounts} mount(s) and removes {} with all objects and volumes in it.\nType yes to go on: ",
        dir.display()
    )?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// Ends every node; what could not be ended is named, all of it.
async fn end(dir: &Path, nodes: &[NodeConfig]) -> Result<()> {
    let mut trouble = Vec::new();
    for node in nodes {
        match fence::node(node).await {
            Ok(()) => cli::print(&format!(
                "node {}: pods ended, mounts undone, loop devices detached\n",
                node.node
            ))?,
            Err(error) => trouble.push(format!("node {}: {error:#}", node.node)),
        }
    }
    if let Err(error) = fence::unmount_below(dir) {
        trouble.push(format!("{error:#}"));
    }
    trouble.extend(loops_of(dir).into_iter().map(|(device, file)| {
        format!("{device} still holds {file}; end what uses it, then losetup -d {device}")
    }));
    if trouble.is_empty() {
        return Ok(());
    }
    bail!(
        "{} stays, because something of it could not be ended: {}",
        dir.display(),
        trouble.join("; ")
    )
}

/// Loop devices whose images are below a directory.
fn loops_of(dir: &Path) -> Vec<(String, String)> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let held = devices.filter_map(|device| {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let file = file.trim().to_owned();
        let name = format!("/dev/{}", device.file_name().to_string_lossy());
        Path::new(&file).starts_with(dir).then_some((name, file))
    });
    held.collect()
}

fn remove(dir: &Path) -> Result<()> {
    let mounts = mounts_below(dir).context("cannot read the mount table")?;
    ensure!(mounts.is_empty(), "{} stays: something is mounted at {mounts:?}", dir.display());
    remove_tree(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    cli::print(&format!("removed {}\n", dir.display()))
}

/// Pools elsewhere were chosen by the user: what is in them is theirs to remove.
fn say_what_stays(dir: &Path, nodes: &[NodeConfig]) -> Result<()> {
    let pools = nodes
        .iter()
        .flat_map(|node| node.pools.iter().map(|pool| &pool.dir).chain([&node.shared_pool]));
    let mut outside: Vec<&PathBuf> =
        pools.filter(|pool| !pool.starts_with(dir) && pool.exists()).collect();
    outside.sort();
    outside.dedup();
    for pool in outside {
        let pool = pool.display();
        cli::print(&format!("the pool {pool} is outside of it and stays; remove it yourself\n"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_data_directory_is_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_ours(dir.path()));
        std::fs::write(dir.path().join("lock"), "").unwrap();
        assert!(!is_ours(dir.path()), "a lock alone may be anybody's");
        std::fs::create_dir(dir.path().join("api")).unwrap();
        assert!(is_ours(dir.path()));
    }

    #[test]
    fn a_node_is_ended_as_it_was_run() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeConfig {
            pools: vec![Pool { name: "fast".into(), dir: "/fast".into() }],
            ..usual(dir.path(), "b")
        };
        node.save().unwrap();
        std::fs::create_dir_all(dir.path().join("nodes/a")).unwrap();
        let mut found = nodes(dir.path()).unwrap();
        found.sort_by(|one, other| one.node.cmp(&other.node));
        assert_eq!(found, [usual(dir.path(), "a"), node]);
    }
}
