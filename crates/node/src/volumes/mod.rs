//! The volume manager: keeps what is staged and published in step with what pods want.
//!
//! A pod is announced with `want` and let go with `release`; in
//! between, the loop compares desired and actual state, asks [`longshore_core::stage::world`] and
//! starts what it decides. Events wake it: a pod, the node object, a claim, a driver's registration,
//! the end of an operation or of a pause. Nothing is polled.

mod block;
mod error;
mod expand;
mod files;
mod measure;
pub(crate) use files::make_dir;
pub(crate) use sub_path::{bind as bind_sub_path, remove as remove_sub_paths};
mod fsgroup;
mod in_tree;
mod in_use;
mod leaving;
mod limits;
mod mount;
mod mounting;
mod reconcile;
mod reconstruct;
mod report;
mod resolve;
pub(crate) mod stats;
mod sub_path;
mod tokens;
mod unmount;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Api, Cache, QueueOptions, Recorder, WorkQueue};
use longshore_core::backoff::Backoff;
use longshore_core::model::kinds::{Claim, CsiDriver, Node, Pod, Volume};
use longshore_core::model::{DriverName, NodeName, ObjectKey, Uid, VolumeHandle};
use longshore_core::names::UniqueName;
use longshore_core::stage::paths::NodePaths;
use longshore_core::stage::verdict::Mounted;
use longshore_core::stage::world::{Action, World};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::drivers::Drivers;
use crate::metrics::NodeMetrics;
use error::{OpCause, OpError};
use leaving::Leaving;
pub(crate) use leaving::LeftVolume;
use reconcile::Key;
use stats::NodeStats;

/// The pause after a failure, as the kubelet's.
pub(crate) const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(122));

/// What the manager is built from.
pub(crate) struct Deps {
    pub api: Api,
    pub recorder: Recorder,
    /// Holds only the object of this node.
    pub node: Cache<Node>,
    pub csi_drivers: Cache<CsiDriver>,
    /// It need not be synced: only changes matter here, and claims are read live.
    pub claims: Cache<Claim>,
    pub drivers: Arc<Drivers>,
    pub paths: NodePaths,
    pub node_name: NodeName,
    /// Volumes are mounted with SELinux labels.
    pub selinux: bool,
    /// Staged volumes are listed in `volumesInUse` even if they are not attached.
    pub list_staged: bool,
    pub faults: crate::fault::Faults,
    pub(crate) metrics: NodeMetrics,
    /// The pause after a failed action on a volume.
    pub backoff: Backoff,
    pub stats: NodeStats,
    /// How often drivers are asked for the statistics of their volumes.
    pub stats_period: Duration,
}

/// The plugin that mounts a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugin {
    Csi,
    /// In-tree: a directory or a disk of this node.
    Local,
    /// In-tree, through the NFS client of the system.
    Nfs,
}

/// What is known of a volume besides its states.
#[derive(Debug, Clone)]
pub(crate) struct VolumeFacts {
    pub plugin: Plugin,
    /// Empty where no driver is involved.
    pub driver: DriverName,
    pub handle: VolumeHandle,
    /// Name of the volume's directory in pods: the persistent volume's name, or the pod's name for it.
    pub spec_name: String,
    /// Absent for inline volumes, and for volumes known only from disk.
    pub volume: Option<Arc<Volume>>,
    pub inline: bool,
    /// Pods use it as a device.
    pub block: bool,
}

impl VolumeFacts {
    /// A filesystem of a driver of which nothing more is known.
    fn csi(driver: &DriverName, handle: &VolumeHandle, spec_name: &str) -> Self {
        Self {
            plugin: Plugin::Csi,
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            spec_name: spec_name.to_owned(),
            volume: None,
            inline: false,
            block: false,
        }
    }
}

/// How a pod uses a volume.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub unique: UniqueName,
    pub read_only: bool,
    /// Where the pod finds it.
    pub path: PathBuf,
    pub claim: Option<ObjectKey>,
    /// How many bytes the claim said it has; 0 when that does not matter.
    pub claim_size: i64,
    /// SELinux label to mount with; empty for none.
    pub label: String,
}

struct PodFacts {
    pod: Arc<Pod>,
    /// By the pod's own name for the volume; absent until resolved.
    uses: Option<BTreeMap<String, Use>>,
    /// Directories of this node that need no mount, by the pod's own name for the volume.
    host: BTreeMap<String, PathBuf>,
    error: Option<String>,
    since: Instant,
}

/// Failures in a row, and when the next attempt may begin.
struct Failures {
    count: u32,
    /// How many of the last ones said that the driver does not know the volume.
    not_found: u32,
    until: Instant,
}

#[derive(Default)]
struct State {
    world: World,
    /// As it is staged, or will be.
    volumes: BTreeMap<UniqueName, VolumeFacts>,
    /// As pods mount it: two PersistentVolumes may have one handle, and a pod's directories have
    /// the name of its own.
    mounts: BTreeMap<UniqueName, BTreeMap<Uid, VolumeFacts>>,
    pods: BTreeMap<Uid, PodFacts>,
    /// Pods that no longer want their volumes, until those are unmounted.
    leaving: BTreeMap<Uid, Leaving>,
    /// Volumes whose last unmount or unstage failed.
    stuck: BTreeSet<UniqueName>,
    /// Failed actions; another action on the same volume does not wait for them.
    backoff: BTreeMap<Action, Failures>,
    in_use_written: Option<Vec<UniqueName>>,
    /// Pods and their volumes that are being mounted at this moment, wanted any longer or not.
    mounting: BTreeSet<(Uid, UniqueName)>,
}

impl State {
    /// What is known of a volume, as a pod mounts it where the question is about one.
    fn facts(&self, volume: &UniqueName, pod: Option<&Uid>) -> Option<&VolumeFacts> {
        let of_pod = pod.and_then(|uid| self.mounts.get(volume)?.get(uid));
        of_pod.or_else(|| self.volumes.get(volume))
    }

    /// Drops the facts of mounts that are not wanted, not there and not in the making.
    fn drop_old_facts(&mut self) {
        let Self { mounts, world, mounting, .. } = self;
        mounts.retain(|volume, pods| {
            let known = world.actual.get(volume);
            pods.retain(|uid, _| {
                world.wants(volume, uid)
                    || known.is_some_and(|known| known.pods.contains_key(uid))
                    || mounting.contains(&(uid.clone(), volume.clone()))
            });
            !pods.is_empty()
        });
    }
}

/// Whether the volumes of a pod are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodVolumes {
    /// All are mounted: the pod's name for each, and where it is.
    Ready(BTreeMap<String, PathBuf>),
    /// Some are not; the text says which and why.
    Waiting(String),
}

/// Keeps staged and published volumes in step with pods; see the module.
pub(crate) struct VolumeManager {
    deps: Deps,
    state: Mutex<State>,
    tokens: tokens::Tokens,
    /// Directories whose metadata cannot be read, by pod.
    broken: Mutex<Vec<reconstruct::Broken>>,
    queue: WorkQueue<Key>,
    changes: watch::Sender<u64>,
    tasks: TaskTracker,
    dropped: CancellationToken,
}

impl VolumeManager {
    /// A manager that knows nothing yet; [`Self::reconstruct`] comes next.
    pub(crate) fn new(deps: Deps) -> Arc<Self> {
        let options = QueueOptions { backoff: BACKOFF, ..QueueOptions::default() };
        let manager = Arc::new(Self {
            broken: Mutex::default(),
            deps,
            state: Mutex::default(),
            tokens: tokens::Tokens::default(),
            queue: WorkQueue::new("stage", options),
            changes: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            dropped: CancellationToken::new(),
        });
        manager.deps.metrics.count_volumes(&manager);
        manager
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a pod that may run to the desired state: its volumes will be mounted.
    pub(crate) fn add_pod(&self, pod: &Arc<Pod>) {
        let uid = pod.metadata.uid.clone();
        {
            let mut state = self.state();
            if let Some(known) = state.pods.get_mut(&uid) {
                known.pod = pod.clone();
                return;
            }
            state.world.unresolved.insert(uid.clone());
            let facts = PodFacts {
                pod: pod.clone(),
                uses: None,
                host: BTreeMap::new(),
                error: None,
                since: Instant::now(),
            };
            state.pods.insert(uid.clone(), facts);
        }
        self.queue.add(Key::Pod(uid));
    }

    /// Takes note of a changed pod, if it was added. Drivers that require republish get it.
    pub(crate) fn update_pod(&self, pod: &Arc<Pod>) {
        let uid = &pod.metadata.uid;
        {
            let mut state = self.state();
            let Some(known) = state.pods.get_mut(uid) else { return };
            if known.pod.metadata.resource_version == pod.metadata.resource_version {
                return;
            }
            known.pod = pod.clone();
        }
        self.mark_for_republish(Some(uid));
    }

    /// Marks the mounts of one pod, or of all, whose drivers want publish to be repeated.
    fn mark_for_republish(&self, only: Option<&Uid>) {
        let mut state = self.state();
        let State { world, volumes, .. } = &mut *state;
        let mut found = false;
        for (unique, known) in &mut world.actual {
            let Some(facts) = volumes.get(unique) else { continue };
            let driver = self.deps.csi_drivers.get(&ObjectKey::cluster(&facts.driver));
            if driver.is_none_or(|driver| driver.spec.requires_republish != Some(true)) {
                continue;
            }
            for (uid, mount) in &mut known.pods {
                let due = mount.state == Mounted::Yes && only.is_none_or(|only| only == uid);
                mount.remount |= due;
                found |= due;
            }
        }
        drop(state);
        if found {
            self.enqueue();
        }
    }

    /// Removes a pod from the desired state: its volumes will be unmounted. No process of it may run.
    pub(crate) fn remove_pod(&self, uid: &Uid) {
        let mut state = self.state();
        state.pods.remove(uid);
        self.tokens.forget(uid);
        state.world.unresolved.remove(uid);
        state.world.desired.retain(|_, wanted| {
            wanted.pods.remove(uid);
            !wanted.pods.is_empty()
        });
        state.backoff.retain(|failed, _| {
            failed.pod() != Some(uid) || matches!(failed, Action::Unpublish { .. })
        });
        drop(state);
        self.notify();
    }

    /// All pods that may run have been added: volumes that none of them uses may be unmounted now.
    pub(crate) fn all_pods_known(&self) {
        self.state().world.ready_to_unmount = true;
        self.notify();
    }

    /// Volumes of a pod in the desired or the actual state.
    pub(crate) fn volumes_of(&self, uid: &Uid) -> BTreeSet<UniqueName> {
        let state = self.state();
        let wanted = state.world.desired.iter().filter(|(_, wanted)| wanted.pods.contains(uid));
        let known = state.world.actual.iter().filter(|(_, known)| known.pods.contains_key(uid));
        wanted.map(|(name, _)| name).chain(known.map(|(name, _)| name)).cloned().collect()
    }

    /// Waits until nothing of a released pod is mounted, and those of its `volumes` that no other
    /// pod uses are unstaged: only then may their claims be let go.
    pub(crate) async fn wait_unmounted(&self, uid: &Uid, volumes: &BTreeSet<UniqueName>) {
        self.clean_broken();
        let mut changes = self.changes();
        while !self.is_unmounted(uid, volumes) {
            if changes.changed().await.is_err() {
                return;
            }
        }
        self.state().leaving.remove(uid);
    }

    fn is_unmounted(&self, uid: &Uid, volumes: &BTreeSet<UniqueName>) -> bool {
        let state = self.state();
        let staged_without_pods = |name: &UniqueName| {
            let known = state.world.actual.get(name);
            known.is_some_and(|known| known.pods.is_empty())
                && !state.world.desired.contains_key(name)
        };
        // One that began while the pod was wanted may have nothing to show for it yet.
        let mounting = state.mounting.iter().any(|(pod, _)| pod == uid);
        !mounting && !state.world.has_mounts_of(uid) && !volumes.iter().any(staged_without_pods)
    }

    /// Whether anything is, or may be, staged or mounted.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().world.actual.is_empty()
    }

    /// Drops the operations in flight: what they have begun is finished after the next start.
    pub(crate) fn give_up(&self) {
        self.dropped.cancel();
    }

    /// Changes whenever an operation ended.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether the volumes of a pod are mounted.
    pub(crate) fn pod_volumes(&self, uid: &Uid) -> PodVolumes {
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

    /// Wakes who waits for [`Self::changes`], and the loop.
    fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
        self.enqueue();
    }

    fn enqueue(&self) {
        self.queue.add(Key::Node);
    }
}
