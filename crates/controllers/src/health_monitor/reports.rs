//! Asks about the health of volumes, as of CSI 1.13: all in one list, or volume by volume.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use longshore_cluster::{
    Change, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::{
    health::conditions::{Decision, Entry, HealthReport, Observed, sanitise},
    model::{
        ObjectKey,
        kinds::{Node, Volume},
    },
    words,
};
use longshore_csi::{Call, CsiError, v1};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Monitor, claims::Claims};

/// Lists all volumes that are not healthy, and again when the interval has passed since the end of the last list.
pub(super) async fn list(monitor: &Arc<Monitor>, confirm: bool, shutdown: &CancellationToken) {
    let queue = monitor.context.queue("csi-monitor-list-queue", QueueOptions::controller());
    queue.add(());
    let lists = Arc::new(Lists { claims: Claims::new(monitor), confirm });
    Loop::new("health", lists, queue).run(shutdown).await;
}

/// The one key of this loop is the list.
struct Lists {
    claims: Claims,
    /// Whether the driver can be asked about one volume, too.
    confirm: bool,
}

/// What one list said, by handle.
struct Listed {
    reports: BTreeMap<String, HealthReport>,
    complete: bool,
}

impl Reconciler for Lists {
    type Key = ();

    fn sources(&self, sources: &mut Sources<Self>) {
        let monitor = &self.claims.monitor;
        sources.needs(&monitor.volumes).needs(&monitor.claims);
        monitor.needs_node(sources);
    }

    fn subject(&self, (): &()) -> Subject {
        Subject::key("all volumes")
    }

    async fn reconcile(&self, (): &()) -> Outcome {
        let config = &self.claims.monitor.config;
        let listed = self.list().await;
        let volumes = self.watched();
        let workers = config.worker_threads.get() as usize;
        let mut visits = FuturesUnordered::new();
        for (handle, volume) in &volumes {
            if visits.len() >= workers {
                visits.next().await;
            }
            visits.push(self.visit(volume, handle, &listed));
        }
        while visits.next().await.is_some() {}
        let names: BTreeSet<&str> =
            volumes.iter().map(|(_, volume)| volume.metadata.name.as_str()).collect();
        self.claims.keep_only(|volume| names.contains(volume));
        Outcome::After(config.list_volumes_interval)
    }
}

impl Lists {
    /// The volumes that are watched, each with its handle.
    fn watched(&self) -> Vec<(String, Arc<Volume>)> {
        let monitor = &self.claims.monitor;
        let with_handle = |volume: Arc<Volume>| {
            let handle = monitor.handle_of(&volume)?.to_owned();
            Some((handle, volume))
        };
        monitor.volumes.list().into_iter().filter_map(with_handle).collect()
    }

    /// One list with all its pages. A token that has become stale is answered by beginning again, once.
    async fn list(&self) -> Listed {
        let monitor = &self.claims.monitor;
        let (mut entries, mut ended) = self.list_once().await;
        if ended.as_ref().is_err_and(CsiError::is_stale_token) {
            (entries, ended) = self.list_once().await;
        }
        if let Err(error) = &ended {
            let (error, driver) = (words::causes(error), monitor.driver.as_str());
            tracing::warn!(error, driver, "cannot list the health of the driver's volumes");
        }
        let reports = entries.into_iter().map(|(handle, entries)| (handle, sanitise(entries)));
        Listed { reports: reports.collect(), complete: ended.is_ok() }
    }

    /// The entries of all pages before the end or an error. A volume may be on several pages.
    async fn list_once(&self) -> (BTreeMap<String, Vec<Entry>>, Result<(), CsiError>) {
        let monitor = &self.claims.monitor;
        let (start, mut all) = (Instant::now(), BTreeMap::<String, Vec<Entry>>::new());
        let request = v1::ControllerListVolumeHealthRequest::default();
        let ended = monitor.csi.list_all_volume_health(request, |health| {
            all.entry(health.volume_id).or_default().extend(entries(health.health_statuses));
        });
        let ended = ended.await;
        let call = Call::ControllerListVolumeHealth;
        self.claims.metrics.probed(&monitor.driver, call, start.elapsed(), ended.is_ok());
        (all, ended)
    }

    /// Carries into one claim what the list said of its volume, or left out.
    async fn visit(&self, volume: &Volume, handle: &str, listed: &Listed) {
        if !listed.complete && self.confirm && self.claims.ask(volume, handle).await {
            return;
        }
        let observed = match (listed.reports.get(handle), listed.complete) {
            (Some(report), true) => Observed::Reported(report),
            (Some(report), false) => Observed::Partly(report),
            (None, true) => {
                let before = self.claims.absences(volume);
                Observed::Absent { before, confirm: self.confirm }
            }
            (None, false) => Observed::Failed,
        };
        if self.claims.settle(volume, observed).await == Decision::Confirm
            && !self.claims.ask(volume, handle).await
        {
            tracing::debug!(volume = volume.metadata.name, "not listed, and that is not confirmed");
        }
    }
}

/// Asks volume by volume, about each once in the interval.
pub(super) async fn get(monitor: &Arc<Monitor>, shutdown: &CancellationToken) {
    let queue: WorkQueue<ObjectKey> =
        monitor.context.queue("csi-monitor-pv-queue", QueueOptions::controller());
    let workers = monitor.config.worker_threads.get() as usize;
    let volumes = Arc::new(Volumes { claims: Claims::new(monitor) });
    Loop::new("health", volumes, queue).workers(workers).run(shutdown).await;
}

struct Volumes {
    claims: Claims,
}

impl Volumes {
    fn is_watched(&self, volume: &Volume) -> bool {
        self.claims.monitor.handle_of(volume).is_some()
    }

    /// All volumes, when other ones are this node's.
    fn on_node(&self, change: &Change<Node>) -> Vec<ObjectKey> {
        let moved = match change {
            Change::Applied { old: Some(old), new } => old.metadata.labels != new.metadata.labels,
            Change::Applied { old: None, .. } | Change::Deleted { .. } => true,
        };
        if !moved {
            return Vec::new();
        }
        let volumes = self.claims.monitor.volumes.list();
        volumes.iter().map(|volume| volume.metadata.key()).collect()
    }
}

impl Reconciler for Volumes {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Monitor { volumes, claims, node, .. } = self.claims.monitor.as_ref();
        sources.needs(claims).on(volumes, |this, change| {
            // One that is watched comes back by itself. One that is watched no more is forgotten.
            let (old, new) = match change {
                Change::Applied { old, new } => (old.as_deref(), Some(new.as_ref())),
                Change::Deleted { old } => (Some(old.as_ref()), None),
            };
            let was = old.is_some_and(|volume| this.is_watched(volume));
            let is = new.is_some_and(|volume| this.is_watched(volume));
            (was != is).then(|| change.object().metadata.key())
        });
        if let Some(node) = node {
            sources.on(&node.cache, |this, change| this.on_node(change));
        }
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::volume(&key.name)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let monitor = &self.claims.monitor;
        let volume = monitor.volumes.get(key);
        let watched = volume.as_ref().and_then(|volume| Some((volume, monitor.handle_of(volume)?)));
        let Some((volume, handle)) = watched else {
            self.claims.forget(&key.name);
            return Outcome::Done;
        };
        if !self.claims.ask(volume, handle).await {
            self.claims.settle(volume, Observed::Failed).await;
        }
        Outcome::After(monitor.config.monitor_interval)
    }
}

impl Claims {
    /// Asks about one volume and carries the answer into its claim. False without an answer: then nothing is known.
    async fn ask(&self, volume: &Volume, handle: &str) -> bool {
        let monitor = &self.monitor;
        let (start, call) = (Instant::now(), Call::ControllerGetVolumeHealth);
        let request = v1::ControllerGetVolumeHealthRequest {
            volume_id: handle.to_owned(),
            ..v1::ControllerGetVolumeHealthRequest::default()
        };
        let answer = monitor.csi.controller_get_volume_health(request).await;
        let answer = answer.map_err(|error| words::causes(&error)).and_then(|response| {
            let health = response.volume_health.filter(|health| health.volume_id == handle);
            health.ok_or_else(|| "the response is not about this volume".to_owned())
        });
        self.metrics.probed(&monitor.driver, call, start.elapsed(), answer.is_ok());
        match answer {
            Ok(health) => {
                let report = sanitise(entries(health.health_statuses));
                self.settle(volume, Observed::Reported(&report)).await;
                true
            }
            Err(error) => {
                let (volume, driver) = (&volume.metadata.name, monitor.driver.as_str());
                tracing::warn!(error, volume, driver, "cannot ask about the health of the volume");
                false
            }
        }
    }
}

/// The driver's entries in the terms of the rules.
fn entries(of: Vec<v1::volume_health::VolumeHealthEntry>) -> impl Iterator<Item = Entry> {
    of.into_iter().map(|v1::volume_health::VolumeHealthEntry { status, reason, message }| Entry {
        status,
        reason,
        message,
    })
}
