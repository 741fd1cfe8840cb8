//! Publishes the capacity of a driver, for every topology segment and class it serves.
//!
//! The scheduler reads these `CSIStorageCapacity` objects and keeps pods away from nodes where
//! their volumes would not fit. Which objects there should be is decided in
//! [`longshore_core::provision::capacity`]; the driver is asked now and then, and whenever a volume,
//! a class or a node changes.
//!
//! Objects are known from the watch alone. One that somebody else deleted is made again, one that
//! is about nothing any more is deleted, and of two about the same thing one goes.

mod book;
mod flags;
mod object;
mod owner;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use longshore_cluster::{
    Api, Cache, Change, Context, DeleteParams, Loop, Metrics, OptionalExt as _, Outcome,
    QueueOptions, Reconciler, Scope, Sources, Subject, WorkQueue, telemetry::RegistryExt as _,
};
use longshore_core::{
    model::{
        ObjectKey,
        kinds::{
            CsiNode, CsiStorageCapacity, Node, OwnerReference, StorageClass, VolumeNodeAffinity,
        },
    },
    provision::{
        capacity::{DRIVER_LABEL, Item, MANAGER_LABEL, Touched, is_published, segment_on, touched},
        topology::Term,
    },
    words,
};
use longshore_csi::Client;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use book::{Book, Work};
pub use flags::{Asked, Flags};
pub use owner::{OwnerError, owner};

/// The pause before volumes may have the driver asked about the same thing again: so many times as
/// long as the last answer took, within these bounds. A thousand volumes at once are told in a few
/// questions, and a driver that has to count does not count all the time.
const PAUSE_FACTOR: u32 = 20;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How the publisher behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub namespace: String,
    /// Who we are, in the objects' label.
    pub manager: String,
    pub owner: Option<OwnerReference>,
    /// Also for classes that bind at once.
    pub for_immediate: bool,
    /// How often the driver is asked about everything.
    pub poll: Duration,
    /// How many questions at a time.
    pub threads: usize,
    pub retry_interval_start: Duration,
    pub retry_interval_max: Duration,
    /// Deadline of one question.
    pub timeout: Duration,
}

impl Config {
    /// The official defaults, without an owner.
    #[must_use]
    pub fn new(namespace: impl Into<String>, manager: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            manager: manager.into(),
            owner: None,
            for_immediate: false,
            poll: Duration::from_secs(60),
            threads: 1,
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            timeout: Duration::from_secs(10),
        }
    }
}

/// Where the driver runs.
#[derive(Clone)]
pub enum Places {
    /// Wherever nodes say so.
    Watched(Cache<Node>, Cache<CsiNode>),
    /// On one node, which never changes.
    Fixed(Term),
}

/// The counts of the process.
#[derive(Debug, Clone)]
struct CapacityMetrics {
    goal: Gauge,
    current: Gauge,
    obsolete: Gauge,
}

impl CapacityMetrics {
    fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| Self {
            goal: registry.metric(
                "csistoragecapacities_desired_goal",
                "Number of CSIStorageCapacity objects that are supposed to be managed automatically",
            ),
            current: registry.metric(
                "csistoragecapacities_desired_current",
                "Number of CSIStorageCapacity objects that exist and are supposed to be managed automatically",
            ),
            obsolete: registry.metric(
                "csistoragecapacities_obsolete",
                "Number of CSIStorageCapacity objects that exist and will be deleted automatically",
            ),
        })
    }
}

/// Publishes the capacity of one driver.
pub struct CapacityPublisher {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    api: Api,
    csi: Client,
    classes: Cache<StorageClass>,
    places: Places,
    driver: String,
    counts: CapacityMetrics,
    book: Mutex<Book>,
    /// Objects that were made and that the watch has not shown yet, with the time when that is
    /// doubted.
    expected: Mutex<HashMap<Item, Instant>>,
    pauses: Mutex<Pauses>,
    queue: WorkQueue<Work>,
    /// Nodes whose place may have changed.
    topology: WorkQueue<String>,
}

/// Until when volumes do not have the driver asked about an item again.
#[derive(Default)]
struct Pauses {
    until: HashMap<Item, Instant>,
    /// Pauses that are over are forgotten when there are so many, not at each one.
    forget_at: usize,
}

/// The fewest pauses that are worth a look at all of them.
const FEW_PAUSES: usize = 64;

impl Pauses {
    fn add(&mut self, item: &Item, now: Instant, pause: Duration) {
        if self.until.len() >= self.forget_at.max(FEW_PAUSES) {
            self.until.retain(|_, until| *until > now);
            self.forget_at = self.until.len() * 2;
        }
        self.until.insert(item.clone(), now + pause);
    }
}

/// Tells the publisher of volumes that come and go. Cheap to clone.
#[derive(Clone)]
pub struct CapacityWaker(Arc<Inner>);

impl CapacityPublisher {
    /// A publisher that does nothing until [`Self::run`]. The limits of the context's API should be
    /// its own, for this can be many objects.
    #[must_use]
    pub fn new(
        config: Config,
        context: &Context,
        csi: &Client,
        places: Places,
        driver: &str,
    ) -> Self {
        let retry = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
        let inner = Inner {
            api: context.api.clone(),
            csi: csi.with_timeout(Some(config.timeout)),
            classes: context.cache(),
            places,
            driver: driver.to_owned(),
            book: Mutex::default(),
            expected: Mutex::default(),
            pauses: Mutex::default(),
            queue: context.queue("csistoragecapacity", retry.clone()),
            topology: context.queue("csitopology", retry),
            counts: CapacityMetrics::of(&context.metrics),
            config,
        };
        Self { inner: Arc::new(inner) }
    }

    /// A handle for whoever makes volumes.
    #[must_use]
    pub fn waker(&self) -> CapacityWaker {
        CapacityWaker(self.inner.clone())
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let inner = self.inner;
        // Ends the watch of the objects in whatever way this future ends.
        let stop = shutdown.child_token();
        let _stopped = stop.clone().drop_guard();
        let (config, driver) = (&inner.config, &inner.driver);
        let ours = format!("{DRIVER_LABEL}={driver},{MANAGER_LABEL}={}", config.manager);
        let namespace = Some(config.namespace.clone());
        let scope = Scope { namespace, ..Scope::labels(ours) };
        let (objects, _) = Cache::<CsiStorageCapacity>::start(&inner.api, scope, &stop);
        let polls = inner.clone();
        let (queue, threads) = (inner.queue.clone(), config.threads);
        let refresh = Refresh { inner: inner.clone(), objects: objects.clone() };
        let refresh = Loop::new("capacity", Arc::new(refresh), queue)
            .workers(threads)
            .beside(async move { polls.poll().await });
        let queue = inner.topology.clone();
        let topology = Loop::new("topology", Arc::new(Topology(inner)), queue);
        tokio::join!(refresh.run(&shutdown), topology.run(&shutdown));
    }
}

/// Asks the driver about items, and removes objects that are about nothing any more.
struct Refresh {
    inner: Arc<Inner>,
    objects: Cache<CsiStorageCapacity>,
}

impl Reconciler for Refresh {
    type Key = Work;

    fn sources(&self, sources: &mut Sources<Self>) {
        if let Places::Watched(nodes, csi_nodes) = &self.inner.places {
            sources.needs(nodes).needs(csi_nodes);
        }
        // Objects are judged last, when it is known what they could be about.
        sources
            .observe(&self.inner.classes, |this, change| this.inner.class_changed(change))
            .observe(&self.objects, |this, change| this.inner.object_changed(change));
    }

    fn prepare(&self) {
        self.inner.look_at_places();
    }

    fn subject(&self, work: &Work) -> Subject {
        match work {
            Work::RefreshClass(class) => Subject::key(class),
            Work::Refresh(item) => {
                let place = item.segment.iter().map(|(key, value)| format!("{key}={value}"));
                Subject::key(format_args!("{} in {}", item.class, words::list(place)))
            }
            Work::Remove { name, .. } => Subject::key(name),
        }
    }

    async fn reconcile(&self, work: &Work) -> Outcome {
        self.inner.reconcile(work).await
    }
}

/// Follows where the driver runs.
struct Topology(Arc<Inner>);

impl Reconciler for Topology {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Places::Watched(nodes, csi_nodes) = &self.0.places else { return };
        sources
            .on(nodes, |_, change| {
                let same = matches!(change, Change::Applied { old: Some(old), new }
                    if old.metadata.labels == new.metadata.labels);
                (!same).then(|| change.object().metadata.name.clone())
            })
            .on(csi_nodes, |this, change| {
                let driver = &this.0.driver;
                let keys =
                    |node: &CsiNode| node.driver(driver).map(|one| one.topology_keys.clone());
                let same = matches!(change, Change::Applied { old: Some(old), new }
                    if keys(old) == keys(new));
                (!same).then(|| change.object().metadata.name.clone())
            });
    }

    fn subject(&self, node: &String) -> Subject {
        Subject::node(node)
    }

    async fn reconcile(&self, node: &String) -> Outcome {
        self.0.look_at_node(node);
        Outcome::Done
    }
}

impl CapacityWaker {
    /// A volume of a class was made.
    pub fn made(&self, class: &str, affinity: &VolumeNodeAffinity) {
        self.0.touched(Some(class), affinity);
    }

    /// A volume of a class could not be made; perhaps there is less room than we think.
    pub fn not_made(&self, class: &str) {
        self.0.enqueue_class(class);
    }

    /// A volume was deleted.
    pub fn deleted(&self, affinity: &VolumeNodeAffinity) {
        self.0.touched(None, affinity);
    }
}

impl Inner {
    fn enqueue(&self, work: Vec<Work>) {
        for one in work {
            self.queue.add(one);
        }
    }

    /// Changes the book and queues what follows from it.
    fn change(&self, act: impl FnOnce(&mut Book) -> Vec<Work>) {
        let (work, counts) = {
            let mut book = self.book.lock();
            (act(&mut book), book.counts())
        };
        let gauges = [&self.counts.goal, &self.counts.current, &self.counts.obsolete];
        for (gauge, count) in gauges.into_iter().zip(counts) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.enqueue(work);
    }

    fn touched(&self, class: Option<&str>, affinity: &VolumeNodeAffinity) {
        match (touched(affinity), class) {
            (Touched::Segments(all), _) => {
                let work = self.book.lock().refresh_segments(&all);
                self.enqueue_paced(work);
            }
            (Touched::Class, Some(class)) => self.enqueue_class(class),
            (Touched::Class, None) => {}
        }
    }

    /// Queues all items of a class: those of many volumes at once, not each volume's.
    fn enqueue_class(&self, class: &str) {
        self.queue.add_after(Work::RefreshClass(class.to_owned()), PAUSE_MIN);
    }

    /// Queues what volumes have touched, after its pause.
    fn enqueue_paced(&self, work: Vec<Work>) {
        let pauses = self.pauses.lock();
        for one in work {
            let until = match &one {
                Work::Refresh(item) => pauses.until.get(item).copied(),
                Work::RefreshClass(_) | Work::Remove { .. } => None,
            };
            let wait = until.map_or(Duration::ZERO, |at| at.duration_since(Instant::now()));
            self.queue.add_after(one, wait);
        }
    }

    /// An item was looked at since `started`.
    fn pause(&self, item: &Item, started: Instant) {
        let now = Instant::now();
        let pause = ((now - started) * PAUSE_FACTOR).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pauses.lock().add(item, now, pause);
    }

    fn look_at_places(&self) {
        match &self.places {
            Places::Fixed(segment) => {
                // One node, whose name is not asked.
                self.change(|book| book.set_node("", Some(segment.clone())));
            }
            Places::Watched(_, csi_nodes) => {
                csi_nodes.list().iter().for_each(|node| self.look_at_node(&node.metadata.name));
            }
        }
    }

    fn look_at_node(&self, name: &str) {
        let Places::Watched(nodes, csi_nodes) = &self.places else { return };
        let key = ObjectKey::cluster(name);
        self.change(|book| {
            // Read here, so that of two looks at a node the later one counts.
            let place = nodes
                .get(&key)
                .zip(csi_nodes.get(&key))
                .and_then(|(node, csi_node)| segment_on(&self.driver, &csi_node, &node));
            book.set_node(name, place)
        });
    }

    fn class_changed(&self, change: &Change<StorageClass>) {
        let name = &change.object().metadata.name;
        let published = |new: &Arc<_>| is_published(new, &self.driver, self.config.for_immediate);
        let wanted = change.applied().is_some_and(published);
        self.change(|book| match wanted {
            true => book.want_class(name),
            false => book.drop_class(name),
        });
    }

    fn object_changed(&self, change: &Change<CsiStorageCapacity>) {
        match change {
            Change::Applied { old, new } => {
                // Deleted and made again between two looks of the watch.
                let replaced = old.as_ref().map(|old| &old.metadata.uid);
                if let Some(uid) = replaced.filter(|uid| **uid != new.metadata.uid) {
                    self.change(|book| book.object_gone(uid));
                }
                if let Some(item) = Item::of(new) {
                    self.expected.lock().remove(&item);
                }
                self.change(|book| book.object_seen(new));
            }
            Change::Deleted { old } => self.change(|book| book.object_gone(&old.metadata.uid)),
        }
    }

    async fn poll(&self) {
        loop {
            self.enqueue(self.book.lock().all());
            tokio::time::sleep(self.config.poll).await;
        }
    }

    async fn reconcile(&self, work: &Work) -> Outcome {
        match work {
            Work::Refresh(item) => {
                let started = Instant::now();
                let outcome = self.refresh(item).await;
                self.pause(item, started);
                outcome
            }
            Work::RefreshClass(class) => {
                let work = self.book.lock().refresh_class(class);
                self.enqueue_paced(work);
                Outcome::Done
            }
            Work::Remove { name, uid } => {
                let key = ObjectKey::new(self.config.namespace.clone(), name.clone());
                let only = DeleteParams::uid(uid.clone());
                match self.api.delete::<CsiStorageCapacity>(&key, &only).await.optional() {
                    // Another one of that name by now.
                    Err(error) if error.is_conflict() => Outcome::Done,
                    deleted => deleted.map(drop).into(),
                }
            }
        }
    }
}
