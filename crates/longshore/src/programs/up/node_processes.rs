//! Several nodes, each a child process, and what happens when one of them ends.
//!
//! A node whose process ended is not started again: its pods may well go on writing, so its volumes
//! stay where they are. An operator who knows better says so with the taint
//! `node.kubernetes.io/out-of-service`. Then the node is fenced, see [`fence`], and only after that its
//! pods are deleted and its volumes can go elsewhere. Without the taint the node starts again.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use longshore_cluster::{Api, Cache, Recorder, Scope};
use longshore_core::model::{ObjectKey, keys::taints, kinds::Node};
use longshore_core::words;
use longshore_driver::DriverConfig;
use longshore_files::write_private;
use tokio::{
    process::{Child, Command},
    sync::Notify,
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::NodeConfig;
use super::{
    drivers::{self, RunningDriver},
    fence, outage,
};
use crate::programs::internal;

/// How much longer than its pods' grace a child may take to stop.
const STOP_SLACK: Duration = Duration::from_secs(30);
/// Pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The child processes of several nodes.
pub(super) struct NodeProcesses {
    api: Api,
    recorder: Recorder,
    nodes: Vec<NodeProcess>,
    stop_driver: CancellationToken,
    tasks: JoinSet<Result<()>>,
    stop_deadline: Duration,
    _recording: DropGuard,
}

/// The child process of one node.
struct NodeProcess {
    config: NodeConfig,
    child: Option<Child>,
    state: State,
}

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Its process runs.
    Up,
    /// Its process ended, as told; whether everybody knows of it.
    Down { why: String, told: bool },
    /// Nothing of it is left.
    Fenced,
}

impl NodeProcesses {
    /// No nodes yet. Each gets `stop_timeout`, and some more, to stop.
    pub(super) fn new(api: &Api, stop_timeout: Duration) -> Self {
        let recording = CancellationToken::new();
        let (recorder, _) = Recorder::start(api, "longshore-up", "", &recording);
        Self {
            api: api.clone(),
            recorder,
            nodes: Vec::new(),
            stop_driver: CancellationToken::new(),
            tasks: JoinSet::new(),
            stop_deadline: stop_timeout + STOP_SLACK,
            _recording: recording.drop_guard(),
        }
    }

    /// Serves the controller side of a driver that all nodes share.
    pub(super) async fn serve(
        &mut self,
        config: DriverConfig,
        socket: PathBuf,
    ) -> Result<RunningDriver> {
        drivers::serve_one(config, socket, &mut self.tasks, &self.stop_driver).await
    }

    /// Starts one more node.
    pub(super) async fn start(&mut self, config: NodeConfig) -> Result<()> {
        // It may have ended in an earlier life of this instance.
        outage::back(&self.api, &config.node).await?;
        let child = Some(spawn(&config)?);
        self.nodes.push(NodeProcess { config, child, state: State::Up });
        Ok(())
    }

    /// Looks after the nodes until the signal.
    ///
    /// # Errors
    /// When the driver that they share ends.
    pub(super) async fn watch(&mut self, signal: &CancellationToken) -> Result<()> {
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let (nodes, _task) = Cache::<Node>::start(&self.api, Scope::all(), &stop);
        let changed = Arc::new(Notify::new());
        let wake = changed.clone();
        let _notified = nodes.subscribe(move |_| wake.notify_one());
        loop {
            let Some(settled) = signal.run_until_cancelled(self.settle(&nodes)).await else {
                return Ok(());
            };
            let retry = async {
                match settled {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(AGAIN).await,
                }
            };
            tokio::select! {
                () = signal.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next() => {
                    ended??;
                    bail!("the driver that all nodes share has ended");
                }
                (at, why) = next_end(&mut self.nodes) => self.nodes[at].ended(why),
                () = changed.notified() => {}
                () = retry => {}
            }
        }
    }

    /// Brings every node to where it should be; false when that has to be tried again.
    async fn settle(&mut self, nodes: &Cache<Node>) -> bool {
        let mut settled = true;
        for one in &mut self.nodes {
            let stored = nodes.get(&ObjectKey::cluster(&one.config.node));
            let out = stored.is_some_and(|node| {
                node.spec.taints.iter().any(|taint| taint.key == taints::OUT_OF_SERVICE)
            });
            if let Err(error) = one.settle(out, &self.api, &self.recorder).await {
                let node = &one.config.node;
                tracing::error!(
                    node,
                    error = words::causes_of(error.chain()),
                    retry_in = words::time(AGAIN),
                    "the node cannot be put in order"
                );
                settled = false;
            }
        }
        settled
    }

    /// Stops every node. Of one that has ended before, nothing may be left either.
    pub(super) async fn stop(mut self) -> Result<()> {
        for one in &self.nodes {
            one.ask_to_stop()?;
        }
        let mut trouble = Vec::new();
        for one in &mut self.nodes {
            if let Err(error) = one.stopped(self.stop_deadline).await {
                trouble.push(format!(
                    "node {}: {}",
                    one.config.node,
                    words::causes_of(error.chain())
                ));
            }
        }
        self.stop_driver.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a driver's task ended abnormally")??;
        }
        if !trouble.is_empty() {
            bail!("{}", trouble.join("; "));
        }
        Ok(())
    }
}

impl NodeProcess {
    fn ended(&mut self, why: String) {
        tracing::error!(
            node = self.config.node,
            "its process {why}; its pods may go on and its volumes stay. Taint the node with {} to end \
             them for certain, or start this instance again",
            taints::OUT_OF_SERVICE
        );
        self.child = None;
        self.state = State::Down { why, told: false };
    }

    async fn settle(&mut self, out_of_service: bool, api: &Api, recorder: &Recorder) -> Result<()> {
        let node = &self.config.node;
        match &mut self.state {
            State::Up | State::Down { .. } if out_of_service => {
                if let Some(child) = &mut self.child {
                    child.kill().await.context("cannot end the process of the node")?;
                    self.child = None;
                    // Should the fence fail: everybody has to know that the node is down.
                    self.state = State::Down { why: "was ended to fence it".into(), told: false };
                }
                fence::node(&self.config).await.context("cannot fence the node")?;
                outage::fenced(api, recorder, node).await?;
                self.state = State::Fenced;
            }
            State::Fenced if !out_of_service => {
                self.child = Some(spawn(&self.config)?);
                self.state = State::Up;
                tracing::info!(node, "back in service");
                outage::back(api, node).await?;
            }
            State::Down { why, told: told @ false } => {
                outage::down(api, node, why).await?;
                *told = true;
            }
            State::Up | State::Down { .. } | State::Fenced => {}
        }
        Ok(())
    }

    fn ask_to_stop(&self) -> Result<()> {
        let pid = self.child.as_ref().and_then(Child::id);
        let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) else { return Ok(()) };
        let pid = rustix::process::Pid::from_raw(pid).context("a child without a number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("cannot ask a node to stop")
    }

    async fn stopped(&mut self, stop_deadline: Duration) -> Result<()> {
        let Some(child) = &mut self.child else {
            return match self.state {
                State::Fenced => Ok(()),
                _ => fence::node(&self.config).await,
            };
        };
        match tokio::time::timeout(stop_deadline, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => bail!("it ended with {status}"),
            Ok(Err(error)) => Err(error).context("it cannot be waited for"),
            Err(_) => bail!("it did not stop in time"),
        }
    }
}

/// Waits for the next process of a node to end.
async fn next_end(nodes: &mut [NodeProcess]) -> (usize, String) {
    let waits = nodes.iter_mut().enumerate().filter_map(|(at, one)| {
        let child = one.child.as_mut()?;
        Some(Box::pin(async move { (at, told(child.wait().await)) }))
    });
    let waits: Vec<_> = waits.collect();
    if waits.is_empty() {
        return std::future::pending().await;
    }
    futures::future::select_all(waits).await.0
}

fn told(ended: std::io::Result<ExitStatus>) -> String {
    match ended {
        Ok(status) => format!("ended ({status})"),
        Err(error) => format!("cannot be waited for ({error})"),
    }
}

/// Starts a node as a child and writes its process id down.
fn spawn(node: &NodeConfig) -> Result<Child> {
    let file = node.save()?;
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(exe);
    command.arg(internal::UP_NODE).arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    end_with_parent(&mut command);
    let child = command.spawn().with_context(|| format!("cannot start node {}", node.node))?;
    let pid = child.id().context("the node ended at once")?;
    let pid_file = node.root.join("pid");
    write_private(&pid_file, format!("{pid}\n"))
        .with_context(|| format!("cannot write {}", pid_file.display()))?;
    Ok(child)
}

/// The child gets SIGKILL when the thread that started it ends, so a killed instance leaves no
/// agent behind that a later one would have to compete with.
#[expect(unsafe_code, reason = "a pre-exec hook is the only way to set the parent-death signal")]
fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended before the signal was set.
            let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
            if now != i32::try_from(parent).ok() {
                return Err(std::io::Error::other("the main process has ended"));
            }
            Ok(())
        });
    }
}
