//! One pod's life on this node.
//!
//! The worker waits for the pod's volumes, starts what [`longshore_core::stage::lifecycle`] says,
//! reports, and at the end goes the way back in this order: containers stopped, volumes
//! unmounted, directory removed, API object deleted. So a claim is never free under a mount.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Api, ApiError, DeleteParams, EventType, Patch, Recorder, clock};
use longshore_core::model::kinds::{Container, Pod};
use longshore_core::model::{ObjectRef, PodPhase, Uid};
use longshore_core::stage::lifecycle::{
    self, Next, Phase, RestartPolicy, Run, View, crash_delay_ms,
};
use longshore_core::stage::paths::NodePaths;
use longshore_core::stage::populate;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::admission;
use super::cgroups::Cgroups;
use super::deadline;
use super::environment::{StartError, environment};
use super::evict::Measuring;
use super::hidden::hidden_dirs;
use super::memory::unmount_memory;
use super::pod_dir::remove_pod_dir;
use super::refresh::Refreshing;
use super::results;
use super::run_spec::PodRun;
use super::shim_client::{ShimClient, ShimProgram, ShimView, changed, kill_leftovers};
use super::status::Waiting;
use super::termination::Messages;
use crate::registration::Registrar;
use crate::shim::protocol::{LogLimit, Request, now_ms, read_runs, shim_dir};
use crate::volumes::VolumeManager;

/// Grace for a pod whose object is already gone.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
const DEFAULT_GRACE_SECONDS: i64 = 30;
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// What the workers of all pods share.
pub(crate) struct PodDeps {
    pub api: Api,
    pub recorder: Recorder,
    pub volumes: Arc<VolumeManager>,
    pub paths: NodePaths,
    pub shim: ShimProgram,
    pub hidden: Vec<PathBuf>,
    pub run_any_image: bool,
    pub cgroups: Cgroups,
    pub log_limit: LogLimit,
    /// Set when the agent ends and takes its pods along; the value cuts their grace.
    pub stop_pods: watch::Receiver<Option<Duration>>,
    pub registrar: Arc<Registrar>,
    /// How long a pod waits for its volumes before the worker checks whether the node is full.
    pub mount_timeout: Duration,
    pub faults: crate::fault::Faults,
    /// Environment variables of every container.
    pub services: Vec<(String, String)>,
    /// How often files from the API are looked at again.
    pub files_period: Duration,
}

/// Runs one pod from its volumes to its end; see the module.
pub(crate) struct Worker {
    pub(super) deps: Arc<PodDeps>,
    pub(super) pod: Arc<Pod>,
    updates: watch::Receiver<Option<Arc<Pod>>>,
    shim: Option<ShimClient>,
    /// Kept, so that only changes wake the worker.
    shim_view: Option<watch::Receiver<ShimView>>,
    /// What the last decision saw; reports speak of nothing newer.
    pub(super) seen: ShimView,
    pub(super) messages: Messages,
    crashes: BTreeMap<String, (u32, u32)>,
    pub(super) volumes: Option<BTreeMap<String, PathBuf>>,
    /// Those of its volumes that the node makes itself, by name; `None` before they are made.
    pub(super) own_volumes: Option<BTreeMap<String, PathBuf>>,
    pub(super) waiting: Waiting,
    written: Option<Value>,
    pub(super) since: jiff::Timestamp,
    /// It was found when the agent started.
    first_pass: bool,
    /// When to check whether the node is full, if its volumes are not there.
    full_check_at: Instant,
    pub(super) rejected: bool,
    pub(super) measuring: Measuring,
    pub(super) refreshing: Refreshing,
}

/// Why the worker stops its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The pod object is being deleted.
    Deleted,
    /// The pod object is gone.
    Gone,
    /// The agent ends and takes the pod along.
    Agent(Duration),
}

impl Worker {
    pub(crate) fn new(
        deps: Arc<PodDeps>,
        pod: Arc<Pod>,
        updates: watch::Receiver<Option<Arc<Pod>>>,
        first_pass: bool,
    ) -> Self {
        Self {
            first_pass,
            full_check_at: Instant::now() + deps.mount_timeout,
            rejected: false,
            measuring: Measuring::new(&pod),
            refreshing: Refreshing::new(&pod, deps.files_period),
            deps,
            pod,
            updates,
            shim: None,
            shim_view: None,
            seen: ShimView::default(),
            messages: Messages::default(),
            crashes: BTreeMap::new(),
            volumes: None,
            own_volumes: None,
            waiting: Waiting::new("ContainerCreating", ""),
            written: None,
            since: clock::now(),
        }
    }

    pub(super) fn uid(&self) -> &Uid {
        &self.pod.metadata.uid
    }

    fn dir(&self) -> PathBuf {
        self.deps.paths.pod(self.uid())
    }

    /// Runs the pod to its end. The future may be dropped at any time: the pod goes on under its
    /// shim and a later worker adopts it.
    pub(crate) async fn run(mut self) {
        let over = if self.pod.finished() || self.refused() || self.refused_for_good().await {
            self.wait_for_stop().await
        } else {
            self.live().await
        };
        self.end(over).await;
    }

    /// What this node cannot run is refused once and for all; what it ignores is said.
    fn refused(&mut self) -> bool {
        if let Some(parts) = admission::not_enforced(&self.pod, self.deps.cgroups.uncounted())
            .filter(|_| self.pod.status.start_time.is_none())
        {
            let text =
                format!("this node runs pods as host processes and does not enforce: {parts}");
            self.event(EventType::Warning, "NotEnforced", &text);
        }
        let refusal = admission::foreign_image(&self.pod).filter(|_| !self.deps.run_any_image);
        let Some(text) = refusal else { return false };
        self.event(EventType::Warning, "Failed", &text);
        self.waiting = Waiting::new("ErrImageNeverPull", text);
        true
    }

    /// What a pod may not ask for ends it before it begins, as at the kubelet's admission.
    async fn refused_for_good(&mut self) -> bool {
        let Some(refusal) = admission::refusal(&self.pod) else { return false };
        // One that an earlier version ran without a word.
        if let Ok(shim) = ShimClient::adopt(&self.dir()).await {
            self.shim = shim;
        }
        if !self.reject(refusal.reason, &refusal.text).await {
            self.waiting = Waiting::new("CreateContainerConfigError", refusal.text);
        }
        true
    }

    /// Volumes, then containers, until the pod has to stop.
    async fn live(&mut self) -> Stop {
        let view = populate::View {
            first_pass: self.first_pass,
            terminating: self.pod.metadata.deleting(),
            over: false,
        };
        if populate::wants(&view) {
            self.deps.volumes.add_pod(&self.pod);
        }
        let mut volumes = self.deps.volumes.changes();
        loop {
            if let Some(stop) = self.stop_reason() {
                return stop;
            }
            let next = self.step().await;
            self.report(&next).await;
            if next.phase.is_over() {
                self.finish().await;
                return self.wait_for_stop().await;
            }
            let mut stop = self.deps.stop_pods.clone();
            tokio::select! {
                _ = self.updates.changed() => {}
                _ = stop.changed() => {}
                _ = volumes.changed(), if self.volumes.is_none() => {}
                () = tokio::time::sleep_until(self.full_check_at), if self.volumes.is_none() => {
                    if self.reject_if_full().await {
                        return self.wait_for_stop().await;
                    }
                }
                () = self.measuring.due(), if self.volumes.is_some() => {
                    if self.evict_if_over().await {
                        return self.wait_for_stop().await;
                    }
                }
                () = self.refreshing.due(), if self.volumes.is_some() => self.refresh_files().await,
                () = until(deadline::at_ms(&self.pod, self.since)) => {
                    self.end_at_deadline().await;
                    return self.wait_for_stop().await;
                }
                () = changed(self.shim_view.as_mut()) => {}
                () = until(next.wake_at_ms) => {}
                () = tokio::time::sleep(RETRY), if self.waiting.reason == "CreateContainerConfigError" => {}
            }
        }
    }

    /// One pass: decides from the shim's view, and starts what was decided.
    async fn step(&mut self) -> Next {
        if !self.volumes_ready().await || !self.shim_ready().await {
            return pending();
        }
        let next = self.decide(false);
        for (name, attempt) in &next.start {
            if let Err(error) = self.start(name, *attempt).await {
                let message = error.to_string();
                if self.waiting.message != message {
                    self.event(EventType::Warning, "Failed", &format!("Error: {message}"));
                }
                self.waiting = Waiting::new("CreateContainerConfigError", message);
                return next;
            }
        }
        for name in &next.end {
            self.signal(name, libc::SIGTERM).await;
        }
        if next.start.is_empty() { next } else { self.decide(false) }
    }

    async fn shim_ready(&mut self) -> bool {
        if self.shim.as_ref().is_some_and(|shim| shim.view().borrow().gone) {
            // Its containers died with it; their runs are recorded as lost.
            self.shim = None;
            self.shim_view = None;
            kill_leftovers(&self.dir()).await;
        }
        if let Some(shim) = self.shim.take_if(|shim| shim.is_idle_and_old()) {
            shim.quit().await;
        }
        if self.shim.is_some() {
            return true;
        }
        match ShimClient::open(&self.deps.shim, &self.dir()).await {
            Ok(shim) => {
                self.deps.faults.at("shim.started");
                self.shim_view = Some(shim.view());
                self.shim = Some(shim);
                true
            }
            Err(error) => {
                self.event(EventType::Warning, "FailedCreatePodSandBox", &error.to_string());
                self.waiting = Waiting::new("CreateContainerConfigError", error.to_string());
                false
            }
        }
    }

    fn shim_state(&mut self) -> ShimView {
        if let Some(view) = &mut self.shim_view {
            return view.borrow_and_update().clone();
        }
        let runs =
            read_runs(&self.dir()).into_iter().map(|run| ((run.name.clone(), run.attempt), run));
        ShimView { gone: true, runs: runs.collect() }
    }

    pub(super) fn decide(&mut self, stopping: bool) -> Next {
        let view = self.shim_state();
        self.seen = view.clone();
        let pod = self.pod.clone();
        let facts = |worker: &mut Self, list: &[Container]| -> Vec<(String, bool, Run)> {
            list.iter()
                .map(|one| {
                    let sidecar = one.restart_policy.as_deref() == Some("Always");
                    (one.name.clone(), sidecar, worker.newest_run(&view, &one.name))
                })
                .collect()
        };
        let (init, main) =
            (facts(self, &pod.spec.init_containers), facts(self, &pod.spec.containers));
        let (init, main) = (borrow(&init), borrow(&main));
        let policy = RestartPolicy::parse(&pod.spec.restart_policy);
        lifecycle::decide(&View { init: &init, main: &main, policy, stopping, now_ms: now_ms() })
    }

    fn newest_run(&mut self, view: &ShimView, name: &str) -> Run {
        let Some(run) = view.newest(name) else { return Run::Never };
        let Some(outcome) = &run.outcome else { return Run::Running { attempt: run.attempt } };
        let lasted = outcome.finished_at_ms.saturating_sub(run.started_at_ms);
        // Counted once per ended run; after a restart of the agent the attempt number stands in.
        let (seen, crashes) = self.crashes.get(name).copied().unwrap_or((u32::MAX, run.attempt));
        let crashes = match (seen == run.attempt, lasted >= lifecycle::BACKOFF_RESET_MS) {
            (true, _) => crashes,
            (false, true) => 1,
            (false, false) => crashes + 1,
        };
        self.crashes.insert(name.to_owned(), (run.attempt, crashes));
        let may_restart_at_ms = outcome.finished_at_ms + crash_delay_ms(crashes);
        Run::Ended { attempt: run.attempt, exit_code: outcome.exit_code, may_restart_at_ms }
    }

    async fn start(&mut self, name: &str, attempt: u32) -> Result<(), StartError> {
        let all = self.pod.spec.init_containers.iter().chain(&self.pod.spec.containers);
        let container = all.into_iter().find(|one| one.name == name);
        let container = container.ok_or_else(|| "no such container".to_owned())?;
        let env = environment(&self.deps.api, &self.deps.services, &self.pod, container).await?;
        let none = BTreeMap::new();
        let pod_run = PodRun {
            log_limit: self.deps.log_limit,
            cgroups: &self.deps.cgroups,
            pod: &self.pod,
            paths: &self.deps.paths,
            hidden: &hidden_dirs(&self.deps.hidden),
            volumes: self.volumes.as_ref().unwrap_or(&none),
        };
        let message_file = self.message_file(container, attempt);
        let run = pod_run.container(container, attempt, env, message_file)?;
        let shim = self.shim.as_ref().ok_or_else(|| "the pod has no shim".to_owned())?;
        if shim.is_old() {
            let text = "an earlier version began this pod and isolates it less; make the pod anew";
            self.event(EventType::Warning, "NotEnforced", text);
        }
        let mut view = shim.view();
        shim.tell(&Request::Start(Box::new(run))).await?;
        self.deps.faults.at("container.told");
        // Heard before the next decision, or it would be started twice.
        let known = |view: &ShimView| {
            view.gone || view.newest(name).is_some_and(|run| run.attempt >= attempt)
        };
        let _ = view.wait_for(known).await;
        self.deps.faults.at("container.started");
        self.event(EventType::Normal, "Started", &format!("Started container {name}"));
        Ok(())
    }

    async fn signal(&self, name: &str, signal: i32) {
        if let Some(shim) = &self.shim
            && let Err(error) = shim.tell(&Request::Signal { name: name.to_owned(), signal }).await
        {
            tracing::debug!(%error, "cannot signal the container");
        }
    }

    async fn report(&mut self, next: &Next) {
        let status = self.status(next);
        // A pod that ran before the agent did still runs, or will again: its phase does not go back.
        let back = next.phase == Phase::Pending && self.pod.status.phase == PodPhase::Running;
        if back || self.written.as_ref() == Some(&status) {
            return;
        }
        match self.patch_status(&status).await {
            Ok(()) => {
                self.deps.faults.at("status.written");
                let before = self.written.replace(status);
                results::phase(&self.pod, before.as_ref(), self.written.as_ref(), self.since);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(%error, "cannot write the pod status"),
        }
    }

    /// Patches the status of this very pod, never of another one with its name.
    pub(super) async fn patch_status(&self, status: &Value) -> Result<(), ApiError> {
        let patch = serde_json::json!({"metadata": {"uid": self.uid()}, "status": status});
        let key = self.pod.metadata.key();
        self.deps.api.patch_status::<Pod>(&key, Patch::Merge(&patch)).await.map(drop)
    }

    /// All containers are over for good: nothing needs the volumes any more.
    pub(super) async fn finish(&mut self) {
        if let Some(shim) = self.shim.take() {
            shim.quit().await;
        }
        self.shim_view = None;
        self.deps.remove_cgroup(self.uid()).await;
        self.deps.volumes.let_go(&self.pod);
    }

    /// The volumes do not come. If that is because the node is full, another node may have room.
    async fn reject_if_full(&mut self) -> bool {
        self.full_check_at = Instant::now() + self.deps.mount_timeout;
        let Some(full) = self.deps.volumes.full_driver(self.uid()).await else { return false };
        self.deps.registrar.refresh(&full.driver).await;
        let reason = "VolumeAttachmentLimitExceeded";
        let text = format!(
            "Node has reached its volume attachment limit, rejecting pod. {}: context deadline exceeded",
            full.text
        );
        self.reject(reason, &text).await
    }

    /// Fails the pod for good; false when the API does not take it.
    async fn reject(&mut self, reason: &str, text: &str) -> bool {
        self.event(EventType::Warning, reason, text);
        let status = serde_json::json!({"phase": "Failed", "reason": reason,
            "message": format!("Pod was rejected: {text}"),
            "startTime": clock::seconds(self.pod.status.start_time.unwrap_or(self.since))});
        if let Err(error) = self.patch_status(&status).await {
            tracing::warn!(%error, "cannot reject the pod yet");
            return false;
        }
        self.rejected = true;
        self.finish().await;
        true
    }

    pub(super) fn stop_reason(&mut self) -> Option<Stop> {
        let update = self.updates.borrow_and_update().clone();
        match update {
            None => return Some(Stop::Gone),
            Some(pod) => {
                self.deps.volumes.update_pod(&pod);
                self.refreshing.seen(&self.pod, &pod);
                self.pod = pod;
            }
        }
        if self.pod.metadata.deleting() {
            return Some(Stop::Deleted);
        }
        self.deps.stop_pods.borrow().map(Stop::Agent)
    }

    async fn wait_for_stop(&mut self) -> Stop {
        let settled = self.pod.finished() || self.rejected;
        let next = if settled { None } else { Some(pending()) };
        loop {
            if let Some(stop) = self.stop_reason() {
                return stop;
            }
            if let Some(next) = next
                .as_ref()
                .filter(|_| !self.pod.finished() && self.shim.is_none() && self.volumes.is_none())
            {
                self.report(next).await;
            }
            let mut stop = self.deps.stop_pods.clone();
            tokio::select! {
                _ = self.updates.changed() => {}
                _ = stop.changed() => {}
            }
        }
    }

    /// Stops the containers, then unmounts, removes and deletes, in this order.
    async fn end(mut self, stop: Stop) {
        let started = Instant::now();
        self.stop_containers(stop).await;
        self.deps.remove_cgroup(self.uid()).await;
        self.deps.faults.at("pod.stopped");
        if stop == Stop::Deleted {
            let next = self.decide(true);
            let ran = next.phase != Phase::Pending;
            if ran && !self.pod.finished() && !self.rejected {
                self.report(&next).await;
            }
        }
        let volumes = self.deps.volumes.let_go(&self.pod);
        self.deps.volumes.wait_unmounted(self.uid(), &volumes).await;
        self.deps.faults.at("pod.unmounted");
        if let Err(error) = unmount_memory(&self.dir()) {
            tracing::warn!(%error, "cannot unmount memory volumes");
        }
        match stop {
            Stop::Agent(_) => self.remove_runs(),
            Stop::Gone | Stop::Deleted => {
                self.remove_dir().await;
                self.deps.faults.at("pod.directory-removed");
            }
        }
        if stop == Stop::Deleted {
            self.delete_object().await;
            self.deps.faults.at("pod.deleted");
        }
        if !matches!(stop, Stop::Agent(_)) {
            results::gone(&self.pod, started);
        }
    }

    fn grace(&self, stop: Stop) -> Duration {
        let own = self.pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        let asked = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(own);
        let seconds = |value: i64| Duration::from_secs(u64::try_from(value).unwrap_or(0));
        match stop {
            Stop::Gone => ORPHAN_GRACE,
            Stop::Deleted => seconds(asked),
            Stop::Agent(cut) => seconds(own).min(cut),
        }
    }

    pub(super) async fn stop_containers(&mut self, stop: Stop) {
        if self.shim.is_none() {
            match ShimClient::adopt(&self.dir()).await {
                Ok(shim) => self.shim = shim,
                Err(error) => tracing::warn!(%error, "cannot adopt the shim"),
            }
        }
        let Some(shim) = self.shim.take() else {
            kill_leftovers(&self.dir()).await;
            return;
        };
        let mut view = shim.view();
        let running: Vec<String> = view.borrow().names_running();
        for name in &running {
            let request = Request::Signal { name: name.clone(), signal: libc::SIGTERM };
            // One that just ended needs no signal.
            let _ = shim.tell(&request).await;
        }
        let begun = Instant::now();
        let mut stop_pods = self.deps.stop_pods.clone();
        loop {
            if view.borrow_and_update().names_running().is_empty() {
                break;
            }
            let cut = self.deps.stop_pods.borrow().unwrap_or(Duration::MAX);
            let deadline = begun + self.grace(stop).min(cut);
            tokio::select! {
                changed = view.changed() => if changed.is_err() { break },
                () = tokio::time::sleep_until(deadline) => break,
                Ok(()) = self.updates.changed(), if stop == Stop::Deleted => match self.updates.borrow_and_update().clone() {
                    // Deleted by force meanwhile.
                    None => break,
                    Some(pod) => self.pod = pod,
                },
                Ok(()) = stop_pods.changed() => {}
            }
        }
        self.shim_view = None;
        shim.quit().await;
    }

    /// Removes the run records, so that the next agent starts the containers again, as after a reboot.
    fn remove_runs(&self) {
        if let Err(error) = std::fs::remove_dir_all(shim_dir(&self.dir()))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove container run records");
        }
    }

    async fn remove_dir(&self) {
        let dir = self.dir();
        let done = tokio::task::spawn_blocking(move || remove_pod_dir(&dir)).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, "cannot remove the pod directory");
        }
    }

    async fn delete_object(&self) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::uid(self.uid().as_str())
        };
        loop {
            match self.deps.api.delete::<Pod>(&self.pod.metadata.key(), &params).await {
                Ok(()) => return,
                // Gone, or a new pod of the same name.
                Err(error) if error.is_not_found() || error.is_conflict() => return,
                Err(error) => tracing::warn!(%error, "cannot delete the pod"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    pub(super) fn event(&self, kind: EventType, reason: &str, message: &str) {
        self.deps.recorder.event(&ObjectRef::of::<Pod>(&self.pod.metadata), kind, reason, message);
    }
}

fn borrow(list: &[(String, bool, Run)]) -> Vec<lifecycle::Container<'_>> {
    list.iter()
        .map(|(name, sidecar, run)| lifecycle::Container { name, sidecar: *sidecar, run: *run })
        .collect()
}

fn pending() -> Next {
    Next {
        start: Vec::new(),
        end: Vec::new(),
        wake_at_ms: None,
        phase: Phase::Pending,
        initialized: false,
    }
}

async fn until(at_ms: Option<u64>) {
    match at_ms {
        Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(now_ms()))).await,
        None => std::future::pending().await,
    }
}
