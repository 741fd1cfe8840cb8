//! The volume manager: keeps what is staged and published in step with what pods want.
//!
//! A pod is announced with [`VolumeManager::want`] and let go with [`VolumeManager::release`]; in
//! between, a loop looks at desired and actual world, asks [`longshore_core::stage::world`] and
//! starts what it answers. It wakes on events: a pod, the node object, a driver's registration, an
//! operation's end, a back-off's end. Nothing is polled.

mod files;
pub(crate) use files::make_dir;
pub(crate) use mount_table::mounts_below;
pub(crate) use sub_path::{bind as bind_sub_path, remove as remove_sub_paths};
mod fsgroup;
mod mount;
mod mount_table;
mod own;
mod reconstruct;
mod resolve;
mod sub_path;
mod unmount;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Api, Cache, EventType, Patch, Recorder};
use longshore_core::model::kinds::{Claim, CsiDriver, Node, Pod, Volume};
use longshore_core::model::{ObjectKey, ObjectRef};
use longshore_core::stage::paths::NodePaths;
use longshore_core::stage::verdict::{Failure, Mounted};
use longshore_core::stage::world::{Action, Slot, World, decide};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::drivers::Drivers;

const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(122);

/// What the manager is built from.
pub struct Deps {
    /// The API.
    pub api: Api,
    /// Events.
    pub recorder: Recorder,
    /// This node's object, alone.
    pub node: Cache<Node>,
    /// All drivers' objects.
    pub csi_drivers: Cache<CsiDriver>,
    /// All claims; only their news matter here, so it need not be synced.
    pub claims: Cache<Claim>,
    /// Registered drivers.
    pub drivers: Arc<Drivers>,
    /// Where things lie.
    pub paths: NodePaths,
    /// This node.
    pub node_name: String,
}

/// Who mounts a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugin {
    /// A driver.
    Csi,
    /// This node: a directory or a disk of its own.
    Local,
    /// This node, with the system's NFS client.
    Nfs,
}

/// What is known of a volume besides its states.
#[derive(Debug, Clone)]
pub(crate) struct VolumeFacts {
    pub plugin: Plugin,
    /// Empty where no driver is involved.
    pub driver: String,
    pub handle: String,
    /// Name of the volume's directory in pods: the persistent volume's name, or the pod's name for it.
    pub spec_name: String,
    /// Absent for inline volumes, and for volumes known only from disk.
    pub volume: Option<Arc<Volume>>,
    pub inline: bool,
}

/// How a pod uses a volume.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub unique: String,
    pub read_only: bool,
    /// Where the pod finds it.
    pub path: PathBuf,
}

struct PodFacts {
    pod: Arc<Pod>,
    /// By the pod's own name for the volume; absent until resolved.
    uses: Option<BTreeMap<String, Use>>,
    /// Directories of this node that need no mount, by the pod's own name for the volume.
    host: BTreeMap<String, PathBuf>,
    error: Option<String>,
    /// Somebody is looking its volumes up.
    resolving: bool,
}

struct Backoff {
    delay: Duration,
    until: Instant,
}

#[derive(Default)]
struct State {
    world: World,
    volumes: BTreeMap<String, VolumeFacts>,
    pods: BTreeMap<String, PodFacts>,
    backoff: BTreeMap<Slot, Backoff>,
    in_use_written: Option<Vec<String>>,
}

/// How a pod's volumes stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodVolumes {
    /// All are mounted: the pod's name for each, and where it is.
    Ready(BTreeMap<String, PathBuf>),
    /// Some are not; the text says which and why.
    Waiting(String),
}

/// See the module's description.
pub struct VolumeManager {
    deps: Deps,
    state: Mutex<State>,
    wake: Notify,
    changes: watch::Sender<u64>,
    claim_changes: watch::Sender<u64>,
    tasks: TaskTracker,
    stop: CancellationToken,
    dropped: CancellationToken,
}

impl VolumeManager {
    /// A manager that knows nothing yet; [`Self::reconstruct`] comes next.
    #[must_use]
    pub fn new(deps: Deps) -> Arc<Self> {
        let manager = Arc::new(Self {
            deps,
            state: Mutex::default(),
            wake: Notify::new(),
            changes: watch::Sender::new(0),
            claim_changes: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            dropped: CancellationToken::new(),
        });
        let weak = Arc::downgrade(&manager);
        manager.deps.node.subscribe(move |_| {
            if let Some(manager) = weak.upgrade() {
                manager.wake.notify_one();
            }
        });
        let weak = Arc::downgrade(&manager);
        manager.deps.claims.subscribe(move |_| {
            if let Some(manager) = weak.upgrade() {
                manager.claim_changes.send_modify(|count| *count += 1);
            }
        });
        manager
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Announces a pod that may run: its volumes will be mounted. Repeat it when the pod changes.
    pub fn want(self: &Arc<Self>, pod: &Arc<Pod>) {
        let uid = pod.metadata.uid.clone();
        {
            let mut state = self.state();
            if let Some(known) = state.pods.get_mut(&uid) {
                known.pod = pod.clone();
                if known.uses.is_some() || known.resolving {
                    return;
                }
                known.resolving = true;
            } else {
                state.world.unresolved.insert(uid.clone());
                let facts = PodFacts {
                    pod: pod.clone(),
                    uses: None,
                    host: BTreeMap::new(),
                    error: None,
                    resolving: true,
                };
                state.pods.insert(uid.clone(), facts);
            }
        }
        self.spawn(self.clone().resolve_until_known(uid));
    }

    /// Tells a changed pod, if its volumes are wanted.
    pub fn want_if_known(&self, pod: &Arc<Pod>) {
        if let Some(known) = self.state().pods.get_mut(&pod.metadata.uid) {
            known.pod = pod.clone();
        }
    }

    /// Lets a pod's volumes go. Only for a pod of which no process runs.
    pub fn release(&self, uid: &str) {
        let mut state = self.state();
        state.pods.remove(uid);
        state.world.unresolved.remove(uid);
        state.world.desired.retain(|_, wanted| {
            wanted.pods.remove(uid);
            !wanted.pods.is_empty()
        });
        drop(state);
        self.poke();
    }

    /// All pods that may run have been announced: what is not wanted now may be unmounted.
    pub fn all_pods_known(&self) {
        self.state().world.ready_to_unmount = true;
        self.poke();
    }

    /// Whether anything of a pod is, or may be, mounted.
    #[must_use]
    pub fn has_mounts_of(&self, uid: &str) -> bool {
        self.state().world.has_mounts_of(uid)
    }

    /// Volumes that a pod wants or has.
    #[must_use]
    pub fn volumes_of(&self, uid: &str) -> BTreeSet<String> {
        let state = self.state();
        let wanted = state.world.desired.iter().filter(|(_, wanted)| wanted.pods.contains(uid));
        let known = state.world.actual.iter().filter(|(_, known)| known.pods.contains_key(uid));
        wanted.map(|(name, _)| name).chain(known.map(|(name, _)| name)).cloned().collect()
    }

    /// Waits until nothing of a released pod is mounted, and those of its `volumes` that no other
    /// pod uses are unstaged: only then may their claims be let go.
    pub async fn wait_unmounted(&self, uid: &str, volumes: &BTreeSet<String>) {
        let mut changes = self.changes();
        while !self.is_unmounted(uid, volumes) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn is_unmounted(&self, uid: &str, volumes: &BTreeSet<String>) -> bool {
        let state = self.state();
        let staged_for_nobody = |name: &String| {
            let known = state.world.actual.get(name);
            known.is_some_and(|known| known.pods.is_empty())
                && !state.world.desired.contains_key(name)
        };
        !state.world.has_mounts_of(uid) && !volumes.iter().any(staged_for_nobody)
    }

    /// Whether anything is, or may be, staged or mounted.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state().world.actual.is_empty()
    }

    /// Changes whenever an operation ended.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// How a pod's volumes stand.
    #[must_use]
    pub fn pod_volumes(&self, uid: &str) -> PodVolumes {
        let state = self.state();
        let Some(facts) = state.pods.get(uid) else {
            return PodVolumes::Waiting("the pod's volumes are not wanted".to_owned());
        };
        let Some(uses) = &facts.uses else {
            let why =
                facts.error.clone().unwrap_or_else(|| "volumes are being looked up".to_owned());
            return PodVolumes::Waiting(why);
        };
        let mut unmounted = Vec::new();
        let mut mounted = facts.host.clone();
        for (name, one) in uses {
            let mount = state.world.actual.get(&one.unique).and_then(|known| known.pods.get(uid));
            if mount.is_some_and(|mount| mount.state == Mounted::Yes) {
                mounted.insert(name.clone(), one.path.clone());
            } else {
                unmounted.push(name.as_str());
            }
        }
        if unmounted.is_empty() {
            return PodVolumes::Ready(mounted);
        }
        let why = facts.error.as_deref().unwrap_or("still waiting");
        PodVolumes::Waiting(format!("unmounted volumes=[{}]: {why}", unmounted.join(" ")))
    }

    /// The loop. Returns when told to; operations in flight are waited for.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let _dropped = self.dropped.clone().drop_guard();
        let mut drivers = self.deps.drivers.changes();
        loop {
            let next = self.pass();
            self.write_in_use().await;
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.wake.notified() => {}
                _ = drivers.changed() => self.state().backoff.clear(),
                () = sleep_until(next) => {}
            }
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Looks, decides and starts; returns when to look again at the latest.
    fn pass(self: &Arc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state();
        self.look_at_node(&mut state);
        state.world.backing_off = state
            .backoff
            .iter()
            .filter(|(_, one)| one.until > now)
            .map(|(slot, _)| slot.clone())
            .collect();
        let actions = decide(&state.world);
        for action in actions {
            if let Action::Forget { volume } = &action {
                state.world.actual.remove(volume);
                state.volumes.remove(volume);
                self.poke();
                continue;
            }
            state.world.busy.insert(action.slot());
            self.spawn(self.clone().act(action));
        }
        state.backoff.values().map(|one| one.until).filter(|until| *until > now).min()
    }

    fn look_at_node(&self, state: &mut State) {
        let Some(node) = self.deps.node.get(&ObjectKey::cluster(&self.deps.node_name)) else {
            return;
        };
        state.world.node.attached =
            node.status.volumes_attached.iter().map(|volume| volume.name.clone()).collect();
        if state.in_use_written.is_none() {
            state.world.node.in_use = node.status.volumes_in_use.iter().cloned().collect();
        }
    }

    async fn act(self: Arc<Self>, action: Action) {
        let result = match &action {
            Action::Mount { volume, pod } => self.mount(volume, pod).await,
            Action::Unpublish { volume, pod } => self.unpublish(volume, pod).await,
            Action::Unstage { volume } => self.unstage(volume).await,
            Action::Forget { .. } => Ok(()),
        };
        let mut state = self.state();
        state.world.busy.remove(&action.slot());
        let slot = action.backoff_slot();
        match result {
            Ok(()) => {
                state.backoff.remove(&slot);
                self.clear_error(&mut state, &action);
            }
            Err(failure) => {
                let delay = state
                    .backoff
                    .get(&slot)
                    .map_or(BACKOFF_FIRST, |one| (one.delay * 2).min(BACKOFF_MAX));
                state.backoff.insert(slot, Backoff { delay, until: Instant::now() + delay });
                self.report(&mut state, &action, &failure);
            }
        }
        drop(state);
        self.poke();
    }

    fn clear_error(&self, state: &mut State, action: &Action) {
        if let Action::Mount { pod, .. } = action
            && let Some(facts) = state.pods.get_mut(pod)
        {
            facts.error = None;
        }
    }

    // Unmount failures are logged only, as users know it: the pod is gone or going.
    fn report(&self, state: &mut State, action: &Action, failure: &OpError) {
        let (Action::Mount { volume, pod }, step) = (action, failure.step) else {
            tracing::warn!(?action, error = %failure.text, "will be tried again");
            return;
        };
        let name =
            state.volumes.get(volume).map_or(volume.as_str(), |facts| facts.spec_name.as_str());
        let text = format!("MountVolume.{step} failed for volume \"{name}\" : {}", failure.text);
        tracing::warn!(pod, volume, error = %text, "mount failed");
        if let Some(facts) = state.pods.get_mut(pod) {
            self.deps.recorder.event(
                &ObjectRef::of::<Pod>(&facts.pod.metadata),
                EventType::Warning,
                "FailedMount",
                &text,
            );
            facts.error = Some(text);
        }
    }

    /// Runs work that ends with the loop: dropping [`Self::run`] drops it too.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let dropped = self.dropped.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = dropped.cancelled() => {}
                () = work => {}
            }
        });
    }

    fn poke(&self) {
        self.changes.send_modify(|count| *count += 1);
        self.wake.notify_one();
    }

    /// Tells the node object which volumes are in use, as soon as the list changes.
    async fn write_in_use(&self) {
        let list = {
            let mut state = self.state();
            let Some(list) = state.world.volumes_in_use() else { return };
            if self.is_written(&state, &list) {
                return;
            }
            // What leaves the list counts as left from now on: the write may land at any moment.
            state.world.node.in_use.retain(|name| list.contains(name));
            list
        };
        let patch = serde_json::json!({"status": {"volumesInUse": list}});
        let key = ObjectKey::cluster(&self.deps.node_name);
        match self.deps.api.patch_status::<Node>(&key, Patch::Merge(&patch)).await {
            Ok(_) => {
                let mut state = self.state();
                state.world.node.in_use = list.iter().cloned().collect();
                state.in_use_written = Some(list);
                drop(state);
                self.wake.notify_one();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot write volumesInUse");
                self.retry_soon();
            }
        }
    }

    fn is_written(&self, state: &State, list: &[String]) -> bool {
        match &state.in_use_written {
            Some(written) => written == list,
            None => {
                let in_use: BTreeSet<&String> = state.world.node.in_use.iter().collect();
                self.deps.node.get(&ObjectKey::cluster(&self.deps.node_name)).is_some()
                    && in_use == list.iter().collect()
            }
        }
    }

    fn retry_soon(&self) {
        let mut state = self.state();
        let until = Instant::now() + BACKOFF_FIRST;
        state.backoff.insert(Slot::volume("volumesInUse"), Backoff { delay: BACKOFF_FIRST, until });
    }
}

/// A failed operation.
#[derive(Debug)]
pub(crate) struct OpError {
    /// The step as users know it, for instance `MountDevice`.
    pub step: &'static str,
    /// What it says about the mount.
    pub failure: Failure,
    pub text: String,
}

impl OpError {
    pub(crate) fn new(step: &'static str, failure: Failure, text: impl std::fmt::Display) -> Self {
        Self { step, failure, text: text.to_string() }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
