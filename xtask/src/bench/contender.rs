//! Who is measured, and one turn of each.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use longshore_real_kube::{Cluster, Lifetime, Program};

use super::{
    audit::{Mark, Requests},
    http::Server,
    load::{self, Burst},
    process::{self, Memory, Peak},
};

/// Claims before the measured ones: connections are open and caches filled when those come.
const WARM_UP: usize = 10;
/// What each claim asks for.
const SIZE: &str = "1Mi";
/// How long a program is left alone before its memory is read. Also refills the Go client's bucket
/// after the warm-up.
const QUIET: Duration = Duration::from_secs(5);
/// The line about a request is written after its answer was sent.
const AUDIT_DELAY: Duration = Duration::from_millis(500);

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Go,
    Ours,
}

/// A program with flags.
#[derive(Debug, Clone, Copy)]
pub struct Contender {
    pub id: &'static str,
    pub label: &'static str,
    pub side: Side,
    pub flags: &'static [&'static str],
}

const LIFTED: &[&str] = &["--kube-api-qps=500", "--kube-api-burst=1000"];
const AS_GO: &[&str] = &["--kube-api-qps=5", "--kube-api-burst=10"];

/// All of them: default flags, the Go client's throttle lifted, and ours with the Go client's default.
pub const ALL: [Contender; 5] = [
    Contender { id: "go", label: "Go", side: Side::Go, flags: &[] },
    Contender { id: "go-500", label: "Go 500/s", side: Side::Go, flags: LIFTED },
    Contender { id: "ours", label: "ours", side: Side::Ours, flags: &[] },
    Contender { id: "ours-500", label: "ours 500/s", side: Side::Ours, flags: LIFTED },
    Contender { id: "ours-5", label: "ours 5/s", side: Side::Ours, flags: AS_GO },
];

/// What is divided by what, and the heading of the ratio.
pub const PAIRS: [(&str, &str, &str); 3] = [
    ("ours", "go", "ours ÷ Go"),
    ("ours-500", "go-500", "both 500/s"),
    ("ours-5", "go", "both 5/s"),
];

/// What one turn showed.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Figures {
    pub burst: Burst,
    pub idle: Memory,
    pub peak_rss_kib: u64,
    pub after: Memory,
    pub cpu_seconds: f64,
    /// Of the API server, for everybody who asks it: the program, the binder and the load generator.
    pub server_cpu_seconds: f64,
    /// What the program received from the API server, as it came over the wire.
    pub received_bytes: u64,
    pub requests: Requests,
}

/// What all turns have in common.
pub struct Ring<'a> {
    pub cluster: &'a Cluster,
    pub server: &'a Server,
    pub audit: PathBuf,
    pub driver: &'a Path,
    pub go: PathBuf,
    pub ours: PathBuf,
    pub claims: usize,
}

impl Ring<'_> {
    /// Starts a program, lets it make and delete the claims, and ends it.
    pub fn turn(&self, one: Contender, round: usize) -> Result<Figures> {
        let name = format!("r{round}-{}", one.id);
        let user = format!("bench-{}", one.id);
        let mut program = self.start(one, &name, &user)?;
        let measured = self.measure(&program, &name, &user);
        let failed =
            || format!("{} in round {round}; its log ends:\n{}", one.label, program.tail());
        let figures = measured.with_context(failed)?;
        anyhow::ensure!(program.runs(), "{} ended by itself in round {round}", one.label);
        program.stop()?;
        Ok(figures)
    }

    fn start(&self, one: Contender, name: &str, user: &str) -> Result<Program> {
        let mut command = match one.side {
            Side::Go => Command::new(&self.go),
            Side::Ours => {
                let mut command = Command::new(&self.ours);
                command.arg("provisioner");
                command
            }
        };
        let kubeconfig = self.cluster.kubeconfig_for(user, &[])?;
        command.arg("--kubeconfig").arg(kubeconfig).arg("--csi-address").arg(self.driver);
        command.args(one.flags).env_remove("KUBECONFIG");
        let log = self.cluster.dir().join(format!("{name}.log"));
        Program::start(one.label, command, &log, Lifetime::Owner)
    }

    fn measure(&self, program: &Program, name: &str, user: &str) -> Result<Figures> {
        let pid = program.pid();
        load::burst(self.server, &format!("{name}-warm"), WARM_UP, load::CLASS, SIZE)?.delete()?;
        std::thread::sleep(QUIET);
        let idle = process::memory(pid)?;
        let (mark, cpu) = (Mark::now(self.audit.clone())?, process::cpu_seconds(pid)?);
        let server = self.cluster.apiserver_pid().context("the API server's pid")?;
        let (server_cpu, received) =
            (process::precise_cpu_seconds(server)?, process::received_bytes(pid)?);
        let peak = Peak::of(pid);
        let burst = load::burst(self.server, name, self.claims, load::CLASS, SIZE)?.delete()?;
        let (peak_rss_kib, cpu_seconds) = (peak.kib(), process::cpu_seconds(pid)? - cpu);
        let server_cpu_seconds = process::precise_cpu_seconds(server)? - server_cpu;
        let received_bytes = process::received_bytes(pid)?.saturating_sub(received);
        std::thread::sleep(AUDIT_DELAY);
        let requests = mark.requests_of(user)?;
        std::thread::sleep(QUIET);
        let after = process::memory(pid)?;
        Ok(Figures {
            burst,
            idle,
            peak_rss_kib,
            after,
            cpu_seconds,
            server_cpu_seconds,
            received_bytes,
            requests,
        })
    }
}
