//! Sends an event to objects whose request no running program serves.
//!
//! [`longshore_core::unserved`] knows the requests. This loop waits a moment, because a program that
//! runs leaves a mark on the object soon; then it asks whether the program is a part of this process
//! ([`Serving`]), holds its lease, or has written an event about the object. If none of that is so, it
//! writes one Warning event with the next step. `docs/decisions/unserved.md` says why one event, and
//! where it is remembered.

mod serving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::election::lease_name;
use longshore_cluster::{
    Api, ApiError, Cacheable, Change, Context, EventType, ListParams, Loop, Outcome, QueueOptions,
    Reconciler, Recorder, SharedCaches, Sources, Subject, WorkQueue, clock,
};
use longshore_core::model::kinds::{
    Claim, Event, Kind as _, Lease, Node, Pod, Volume, VolumeAttachment, VolumeGroupSnapshot,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};
use longshore_core::model::{ObjectKey, ObjectRef};
use longshore_core::unserved::{Asks, Related, Request, Server, notice};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use serving::Serving;

/// The reason of the event.
pub const REASON: &str = "NotServed";
/// How long a running program may take to leave its mark.
const GRACE: Duration = Duration::from_secs(3);
/// How often a program that runs and leaves no mark is looked at again.
const RECHECK: Duration = Duration::from_secs(30);
/// How long an event shows that its writer runs.
const RECENT: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// One object: the name of its kind, and its own.
type Key = (&'static str, ObjectKey);

/// The kinds whose objects ask for something. The first list of an optional one may never come:
/// its definition can be deleted.
const KINDS: [(&str, Look); 8] = [
    (Claim::KIND, look::<Claim>),
    (Volume::KIND, look::<Volume>),
    (VolumeAttachment::KIND, look::<VolumeAttachment>),
    (Pod::KIND, look::<Pod>),
    (VolumeSnapshot::KIND, look::<VolumeSnapshot>),
    (VolumeSnapshotContent::KIND, look::<VolumeSnapshotContent>),
    (VolumeGroupSnapshot::KIND, look::<VolumeGroupSnapshot>),
    (VolumeGroupSnapshotContent::KIND, look::<VolumeGroupSnapshotContent>),
];

type Look = fn(&Unserved, &ObjectKey) -> Option<(ObjectRef, Vec<Request>)>;

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its program is looked for then.
    DueAt(Instant),
    /// The object has its event.
    Told,
}

/// The loop that tells objects that no program serves them.
pub struct Unserved {
    api: Api,
    caches: SharedCaches,
    serving: Serving,
    recorder: Recorder,
    queue: WorkQueue<Key>,
    waiting: Mutex<HashMap<Key, BTreeMap<Request, Stage>>>,
}

impl Reconciler for Unserved {
    type Key = Key;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.caches.of::<Volume>(), Self::keys_of)
            .on(&self.caches.of::<Claim>(), Self::keys_of)
            .on(&self.caches.of::<VolumeAttachment>(), Self::keys_of)
            .on(&self.caches.of::<Pod>(), Self::keys_of)
            .needs(&self.caches.of::<Node>())
            .on_optional(&self.caches.of::<VolumeSnapshot>(), Self::keys_of)
            .on_optional(&self.caches.of::<VolumeSnapshotContent>(), Self::content_changed)
            .on_optional(&self.caches.of::<VolumeGroupSnapshot>(), Self::keys_of)
            .on_optional(&self.caches.of::<VolumeGroupSnapshotContent>(), Self::keys_of);
    }

    fn subject(&self, (kind, name): &Key) -> Subject {
        match *kind {
            Claim::KIND => Subject::claim(name),
            Volume::KIND => Subject::volume(name),
            Pod::KIND => Subject::pod(name),
            kind => Subject::key(format_args!("{kind} {name}")),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        let look = KINDS.iter().find(|(kind, _)| *kind == key.0).map(|(_, look)| look);
        let Some((object, requests)) = look.and_then(|look| look(self, &key.1)) else {
            self.waiting.lock().remove(key);
            return Outcome::Done;
        };
        for request in self.due(key, &requests) {
            let stage = match self.tell(&object, &request).await {
                Ok(stage) => stage,
                Err(error) => return Outcome::retry(error),
            };
            if let Some(waiting) = self.waiting.lock().get_mut(key) {
                waiting.insert(request, stage);
            }
        }
        self.next(key)
    }
}

/// The object and its requests that no part of this process serves; `None` without any.
fn look<T: Cacheable + Asks>(
    this: &Unserved,
    key: &ObjectKey,
) -> Option<(ObjectRef, Vec<Request>)> {
    let object = this.caches.of::<T>().get(key)?;
    let requests = this.unserved(&*object);
    (!requests.is_empty()).then(|| (ObjectRef::of::<T>(object.meta()), requests))
}

impl Unserved {
    /// A loop that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, serving: Serving) -> Self {
        Self {
            api: context.api.clone(),
            caches: context.caches.clone(),
            serving,
            recorder: context.recorder("longshore-up"),
            queue: context.queue("unserved", QueueOptions::controller()),
            waiting: Mutex::default(),
        }
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("unserved", Arc::new(self), queue).run(&shutdown).await;
    }

    /// Only objects with a request, and those that had one, are worth a pass.
    fn keys_of<T: Cacheable + Asks>(&self, change: &Change<T>) -> Option<Key> {
        let object = change.object();
        let key = (T::KIND, object.key());
        let asks = matches!(change, Change::Applied { .. }) && !self.unserved(&**object).is_empty();
        (asks || self.waiting.lock().contains_key(&key)).then_some(key)
    }

    fn unserved<T: Cacheable + Asks>(&self, object: &T) -> Vec<Request> {
        let (volume, content) = (self.volume_of(object), self.content_of(object));
        let related = Related { volume: volume.as_deref(), content: content.as_deref() };
        let mut requests = object.requests(related);
        requests.retain(|request| !self.serving.serves(&request.by) && !self.is_there(&request.by));
        requests
    }

    /// Whether the server is a node that exists. Whether it runs is the node lifecycle's to say.
    fn is_there(&self, server: &Server) -> bool {
        let Server::Node(name) = server else { return false };
        self.caches.of::<Node>().get(&ObjectKey::cluster(name)).is_some()
    }

    /// The nodes that there are, with commas between them.
    fn nodes(&self) -> String {
        let nodes = self.caches.of::<Node>().list();
        let mut names: Vec<&str> = nodes.iter().map(|node| node.metadata.name.as_str()).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// The volume that a claim is bound to.
    fn volume_of<T: Cacheable>(&self, object: &T) -> Option<Arc<Volume>> {
        let claim = (object as &dyn std::any::Any).downcast_ref::<Claim>()?;
        self.caches.of::<Volume>().get(&ObjectKey::cluster(&claim.spec.volume_name))
    }

    /// The content that a snapshot is bound to.
    fn content_of<T: Cacheable>(&self, object: &T) -> Option<Arc<VolumeSnapshotContent>> {
        let snapshot = (object as &dyn std::any::Any).downcast_ref::<VolumeSnapshot>()?;
        let content = ObjectKey::cluster(snapshot.bound_content()?);
        self.caches.of::<VolumeSnapshotContent>().get(&content)
    }

    /// A content, and the snapshot that waits for it.
    fn content_changed(&self, change: &Change<VolumeSnapshotContent>) -> Vec<Key> {
        let of = &change.object().spec.volume_snapshot_ref;
        let snapshot = (VolumeSnapshot::KIND, ObjectKey::new(&of.namespace, &of.name));
        let own = self.keys_of(change);
        let waits = own.is_some() || self.waiting.lock().contains_key(&snapshot);
        own.into_iter().chain(waits.then_some(snapshot)).collect()
    }

    /// Notes the requests, forgets those that are over, and returns those whose grace is over.
    fn due(&self, key: &Key, requests: &[Request]) -> Vec<Request> {
        let now = Instant::now();
        let mut all = self.waiting.lock();
        let waiting = all.entry(key.clone()).or_default();
        waiting.retain(|request, _| requests.contains(request));
        for request in requests {
            waiting.entry(request.clone()).or_insert(Stage::DueAt(now + GRACE));
        }
        let due =
            waiting.iter().filter(|(_, stage)| matches!(stage, Stage::DueAt(at) if *at <= now));
        due.map(|(request, _)| request.clone()).collect()
    }

    /// When the next request of the object is due.
    fn next(&self, key: &Key) -> Outcome {
        let all = self.waiting.lock();
        let due = all.get(key).into_iter().flatten().filter_map(|(_, stage)| match stage {
            Stage::DueAt(at) => Some(at),
            Stage::Told => None,
        });
        let wait = |at: &Instant| Outcome::After(at.saturating_duration_since(Instant::now()));
        due.min().map_or(Outcome::Done, wait)
    }

    /// Writes the event, unless the program runs or an earlier process has written it.
    async fn tell(&self, object: &ObjectRef, request: &Request) -> Result<Stage, ApiError> {
        if self.holds_lease(&request.by).await? {
            return Ok(Stage::DueAt(Instant::now() + RECHECK));
        }
        let nodes = self.nodes();
        let text = self.serving.around(&request.by, &nodes, |around| notice(request, around));
        let now = clock::now();
        for event in self.events_of(object).await? {
            if event.reason == REASON && event.message == text {
                return Ok(Stage::Told);
            }
            let recent = event.last_timestamp.is_some_and(|at| now.duration_since(at) < RECENT);
            if recent && request.by.wrote(&event) {
                return Ok(Stage::DueAt(Instant::now() + RECHECK));
            }
        }
        tracing::warn!(
            kind = object.kind,
            namespace = object.namespace,
            name = object.name,
            "{text}"
        );
        self.recorder.event(object, EventType::Warning, REASON, text);
        Ok(Stage::Told)
    }

    /// Whether a program leads that is no part of this process. The official ones put their leases
    /// into a namespace of their choice.
    async fn holds_lease(&self, by: &Server) -> Result<bool, ApiError> {
        let Some(lock) = by.lock() else { return Ok(false) };
        let name = format!("metadata.name={}", lease_name(&lock));
        let params = ListParams { field_selector: Some(name), ..ListParams::default() };
        let now = clock::now();
        let leases = self.api.list::<Lease>(None, &params).await?;
        Ok(leases.iter().any(|lease| is_held(lease, now)))
    }

    async fn events_of(&self, object: &ObjectRef) -> Result<Vec<Event>, ApiError> {
        let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
        let about = format!("involvedObject.uid={}", object.uid);
        let params = ListParams { field_selector: Some(about), ..ListParams::default() };
        self.api.list::<Event>(Some(namespace), &params).await
    }
}

fn is_held(lease: &Lease, now: jiff::Timestamp) -> bool {
    let spec = &lease.spec;
    let lasts = jiff::SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
    let fresh = spec.renew_time.is_some_and(|at| now.duration_since(at) <= lasts);
    fresh && !spec.holder_identity.is_empty()
}
