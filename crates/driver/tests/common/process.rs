//! A driver in a process of its own, which can be killed.
//!
//! The process is this test program: a test file that uses it has a test `driver_process` that calls
//! [`serve_if_asked`], and a test `freeze_holder` that calls [`super::hold_freeze`].

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longshore_csi::Client;
use longshore_driver::fault::{Faults, Leak, POINTS};
use longshore_driver::{DriverConfig, DriverKind, Mode, PoolConfig};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::World;

/// The [`Spec`] of the process.
const ENV: &str = "LONGSHORE_TEST_DRIVER";

/// Before the [`Kill`] among a holder's arguments.
const HOLDER: &str = "kill-holder:";

/// What a process is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    world: PathBuf,
    kind: String,
    mode: String,
    node: String,
    kill: Option<Kill>,
    leak: Option<String>,
}

/// When to end what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    pub point: String,
    /// At which pass.
    pub times: u32,
    pub whom: Whom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whom {
    Driver,
    /// The child that holds a filesystem frozen.
    Holder,
    /// Holder and driver at once.
    Both,
}

impl Spec {
    pub fn new(world: &World, kind: DriverKind, node: &str) -> Self {
        Self {
            world: world.path(),
            kind: kind.to_string(),
            mode: Mode::All.to_string(),
            node: node.to_owned(),
            kill: None,
            leak: None,
        }
    }

    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: mode.to_string(), ..self }
    }

    pub fn kill(self, kill: Option<Kill>) -> Self {
        Self { kill, ..self }
    }

    pub fn leak(self, leak: Option<Leak>) -> Self {
        Self { leak: leak.map(|leak| format!("{leak:?}")), ..self }
    }

    fn socket(&self) -> PathBuf {
        self.world.join(format!("{}.sock", self.node))
    }

    /// Where holders count how often they passed the point.
    fn passes(&self) -> PathBuf {
        self.world.join("holder-passes")
    }

    /// Whether the holder was killed as wanted.
    pub fn holder_was_killed(&self) -> bool {
        let wanted = self.kill.as_ref().map_or(u32::MAX, |kill| kill.times);
        self.passes().metadata().is_ok_and(|meta| meta.len() >= u64::from(wanted))
    }

    fn config(&self) -> DriverConfig {
        let mut config = DriverConfig::new(self.kind.parse().expect("a kind"), &self.node);
        config.pools.push(PoolConfig::new("default", self.world.join("pool")));
        config.mode = self.mode.parse().expect("a mode");
        config.copy_budget = Duration::from_secs(60);
        let mut holder = super::freeze_holder();
        match &self.kill {
            Some(kill) if kill.whom == Whom::Driver => config.faults = kill_driver(kill),
            Some(kill) => {
                let order = serde_json::to_string(&(kill, self.passes())).expect("text");
                // The test harness has no argument for us, but one for names that are not there.
                holder.args.extend(["--skip".to_owned(), format!("{HOLDER}{order}")]);
            }
            None => {}
        }
        if let Some(leak) = &self.leak {
            let all = [Leak::VolumeImage, Leak::SnapshotImage, Leak::Device];
            let leak = all.into_iter().find(|one| format!("{one:?}") == *leak).expect("a leak");
            config.faults = config.faults.forgetting(leak);
        }
        config.freeze_holder = Some(holder);
        config
    }
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("killed");
}

fn kill_driver(order: &Kill) -> Faults {
    let (order, passed) = (order.clone(), AtomicU32::new(0));
    Faults::new(move |at| {
        assert!(POINTS.contains(&at), "{at} is not on the list");
        if at == order.point && passed.fetch_add(1, Ordering::SeqCst) + 1 == order.times {
            kill(getpid());
        }
    })
}

/// What a holder that may have to be killed does at its points.
pub fn holder_faults() -> Faults {
    let order = std::env::args().find_map(|arg| arg.strip_prefix(HOLDER).map(str::to_owned));
    let Some(order) = order else { return Faults::NONE };
    let (order, passes): (Kill, PathBuf) = serde_json::from_str(&order).expect("an order");
    Faults::new(move |at| {
        assert!(POINTS.contains(&at), "{at} is not on the list");
        if at == order.point && count_pass(&passes) == u64::from(order.times) {
            if order.whom == Whom::Both {
                kill(getppid().expect("a parent"));
            }
            kill(getpid());
        }
    })
}

fn count_pass(file: &Path) -> u64 {
    use std::io::Write;
    let mut file =
        std::fs::OpenOptions::new().create(true).append(true).open(file).expect("opened");
    file.write_all(b"x").expect("written");
    file.metadata().expect("measured").len()
}

/// Does nothing in an ordinary run. The process ends with its parent, whose end of standard input
/// closes.
pub fn serve_if_asked() {
    let Ok(text) = std::env::var(ENV) else { return };
    let spec: Spec = serde_json::from_str(&text).expect("a spec");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let socket = format!("unix://{}", spec.socket().display());
    let run = longshore_driver::run(spec.config(), &socket, CancellationToken::new());
    runtime.block_on(run).expect("served");
}

/// Dropping it is `kill -9`.
pub struct Process {
    child: Child,
    pub client: Client,
    pub spec: Spec,
}

impl Process {
    pub async fn start(spec: Spec) -> Self {
        let socket = spec.socket();
        // A child that the killed process had just forked holds the socket until its own exec.
        for _ in 0..10_000 {
            if std::os::unix::net::UnixStream::connect(&socket).is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "driver_process", "--nocapture"])
            .env(ENV, serde_json::to_string(&spec).expect("text"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let client = Client::connect(socket.display().to_string().into()).await.expect("connected");
        Self { child, client, spec }
    }

    /// Whether it is gone by `kill -9`. The end of a process may be seen a moment after the end of
    /// its socket, so this is worth waiting for, `patience` long.
    pub async fn was_killed(&mut self, patience: Duration) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let mut left = patience.as_millis() / 10;
        loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return status.signal() == Some(9);
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
