//! The private view of the machine in which a node lives.
//!
//! A node has mount and pid namespaces of its own, held by a process 1 that does nothing. So two
//! nodes do not meet in the fixed places that containerd and the kubelet use, and when process 1
//! ends, the kernel ends every process of the node, its shims and pods included, and drops its mounts.
//! The network is the machine's: the node has one address on an interface whose other end is in a
//! network namespace of process 1, so the interface goes with it too.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::packages;
use super::traces::{self, Namespace};
use crate::process::Process;
use crate::program::{Interrupt, Lifetime, Program};

const SCRIPT: &str = include_str!("machine.sh");
const RECORD: &str = "machine.json";
/// How many nodes can be on one machine.
const NODES: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(30);

/// What another process needs to end a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    /// The process that waits for process 1, and process 1 itself.
    pub(super) processes: Vec<Process>,
    /// Its name in every cgroup hierarchy.
    pub(super) cgroup: String,
    /// Its network interface.
    pub(super) link: Option<String>,
    /// Its pid namespace.
    pub(super) namespace: Option<u64>,
}

impl Record {
    /// Reads the record of a node, if there ever was one.
    pub(super) fn load(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(RECORD);
        if !file.exists() {
            return Ok(None);
        }
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let record = serde_json::from_str(&text);
        Ok(Some(record.with_context(|| format!("cannot read {}", file.display()))?))
    }

    fn save(&self, dir: &Path) -> Result<()> {
        let part = dir.join("machine.part");
        fs::write(&part, serde_json::to_string(self)?)
            .and_then(|()| fs::rename(&part, dir.join(RECORD)))
            .with_context(|| format!("cannot write the record of the node in {}", dir.display()))
    }

    /// Ends all processes of the node and removes what is left in the kernel.
    pub(super) fn end(&self, dir: &Path) -> Result<()> {
        let namespace = self.hold_namespace();
        // Process 1 last in the list, first to end: it takes all the others with it.
        for process in self.processes.iter().rev() {
            process.end(Duration::ZERO).with_context(|| format!("cannot end {}", process.name))?;
        }
        traces::remove(self, dir, namespace.as_ref())
    }

    /// The pid namespace, while process 1 runs. After its end the kernel gives the number to the next
    /// namespace that another process makes, unless it is held like this; and no other process is in it then.
    fn hold_namespace(&self) -> Option<Namespace> {
        let init = self.processes.last()?;
        let held = Namespace::of(init.pid).ok()?;
        (Some(held.number()) == self.namespace && init.runs()).then_some(held)
    }
}

/// A running private view of the machine.
#[derive(Debug)]
pub(super) struct Machine {
    dir: PathBuf,
    holder: Option<Program>,
    record: Record,
    init: u32,
    number: u32,
}

impl Machine {
    /// Makes the view; `name` names the node's cgroup.
    pub(super) fn start(
        dir: &Path,
        name: &str,
        lifetime: Lifetime,
        interrupt: Option<&Interrupt>,
    ) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.env("PATH", packages::search_path());
        command.args(["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]);
        let script = longshore_testing::without_volumes_of_others(dir) + SCRIPT;
        command.args(["sh", "-c", &script, "longshore-node"]).arg(dir).arg(name);
        let record =
            Record { processes: Vec::new(), cgroup: name.to_owned(), link: None, namespace: None };
        record.save(dir)?;
        let log = dir.join("machine.log");
        let holder = Program::start("the node's process 1", command, &log, lifetime)?;
        let mut machine =
            Self { dir: dir.to_owned(), holder: Some(holder), record, init: 0, number: 0 };
        machine.settle(interrupt)?;
        Ok(machine)
    }

    fn settle(&mut self, interrupt: Option<&Interrupt>) -> Result<()> {
        let ready = self.dir.join("machine.ready");
        let holder = self.holder.as_mut().context("the node has no process 1")?;
        self.record.processes.push(holder.process().clone());
        self.record.save(&self.dir)?;
        let waited = holder.wait_until(TIMEOUT, interrupt, || ready.exists());
        waited.context("cannot make the node's private view of the machine")?;
        let init = child_of(holder.pid())?;
        self.init = init.pid;
        self.record.namespace = Some(Namespace::of(init.pid)?.number());
        self.record.processes.push(init);
        self.record.save(&self.dir)?;
        self.connect()
    }

    /// Takes a number that no other node of this machine has. The interface of that name is the claim.
    fn connect(&mut self) -> Result<()> {
        let init = self.init.to_string();
        for step in 0..NODES {
            // Neighbours rarely start at the same number.
            self.number = (std::process::id() + step) % NODES;
            let link = format!("lsrk{}", self.number);
            let peer = ["type", "veth", "peer", "name", "node", "netns", &init];
            match ip(&[&["link", "add", &link][..], &peer].concat()) {
                Ok(()) => {
                    let address = format!("{}/32", self.address());
                    ip(&["address", "add", &address, "dev", &link])?;
                    ip(&["link", "set", &link, "up"])?;
                    self.record.link = Some(link);
                    return self.record.save(&self.dir);
                }
                Err(error) if error.to_string().contains("File exists") => {}
                Err(error) => return Err(error.context("the node needs a network interface")),
            }
        }
        bail!("all {NODES} numbers for nodes are taken on this machine")
    }

    /// Gives the machine's end of the node's interface another address, which goes with it.
    pub(super) fn add_address(&self, address: &str) -> Result<()> {
        let link = self.record.link.as_deref().context("the node has no network interface")?;
        ip(&["address", "add", &format!("{address}/32"), "dev", link])
    }

    /// The node's address. The range is set aside for tests of networks, so no other host has it.
    pub(super) fn address(&self) -> Ipv4Addr {
        let [_, _, high, low] = (self.number + 1).to_be_bytes();
        Ipv4Addr::new(198, 19, high, low)
    }

    /// The addresses of its pods.
    pub(super) fn pods(&self) -> String {
        let [_, _, high, low] = (self.number * 64).to_be_bytes();
        format!("198.18.{high}.{low}/26")
    }

    /// The command as it is run inside.
    pub(super) fn inside(&self, command: &Command) -> Command {
        let mut outer = Command::new("nsenter");
        outer.args(["--target", &self.init.to_string(), "--mount", "--pid", "--"]);
        outer.arg(command.get_program()).args(command.get_args());
        outer.env("PATH", packages::search_path());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => outer.env(key, value),
                None => outer.env_remove(key),
            };
        }
        outer
    }

    /// Starts a program inside. Its log is beside the others.
    pub(super) fn run(&self, name: &str, command: &Command, life: Lifetime) -> Result<Inside> {
        let log = self.dir.join(format!("{name}.log"));
        let outer = Program::start(name, self.inside(command), &log, life)?;
        let inner = child_of(outer.pid());
        let inner = inner.with_context(|| format!("{name} ended at once:\n{}", outer.tail()))?;
        Ok(Inside { outer, inner })
    }

    /// Lets the node run on without this process.
    pub(super) fn release(mut self) {
        if let Some(holder) = self.holder.take() {
            let _ = holder.release();
        }
    }

    /// Ends the node with everything in it.
    pub(super) fn end(&mut self) -> Result<()> {
        let Some(holder) = self.holder.take() else { return Ok(()) };
        let ended = self.record.end(&self.dir);
        ended.and(holder.stop())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error:#}");
        }
    }
}

/// A program inside the node: the one that waits for it outside, and itself.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) outer: Program,
    inner: Process,
}

impl Inside {
    /// Ends it: SIGTERM, and SIGKILL after `grace`.
    pub(super) fn stop(self, grace: Duration) -> Result<()> {
        let name = self.outer.name().to_owned();
        self.inner.end(grace).with_context(|| format!("cannot end {name}"))?;
        self.outer.stop()
    }

    /// Its pid, as the machine counts.
    pub(super) fn pid(&self) -> u32 {
        self.inner.pid
    }
}

/// The one child of a process, once it is there.
fn child_of(parent: u32) -> Result<Process> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let found = processes().into_iter().find(|(_, of)| *of == parent);
        if let Some(child) = found.and_then(|(pid, _)| Process::of("child", pid)) {
            return Ok(child);
        }
        let running = Process::of("parent", parent).is_some_and(|process| process.runs());
        if !running || Instant::now() >= end {
            bail!("process {parent} has no child");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// All processes with their parents.
fn processes() -> Vec<(u32, u32)> {
    let parent = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

fn ip(args: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    let output = command.env("PATH", packages::search_path()).args(args).output();
    let output = output.context("cannot run ip")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("ip {}: {}", args.join(" "), why.trim());
    }
    Ok(())
}
