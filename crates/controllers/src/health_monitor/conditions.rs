//! Asks about conditions, as of CSI 1.3 to 1.12: all volumes in one list, or volume by volume.

use std::{collections::BTreeMap, sync::Arc};

use longshore_cluster::{
    Change, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::{
    health::Condition,
    model::{ObjectKey, kinds::Volume},
    words,
};
use longshore_csi::v1;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Monitor, condition};

/// Lists all volumes, and again when the interval has passed since the end of the last list.
pub(super) async fn list(monitor: &Arc<Monitor>, shutdown: &CancellationToken) {
    let queue = monitor.context.queue("csi-monitor-list-queue", QueueOptions::controller());
    queue.add(());
    let lists = Arc::new(Lists(monitor.clone()));
    Loop::new("health", lists, queue).run(shutdown).await;
}

/// The one key of this loop is the list.
struct Lists(Arc<Monitor>);

impl Reconciler for Lists {
    type Key = ();

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.needs(&self.0.volumes).needs(&self.0.claims);
        self.0.needs_node(sources);
    }

    fn subject(&self, (): &()) -> Subject {
        Subject::key("all volumes")
    }

    async fn reconcile(&self, (): &()) -> Outcome {
        let monitor = &self.0;
        match monitor.conditions().await {
            Ok(conditions) => {
                for volume in monitor.volumes.list() {
                    let handle = monitor.handle_of(&volume);
                    // A volume that the driver does not list is not spoken of.
                    if let Some(condition) = handle.and_then(|handle| conditions.get(handle)) {
                        monitor.report(&volume, condition.as_ref());
                    }
                }
            }
            Err(error) => {
                let error = words::causes(&error);
                tracing::warn!(error, driver = monitor.driver, "cannot list the driver's volumes");
            }
        }
        Outcome::After(monitor.config.list_volumes_interval)
    }
}

impl Monitor {
    /// The condition of each volume by its handle, from a list without a failed page.
    async fn conditions(
        &self,
    ) -> Result<BTreeMap<String, Option<Condition>>, longshore_csi::CsiError> {
        let mut all = BTreeMap::new();
        let csi = self.csi.with_deadline(Instant::now() + self.config.timeout);
        csi.list_all_volumes(v1::ListVolumesRequest::default(), |entry| {
            let seen = entry.status.and_then(|status| status.volume_condition);
            all.insert(entry.volume.unwrap_or_default().volume_id, condition(seen));
        })
        .await?;
        Ok(all)
    }
}

/// Asks volume by volume. Each worker rests for the interval after each volume, so that the driver gets as many calls
/// in an interval as there are workers.
pub(super) async fn get(monitor: &Arc<Monitor>, shutdown: &CancellationToken) {
    let queue = monitor.context.queue("csi-monitor-pv-queue", QueueOptions::controller());
    let workers = monitor.config.worker_threads.get() as usize;
    let volumes = Volumes { monitor: monitor.clone(), stop: shutdown.clone() };
    let rescan = monitor.config.volume_list_add_interval;
    let queue: WorkQueue<ObjectKey> = queue;
    Loop::new("health", Arc::new(volumes), queue)
        .workers(workers)
        .resync(rescan)
        .run(shutdown)
        .await;
}

struct Volumes {
    monitor: Arc<Monitor>,
    stop: CancellationToken,
}

impl Volumes {
    fn key_of(&self, volume: &Volume) -> Option<ObjectKey> {
        self.monitor.handle_of(volume).map(|_| volume.metadata.key())
    }
}

impl Reconciler for Volumes {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Monitor { volumes, claims, .. } = self.monitor.as_ref();
        self.monitor.needs_node(sources);
        sources
            .needs(claims)
            .on(volumes, |this, change| match change {
                // Also one that is bound only later, which the original overlooks.
                Change::Applied { old, new } => {
                    let before = old.as_deref().and_then(|old| this.key_of(old));
                    this.key_of(new).filter(|_| before.is_none())
                }
                Change::Deleted { .. } => None,
            })
            .on_resync(volumes, Self::key_of);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::volume(&key.name)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let monitor = &self.monitor;
        let volume = monitor.volumes.get(key);
        let Some((volume, handle)) = volume.as_ref().and_then(|volume| {
            let handle = monitor.handle_of(volume)?;
            Some((volume, handle))
        }) else {
            // It comes back when it is bound again, or another one has its name.
            return Outcome::Done;
        };
        let request = v1::ControllerGetVolumeRequest { volume_id: handle.to_owned() };
        match monitor.csi.controller_get_volume(request).await {
            Ok(response) => {
                let seen = response.status.and_then(|status| status.volume_condition);
                monitor.report(volume, condition(seen).as_ref());
            }
            Err(error) => {
                let error = words::causes(&error);
                tracing::warn!(error, driver = monitor.driver, "cannot ask about the volume");
            }
        }
        let rest = tokio::time::sleep(monitor.config.monitor_interval);
        match self.stop.run_until_cancelled(rest).await {
            Some(()) => Outcome::Again,
            None => Outcome::Done,
        }
    }
}
