//! `longshore doctor`: whether this machine has what `longshore up` needs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use longshore_core::model::Quantity;
use longshore_driver::FsType;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::OpenTreeFlags;
use rustix::process::PidfdFlags;
use serde::Serialize;

use super::apiserver::DEFAULT_DATA_DIR;
use super::listen::{self, Listen};
use super::up::absolute;
use crate::cli::{self, Program, Syntax, Threads};
use crate::flags::{Logging, UsageError};

/// Below this, nothing useful fits.
const ROOM_NEEDED: u64 = 256 << 20;
const ROOM_WANTED: u64 = 2 << 30;

/// Flags of `longshore doctor`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The data directory that `longshore up` will have.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// The address that it will listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443", value_parser = listen::listen)]
    listen: Listen,
    /// How to show the findings.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// What `longshore doctor` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doctor {
    data_dir: PathBuf,
    listen: Listen,
    output: Output,
}

impl Program for Doctor {
    const NAME: &'static str = "doctor";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Check whether this machine has what `longshore up` needs";
    const EXAMPLES: &'static str = "longshore doctor\n  longshore doctor -o json";
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { data_dir, listen, output } = flags;
        Ok(Self { data_dir: absolute("--data-dir", data_dir)?, listen, output })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> Result<()> {
        let findings = self.look().await;
        let text = match self.output {
            Output::Text => table(&findings),
            Output::Json => serde_json::to_string_pretty(&findings)? + "\n",
        };
        cli::print(&text)?;
        let failed = findings.iter().filter(|one| one.state == State::Fail).count();
        if failed > 0 {
            bail!("{failed} of {} checks failed; `longshore up` needs them", findings.len());
        }
        Ok(())
    }
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Something that not everybody needs is missing.
    Warn,
    /// `longshore up` cannot do without.
    Fail,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    /// What is so.
    found: String,
    /// What to do about it; empty when all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: State::Ok, found: found.into(), advice: String::new() }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, state: State::Warn, found: found.into(), advice: advice.into() }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, state: State::Fail, found: found.into(), advice: advice.into() }
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|one| one.check.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { check, state, found, advice } in findings {
        let word = match state {
            State::Ok => "ok  ",
            State::Warn => "warn",
            State::Fail => "fail",
        };
        let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        let _ = writeln!(text, "{word}  {check:<width$}  {found}{advice}");
    }
    text
}

impl Doctor {
    async fn look(&self) -> Vec<Finding> {
        let mut all =
            vec![root(), kernel(), isolation(), loop_devices(Path::new("/dev/loop-control"))];
        all.extend([FsType::Ext4, FsType::Xfs, FsType::Btrfs].map(filesystem));
        all.push(cgroups(Path::new("/sys/fs/cgroup")));
        let holder = holder(&self.data_dir);
        all.push(data_dir(&self.data_dir, holder.as_deref()));
        all.push(room(&self.data_dir));
        all.push(port(&self.listen, holder.is_some()).await);
        all.push(kubectl());
        all
    }
}

fn root() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::ok("root", "this process is root");
    }
    Finding::fail("root", "this process is not root", "run longshore with sudo")
}

/// Calls of the kernel that there is no other way for.
fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let own = rustix::process::getpid();
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let calls = [
        (
            "openat2",
            rustix::fs::openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::IN_ROOT).err(),
        ),
        ("open_tree", rustix::mount::open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC).err()),
        ("pidfd_open", rustix::process::pidfd_open(own, PidfdFlags::empty()).err()),
    ];
    let missing = calls.iter().filter(|(_, error)| *error == Some(rustix::io::Errno::NOSYS));
    let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Finding::ok("kernel", format!("Linux {release}"));
    }
    let found = format!("Linux {release} has no {}", missing.join(", "));
    Finding::fail("kernel", found, "use Linux 5.10 or later")
}

/// What pods are kept apart with.
fn isolation() -> Finding {
    let spaces = ["mnt", "pid", "ipc", "uts", "cgroup"].map(|name| format!("/proc/self/ns/{name}"));
    let seccomp = "/proc/sys/kernel/seccomp/actions_avail".to_owned();
    let all = spaces.into_iter().chain([seccomp]);
    let missing: Vec<String> = all.filter(|file| !Path::new(file).exists()).collect();
    if missing.is_empty() {
        return Finding::ok("isolation", "the kernel has namespaces and seccomp");
    }
    let advice = "pods cannot be kept apart; use a kernel with namespaces and seccomp";
    Finding::fail("isolation", format!("there is no {}", missing.join(", ")), advice)
}

fn loop_devices(control: &Path) -> Finding {
    const CHECK: &str = "loop-devices";
    match OpenOptions::new().read(true).write(true).open(control) {
        Ok(_) => Finding::ok(CHECK, format!("{} can be opened", control.display())),
        Err(error) => {
            let advice = match error.kind() {
                std::io::ErrorKind::NotFound => "load the module with `modprobe loop`",
                std::io::ErrorKind::PermissionDenied => {
                    "run longshore with sudo; in a container, give it the loop devices"
                }
                _ => "volumes are image files on loop devices; see the kernel's log",
            };
            Finding::fail(CHECK, format!("{}: {error}", control.display()), advice)
        }
    }
}

/// The programs of a filesystem, and the kernel's part. The default class needs ext4.
fn filesystem(fstype: FsType) -> Finding {
    let tools = longshore_driver::format::tools();
    let own: Vec<_> = tools.iter().filter(|tool| tool.fstype == fstype).collect();
    let missing: Vec<&str> =
        own.iter().filter(|tool| !tool.installed).map(|tool| tool.name).collect();
    let packages: BTreeSet<&str> =
        own.iter().filter(|tool| !tool.installed).map(|tool| tool.package).collect();
    let packages: Vec<&str> = packages.into_iter().collect();
    let (check, problem): (_, fn(_, String, String) -> _) = match fstype {
        FsType::Ext4 => ("ext4", Finding::fail),
        FsType::Xfs => ("xfs", Finding::warn),
        FsType::Btrfs => ("btrfs", Finding::warn),
    };
    if !missing.is_empty() {
        let advice = format!("install {}", packages.join(", "));
        return problem(check, format!("{} not found", missing.join(", ")), advice);
    }
    let names: Vec<&str> = own.iter().map(|tool| tool.name).collect();
    if kernel_has(check) {
        return Finding::ok(check, names.join(", "));
    }
    let found = format!("{} are there, the kernel does not have {check} yet", names.join(", "));
    Finding::warn(check, found, format!("it is loaded on first use; try `modprobe {check}`"))
}

fn kernel_has(fstype: &str) -> bool {
    let text = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().next_back() == Some(fstype))
}

/// Where the processes of pods are counted and their devices judged.
fn cgroups(root: &Path) -> Finding {
    const CHECK: &str = "cgroups";
    let advice = "pods run, and what they use is not bounded; mount cgroup2 on /sys/fs/cgroup";
    let unified = fs::read_to_string(root.join("cgroup.controllers")).ok();
    let pids = match &unified {
        Some(controllers) => controllers.split_whitespace().any(|one| one == "pids"),
        None => root.join("pids").is_dir(),
    };
    let version = if unified.is_some() { "cgroup v2" } else { "cgroup v1" };
    if !pids {
        let found = format!("there is no pids controller below {}", root.display());
        return Finding::warn(CHECK, found, advice);
    }
    let place = if unified.is_some() { root.to_owned() } else { root.join("pids") };
    match rustix::fs::access(&place, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Finding::ok(CHECK, format!("{version} with the pids controller")),
        Err(error) => Finding::warn(CHECK, format!("{}: {error}", place.display()), advice),
    }
}

/// The process that holds the data directory.
fn holder(data_dir: &Path) -> Option<String> {
    let lock = fs::File::open(data_dir.join("lock")).ok()?;
    let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
    match rustix::fs::flock(&lock, shared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Some(fs::read_to_string(data_dir.join("lock")).ok()?.trim().to_owned())
        }
        _ => None,
    }
}

fn data_dir(dir: &Path, holder: Option<&str>) -> Finding {
    const CHECK: &str = "data-dir";
    let shown = dir.display();
    match (holder, dir.is_dir(), dir.exists()) {
        (Some(process), ..) => {
            Finding::ok(CHECK, format!("{shown} is in use by process {process}"))
        }
        (None, true, _) => Finding::ok(CHECK, format!("{shown} is there and free")),
        (None, false, true) => {
            Finding::fail(CHECK, format!("{shown} is no directory"), "choose another --data-dir")
        }
        (None, false, false) => Finding::ok(CHECK, format!("{shown} will be made")),
    }
}

fn room(dir: &Path) -> Finding {
    const CHECK: &str = "room";
    let there = dir.ancestors().find(|one| one.exists()).unwrap_or(Path::new("/"));
    let free = match rustix::fs::statvfs(there) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => {
            let advice = "choose a --data-dir that can be looked at";
            return Finding::fail(CHECK, format!("{}: {error}", there.display()), advice);
        }
    };
    let left = format!("{} left on the disk of {}", size(free), there.display());
    let advice = "volumes are image files there; free some, or choose another --data-dir or --pool";
    match free {
        ..ROOM_NEEDED => Finding::fail(CHECK, left, advice),
        ROOM_NEEDED..ROOM_WANTED => Finding::warn(CHECK, left, advice),
        _ => Finding::ok(CHECK, left),
    }
}

/// A size for people, with one digit after the point.
fn size(bytes: u64) -> String {
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    let Some((unit, shift)) = unit else {
        return Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX)).to_string();
    };
    let tenths = (bytes >> (shift - 10)) * 10 / 1024;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

async fn port(listen: &Listen, running: bool) -> Finding {
    const CHECK: &str = "port";
    match listen.bind().await {
        Ok(_) => Finding::ok(CHECK, format!("{listen} is free")),
        Err(error) if running && error.kind() == std::io::ErrorKind::AddrInUse => {
            Finding::ok(CHECK, format!("{listen} is in use, and so is the data directory"))
        }
        Err(error) => {
            Finding::fail(CHECK, format!("{listen}: {error}"), "choose another with --listen")
        }
    }
}

fn kubectl() -> Finding {
    const CHECK: &str = "kubectl";
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.is_file()) {
        Some(file) => Finding::ok(CHECK, file.display().to_string()),
        None => {
            let advice = "`longshore get`, `apply` and others do the same, or install kubectl";
            Finding::warn(CHECK, "not found on PATH", advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let none = loop_devices(&dir.path().join("loop-control"));
        assert_eq!((none.state, none.advice.contains("modprobe loop")), (State::Fail, true));
        fs::write(dir.path().join("loop-control"), "").unwrap();
        assert_eq!(loop_devices(&dir.path().join("loop-control")).state, State::Ok);
        assert_eq!(cgroups(dir.path()).state, State::Warn);
        fs::write(dir.path().join("cgroup.controllers"), "cpu pids\n").unwrap();
        assert_eq!(cgroups(dir.path()).found, "cgroup v2 with the pids controller");
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(data_dir(&dir.path().join("file"), None).state, State::Fail);
        assert_eq!(data_dir(&dir.path().join("new/dir"), None).state, State::Ok);
        assert!(
            room(&dir.path().join("new/dir")).found.ends_with(&dir.path().display().to_string())
        );
    }

    #[tokio::test]
    async fn a_port_in_use_fails_unless_an_instance_runs() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listen::listen(&taken.local_addr().unwrap().to_string()).unwrap();
        assert_eq!(port(&listen, false).await.state, State::Fail);
        assert_eq!(port(&listen, true).await.state, State::Ok);
    }

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (70 * (1 << 30) + 600 * (1 << 20), "70.5Gi"),
            (300 << 20, "300.0Mi"),
            (5 << 40, "5.0Ti"),
            (1 << 10, "1Ki"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn lines_say_state_check_finding_and_advice() {
        let findings =
            [Finding::ok("root", "yes"), Finding::fail("port", "taken", "choose another")];
        assert_eq!(table(&findings), "ok    root  yes\nfail  port  taken; choose another\n");
    }
}
