//! The two API servers.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use longshore_real_kube::{Cluster, Lifetime, Options, Program};

use super::work::Memory;
use crate::bench::{http::Server, kubeconfig::Kubeconfig};

const READY: Duration = Duration::from_secs(120);

/// One API server with what it stores in.
pub struct Side {
    pub label: &'static str,
    pub server: Server,
    /// How many objects were made so far; makes their names differ.
    pub made: Cell<usize>,
    programs: Vec<Program>,
    cluster: Option<Cluster>,
    dir: Option<tempfile::TempDir>,
    /// The administrator's.
    pub kubeconfig: PathBuf,
}

impl Side {
    /// etcd that waits for the disk, and kube-apiserver.
    pub fn theirs() -> Result<Self> {
        let interrupt = Some(crate::interrupt::flag()?);
        let cluster = Cluster::start(&Options { interrupt, ..Options::default() })?;
        let kubeconfig = cluster.kubeconfig().to_owned();
        let server = Server::new(&Kubeconfig::read(&kubeconfig)?)?;
        Ok(Self {
            kubeconfig,
            label: "etcd + kube-apiserver",
            server,
            made: Cell::new(0),
            programs: Vec::new(),
            cluster: Some(cluster),
            dir: None,
        })
    }

    /// `longshore apiserver`.
    pub fn ours(binary: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("longshore-bench-").tempdir()?;
        let program = start_ours(binary, dir.path())?;
        let kubeconfig = dir.path().join("data/kubeconfig");
        let server = Server::new(&Kubeconfig::read(&kubeconfig)?)?;
        Ok(Self {
            kubeconfig,
            label: "longshore apiserver",
            server,
            made: Cell::new(0),
            programs: vec![program],
            cluster: None,
            dir: Some(dir),
        })
    }

    /// The way to the store of the real one, past its API server.
    pub fn etcd(&self) -> Result<Option<Server>> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let keys = cluster.dir().join("pki");
        let read = |name: &str| {
            let file = keys.join(name);
            std::fs::read(&file).with_context(|| file.display().to_string())
        };
        let server = format!("https://127.0.0.1:{}", cluster.etcd_port().context("etcd's port")?);
        let config = Kubeconfig::of(server, read("ca.crt")?, read("etcd.crt")?, read("etcd.key")?);
        Server::new(&config).map(Some)
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        let cluster = self.cluster.as_ref().map(Cluster::dir);
        cluster.or(self.dir.as_ref().map(tempfile::TempDir::path)).unwrap_or(Path::new("/nowhere"))
    }

    fn pids(&self) -> Vec<u32> {
        let own = self.programs.iter().map(Program::pid);
        match &self.cluster {
            Some(cluster) if self.programs.is_empty() => {
                cluster.programs().iter().map(Program::pid).collect()
            }
            _ => own.collect(),
        }
    }

    /// Memory of all its processes together.
    pub fn memory(&self) -> Result<Memory> {
        let mut all = Memory::default();
        for pid in self.pids() {
            let one = Memory::of(pid)?;
            all.rss_kib += one.rss_kib;
            all.anonymous_kib += one.anonymous_kib;
        }
        Ok(all)
    }

    /// Ends the processes, starts them again, and waits until objects can be read.
    pub fn restart(&mut self) -> Result<f64> {
        let lines = self.pids().into_iter().map(Line::of).collect::<Result<Vec<_>>>()?;
        for program in self.programs.drain(..) {
            program.stop()?;
        }
        if let Some(cluster) = &self.cluster {
            // The API server first: it must not see its store go.
            for program in cluster.programs().iter().rev() {
                program.process().end(Duration::from_secs(30))?;
            }
        }
        let start = Instant::now();
        for (number, line) in lines.iter().enumerate() {
            let log = line.directory(self)?.join(format!("again-{number}.log"));
            let program = Program::start(&line.name, line.command(), &log, Lifetime::Owner)?;
            self.programs.push(program);
        }
        if self.dir.is_some() {
            wait_for_ready(self.programs.last_mut().context("a program")?)?;
        }
        while !self.answers() {
            anyhow::ensure!(start.elapsed() < READY, "{} did not come back", self.label);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn answers(&self) -> bool {
        let path = "/api/v1/persistentvolumes?limit=1";
        self.server.connect().and_then(|mut c| c.call("GET", path, None)).is_ok()
    }

    pub fn stop(self) -> Result<()> {
        for program in self.programs.into_iter().rev() {
            program.stop()?;
        }
        self.cluster.map_or(Ok(()), Cluster::stop)
    }
}

fn start_ours(binary: &Path, dir: &Path) -> Result<Program> {
    let mut command = Command::new(binary);
    // A port that was free a moment ago: it is the same after a restart.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
    command.arg("apiserver").args(["--listen", &free.to_string()]);
    command.arg("--data-dir").arg(dir.join("data"));
    let log = dir.join("apiserver.log");
    let mut program = Program::start("longshore", command, &log, Lifetime::Owner)?;
    wait_for_ready(&mut program)?;
    Ok(program)
}

fn wait_for_ready(program: &mut Program) -> Result<()> {
    let log = program.log().to_owned();
    let ready =
        || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready kubeconfig="));
    program.wait_until(READY, Some(&crate::interrupt::flag()?), ready)
}

/// How a process was started.
struct Line {
    name: String,
    args: Vec<String>,
}

impl Line {
    fn of(pid: u32) -> Result<Self> {
        let file = format!("/proc/{pid}/cmdline");
        let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
        let args: Vec<String> =
            text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
        let program = Path::new(args.first().context("an empty command line")?);
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, args })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.args[0]);
        command.args(&self.args[1..]);
        command
    }

    fn directory(&self, side: &Side) -> Result<PathBuf> {
        let ours = side.dir.as_ref().map(|dir| dir.path().to_owned());
        let theirs = side.cluster.as_ref().map(|cluster| cluster.dir().to_owned());
        ours.or(theirs).context("a directory")
    }
}
