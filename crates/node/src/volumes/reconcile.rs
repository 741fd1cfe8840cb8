//! The loop of the volume manager.
//!
//! [`Key::Node`] decides over all volumes of the node at once, because whether one may be unmounted
//! depends on the pods of all; it starts operations and does not wait for them. Volumes of a pod are
//! looked up, and sizes of a claim are read, under keys of their own.

use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::awaited::{Wake, with_wake};
use longshore_cluster::controller::pass_span;
use longshore_cluster::{Change, Loop, Outcome, Reconciler, Sources, Subject};
use longshore_core::model::kinds::Claim;
use longshore_core::model::{ObjectKey, Uid};
use longshore_core::stage::world::{Action, decide};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::{BACKOFF, Failures, State, VolumeManager};

/// How often publish is repeated for drivers that want that, besides changes of the pod.
const REPUBLISH: Duration = Duration::from_secs(75);
/// Passes side by side; those of pods wait for the API.
const WORKERS: usize = 32;

/// What one pass is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Desired and actual state of all volumes of the node.
    Node,
    /// The volumes behind the claims of a pod, by its UID.
    Pod(Uid),
    /// The size of the volume of a claim.
    Claim(ObjectKey),
}

struct StageLoop(Arc<VolumeManager>);

impl Reconciler for StageLoop {
    type Key = Key;

    fn sources(&self, sources: &mut Sources<Self>) {
        let deps = &self.0.deps;
        sources
            .on(&deps.csi_drivers, |this, _| this.0.keys_of_driver())
            .on(&deps.node, |_, _| [Key::Node])
            // Without the right to watch claims, they are read when a pod needs them.
            .on_optional(&deps.claims, |this, change| this.keys_of_claim(change));
    }

    fn prepare(&self) {
        self.0.enqueue();
    }

    fn subject(&self, key: &Key) -> Subject {
        match key {
            Key::Node => Subject::node(&self.0.deps.node_name),
            Key::Pod(uid) => match self.0.state().pods.get(uid) {
                Some(facts) => Subject::pod(facts.pod.metadata.key()),
                None => Subject::key(uid),
            },
            Key::Claim(key) => Subject::claim(key),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        match key {
            Key::Node => self.0.reconcile_node().await,
            Key::Pod(uid) => self.0.resolve_pod(uid).await,
            Key::Claim(key) => self.0.read_size(key).await,
        }
    }
}

impl StageLoop {
    fn keys_of_claim(&self, change: &Change<Claim>) -> Vec<Key> {
        let claim = change.object();
        let mut keys: Vec<Key> = self.0.pods_waiting_for(claim).into_iter().map(Key::Pod).collect();
        if self.0.waits_for_node(claim) {
            keys.push(Key::Claim(claim.metadata.key()));
        }
        keys
    }
}

impl VolumeManager {
    /// Runs until `shutdown`; operations in flight are waited for.
    pub(crate) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let _dropped = self.dropped.clone().drop_guard();
        Loop::new("stage", Arc::new(StageLoop(self.clone())), self.queue.clone())
            .workers(WORKERS)
            .beside(self.clone().observe_drivers())
            .beside(self.clone().republish())
            .run(&shutdown)
            .await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// A driver that comes or goes ends all pauses: what failed may succeed now.
    async fn observe_drivers(self: Arc<Self>) {
        let mut drivers = self.deps.drivers.changes();
        while drivers.changed().await.is_ok() {
            self.state().backoff.clear();
            self.enqueue();
        }
    }

    async fn republish(self: Arc<Self>) {
        let mut due = tokio::time::interval(REPUBLISH);
        loop {
            due.tick().await;
            self.mark_for_republish(None);
        }
    }

    async fn reconcile_node(self: &Arc<Self>) -> Outcome {
        let next = self.start_actions();
        let retry = match self.write_in_use().await {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "cannot write volumesInUse");
                Some(Instant::now() + BACKOFF.after(0))
            }
        };
        self.clean_broken();
        let next = next.into_iter().chain(retry).min();
        next.map_or(Outcome::Done, |at| {
            Outcome::After(at.saturating_duration_since(Instant::now()))
        })
    }

    /// Decides, and starts what was decided; returns when the next pause of an operation ends.
    fn start_actions(self: &Arc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state();
        self.observe_node(&mut state);
        state.drop_old_facts();
        state.world.backing_off = state
            .backoff
            .iter()
            .filter(|(_, one)| one.until > now)
            .map(|(action, _)| action.clone())
            .collect();
        for action in decide(&state.world) {
            if let Action::Forget { volume } = &action {
                state.world.actual.remove(volume);
                state.volumes.remove(volume);
                state.backoff.retain(|failed, _| !action.ends_backoff_of(failed));
                self.notify();
                continue;
            }
            state.world.busy.insert(action.slot());
            if let Action::Mount { volume, pod } = &action {
                state.mounting.insert((pod.clone(), volume.clone()));
            }
            let span = span_of(&state, &action);
            self.spawn(self.clone().act(action).instrument(span));
        }
        state.backoff.values().map(|one| one.until).filter(|until| *until > now).min()
    }

    async fn act(self: Arc<Self>, action: Action) {
        let timed = self.timed(&action);
        let result = match &action {
            Action::Mount { volume, pod } => {
                with_wake(self.wake(&action), self.mount(volume, pod)).await
            }
            Action::Unpublish { volume, pod } => self.unpublish(volume, pod).await,
            Action::Expand { volume, pod } => self.expand(volume, pod).await,
            Action::Unstage { volume } => self.unstage(volume).await,
            Action::Forget { .. } => Ok(()),
        };
        self.measured(timed, result.is_ok());
        match &result {
            Ok(()) => tracing::debug!(action = action.name(), "done"),
            Err(failure) => self.report_teardown(&action, failure).await,
        }
        let mut state = self.state();
        state.world.busy.remove(&action.slot());
        if let Action::Mount { volume, pod } = &action {
            state.mounting.remove(&(pod.clone(), volume.clone()));
        }
        match result {
            Ok(()) => {
                state.backoff.retain(|failed, _| !action.ends_backoff_of(failed));
                state.stuck.remove(action.volume());
                self.clear_error(&mut state, &action);
            }
            Err(failure) => {
                self.report(&mut state, &action, &failure);
                let before = state.backoff.get(&action);
                let count = before.map_or(0, |one| one.count);
                let not_found = match failure.says_not_found() {
                    true => before.map_or(0, |one| one.not_found).saturating_add(1),
                    false => 0,
                };
                let until = Instant::now() + self.deps.backoff.after(count);
                let failures = Failures { count: count + 1, not_found, until };
                if state.still_due(&action) {
                    state.backoff.insert(action, failures);
                }
            }
        }
        drop(state);
        self.notify();
    }

    /// Starts an operation again, without its pause.
    fn wake(self: &Arc<Self>, action: &Action) -> Wake {
        let (manager, action) = (Arc::downgrade(self), action.clone());
        Wake::new(action.clone(), move || {
            if let Some(manager) = manager.upgrade() {
                manager.state().backoff.remove(&action);
                manager.enqueue();
            }
        })
    }

    /// What waits may wait for a driver's object: all pauses end, and pods are looked up again.
    fn keys_of_driver(&self) -> Vec<Key> {
        let mut state = self.state();
        state.backoff.clear();
        let State { world, volumes, .. } = &mut *state;
        for (unique, wanted) in &mut world.desired {
            // It was not known when the pod came. The other way round, what is there stays.
            let driver = volumes.get(unique).map(|facts| ObjectKey::cluster(&facts.driver));
            let object = driver.and_then(|key| self.deps.csi_drivers.get(&key));
            wanted.attachable &= object.is_none_or(|object| object.attach_required());
        }
        let pods = state.world.unresolved.iter().cloned().map(Key::Pod);
        pods.chain([Key::Node]).collect()
    }

    /// Runs an operation that ends with the loop: dropping [`Self::run`] drops it too.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let dropped = self.dropped.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = dropped.cancelled() => {}
                () = work => {}
            }
        });
    }
}

impl State {
    /// Whether a failed action may come again: no mount for a pod that has left meanwhile.
    fn still_due(&self, action: &Action) -> bool {
        match action {
            Action::Mount { volume, pod } | Action::Expand { volume, pod } => {
                self.world.wants(volume, pod)
            }
            Action::Unpublish { .. } | Action::Unstage { .. } | Action::Forget { .. } => true,
        }
    }
}

/// The span of one action: the volume by the name that users know, and the pod.
fn span_of(state: &State, action: &Action) -> Span {
    let unique = action.volume();
    let facts = state.facts(unique, action.pod());
    let name = facts.map_or(unique.as_str(), |facts| facts.spec_name.as_str());
    let failures = state.backoff.get(action).map_or(0, |one| one.count);
    let span = pass_span("stage", &Subject::volume(name), failures.saturating_add(1));
    if let Some(facts) = facts {
        span.record("driver", facts.driver.as_str());
    }
    if let Some(pod) = action.pod().and_then(|uid| state.pods.get(uid)) {
        span.record("pod", pod.pod.metadata.key().to_string());
    }
    span
}
