//! Programs that end and come back on their ports, and further API servers on the same store.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::Cluster;
use super::control_plane::TIMEOUT;
use crate::program::Program;
use crate::tools::{self, Tool};

/// How a program was started that serves a port.
pub(super) struct Served {
    pub(super) port: u16,
    pub(super) tool: Tool,
    pub(super) name: String,
    pub(super) line: Vec<String>,
}

impl Cluster {
    /// Starts a further API server on the same store, with the flags of the first; gives its port.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn add_apiserver(&mut self) -> Result<u16> {
        let flags = self.apiserver_flags.clone();
        self.launch_apiserver(&flags)
    }

    /// The ports of the API servers, the first one first.
    #[must_use]
    pub fn apiserver_ports(&self) -> Vec<u16> {
        self.ports_of(Tool::KubeApiserver)
    }

    /// The port of the store.
    #[must_use]
    pub fn etcd_port(&self) -> Option<u16> {
        self.ports_of(Tool::Etcd).first().copied()
    }

    /// The directory of the store's data.
    #[must_use]
    pub fn etcd_data(&self) -> Option<PathBuf> {
        let etcd = self.served.iter().find(|one| one.tool == Tool::Etcd)?;
        etcd.line.iter().find_map(|flag| flag.strip_prefix("--data-dir=")).map(PathBuf::from)
    }

    /// The flags of the program that serves a port.
    ///
    /// # Errors
    /// When there is none.
    pub fn flags_at(&self, port: u16) -> Result<&[String]> {
        Ok(&self.at(port)?.line)
    }

    /// Ends the program that serves a port: in an orderly way, or with SIGKILL as a crash would.
    ///
    /// # Errors
    /// When there is none, or it cannot be ended.
    pub fn end_at(&mut self, port: u16, crash: bool) -> Result<()> {
        let name = &self.at(port)?.name;
        let place = self.programs.iter().position(|one| one.name() == name);
        let program = self.programs.remove(place.context("it does not run")?);
        if crash { program.kill() } else { program.stop() }
    }

    /// Starts the program of a port again, with the flags that it had, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn begin_again_at(&mut self, port: u16) -> Result<()> {
        let Served { tool, name, line, .. } = self.at(port)?;
        let (tool, name) = (*tool, name.clone());
        let mut command = Command::new(tools::path(tool)?);
        command.args(line).current_dir(self.dir());
        let log = self.dir().join(format!("{name}.log"));
        let mut program = Program::start(&name, command, &log, self.lifetime)?;
        self.record(program.process())?;
        let https = self.https.clone();
        let ready = || super::control_plane::is_ready(&https, tool, port);
        program.wait_until(TIMEOUT, self.interrupt.as_ref(), ready)?;
        self.programs.push(program);
        Ok(())
    }

    fn ports_of(&self, tool: Tool) -> Vec<u16> {
        self.served.iter().filter(|one| one.tool == tool).map(|one| one.port).collect()
    }

    fn at(&self, port: u16) -> Result<&Served> {
        let found = self.served.iter().find(|one| one.port == port);
        found.with_context(|| format!("no program of the cluster serves port {port}"))
    }
}
