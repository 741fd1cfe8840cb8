//! What the binder counts, under upstream's names.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use longshore_cluster::{
    Cache, Metrics,
    telemetry::{RegistryExt as _, VolumeOperations, encode_gauges},
};
use longshore_core::model::kinds::{Claim, Volume};
use longshore_core::model::{ClaimPhase, VolumePhase};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::time::Instant;

/// No plugin or provisioner could be named.
pub(super) const UNKNOWN: &str = "N/A";

type OperationLabels = [(&'static str, String); 2];

/// Work that ends with somebody else's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    /// From the first request for a volume until the claim is bound. Kept under the claim's key.
    Provision,
    /// From the release until the volume's object is gone. Kept under the volume's name.
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Delete => "delete",
        }
    }
}

/// Counters and durations.
#[derive(Clone)]
pub(super) struct BindMetrics {
    inner: Arc<Inner>,
}

struct Inner {
    operations: VolumeOperations,
    errors: Family<OperationLabels, Counter>,
    /// The same under the name that it had before; dashboards keep names for long.
    old_errors: Family<OperationLabels, Gauge>,
    defaulted: Counter,
    default_failed: Counter,
    begun: Mutex<HashMap<(Operation, String), (String, Instant)>>,
    counting: Mutex<bool>,
}

impl BindMetrics {
    pub(super) fn of(metrics: &Metrics) -> Self {
        let operations = VolumeOperations::of(metrics);
        metrics.shared(|registry| Self { inner: Arc::new(Inner::register(registry, operations)) })
    }

    /// Counts what the caches hold at every scrape, from now on.
    pub(super) fn count(&self, metrics: &Metrics, volumes: &Cache<Volume>, claims: &Cache<Claim>) {
        let mut counting = self.inner.counting.lock();
        if !std::mem::replace(&mut *counting, true) {
            let counts = Counts { volumes: volumes.clone(), claims: claims.clone() };
            metrics.with_registry(|r| r.register_collector(Box::new(counts)));
        }
    }

    /// An operation begins, unless it is in flight already.
    pub(super) fn begin(&self, operation: Operation, key: &str, plugin: impl FnOnce() -> String) {
        let mut begun = self.inner.begun.lock();
        begun.entry((operation, key.to_owned())).or_insert_with(|| (plugin(), Instant::now()));
    }

    /// It came to its end.
    pub(super) fn end(&self, operation: Operation, key: &str) {
        let begun = self.inner.begun.lock().remove(&(operation, key.to_owned()));
        if let Some((plugin, since)) = begun {
            self.inner.operations.completed(&plugin, operation.name(), since.elapsed());
        }
    }

    /// A try failed; it goes on.
    pub(super) fn fail(&self, operation: Operation, key: &str) {
        let begun = self.inner.begun.lock();
        if let Some((plugin, _)) = begun.get(&(operation, key.to_owned())) {
            let name = operation.name().to_owned();
            let labels = [("plugin_name", plugin.clone()), ("operation_name", name)];
            self.inner.errors.get_or_create(&labels).inc();
            self.inner.old_errors.get_or_create(&labels).inc();
        }
    }

    /// The in-tree plugin has done its part, or failed to.
    pub(super) fn in_tree(
        &self,
        operation: Operation,
        plugin: &'static str,
        since: Instant,
        ok: bool,
    ) {
        let name = match operation {
            Operation::Provision => "volume_provision",
            Operation::Delete => "volume_delete",
        };
        self.inner.operations.ended(plugin, name, false, since.elapsed(), ok);
    }

    /// Nobody waits for its end any more.
    pub(super) fn discard(&self, operation: Operation, key: &str) {
        self.inner.begun.lock().remove(&(operation, key.to_owned()));
    }

    /// A class was written into a claim that had none, or could not be.
    pub(super) fn defaulted(&self, written: bool) {
        self.inner.defaulted.inc();
        if !written {
            self.inner.default_failed.inc();
        }
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self, operation: Operation, key: &str) -> bool {
        self.inner.begun.lock().contains_key(&(operation, key.to_owned()))
    }
}

impl Inner {
    fn register(registry: &mut Registry, operations: VolumeOperations) -> Self {
        Self {
            operations,
            errors: registry.metric("volume_operation_errors", "Total volume operation errors"),
            old_errors: registry.metric(
                "volume_operation_total_errors",
                "(Deprecated: use volume_operation_errors_total) Total volume operation errors",
            ),
            defaulted: registry.metric(
                "retroactive_storageclass",
                "Total number of retroactive StorageClass assignments to persistent volume claim",
            ),
            default_failed: registry.metric(
                "retroactive_storageclass_errors",
                "Total number of failed retroactive StorageClass assignments to persistent volume claim",
            ),
            begun: Mutex::default(),
            counting: Mutex::default(),
        }
    }
}

/// Volumes and claims by what they are, read from the caches at each scrape.
struct Counts {
    volumes: Cache<Volume>,
    claims: Cache<Claim>,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counts")
    }
}

type Gauges = BTreeMap<Vec<(&'static str, String)>, i64>;

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let [mut all, mut bound, mut unbound, mut bound_claims, mut unbound_claims] =
            [(); 5].map(|()| Gauges::new());
        for volume in self.volumes.list() {
            let is_bound = volume.status.phase == VolumePhase::Bound;
            let count = if is_bound { &mut bound } else { &mut unbound };
            *count
                .entry(vec![("storage_class", volume.spec.storage_class_name.clone())])
                .or_default() += 1;
            let plugin =
                volume.spec.host_path.as_ref().map_or(UNKNOWN, |_| "kubernetes.io/host-path");
            let labels = vec![
                ("plugin_name", plugin.to_owned()),
                ("volume_mode", volume.volume_mode().to_string()),
            ];
            *all.entry(labels).or_default() += 1;
        }
        for claim in self.claims.list() {
            let is_bound = claim.status.phase == ClaimPhase::Bound;
            let count = if is_bound { &mut bound_claims } else { &mut unbound_claims };
            let spec = &claim.spec;
            let labels = vec![
                ("namespace", claim.metadata.namespace.clone()),
                ("storage_class", spec.storage_class_name.clone().unwrap_or_default()),
                (
                    "volume_attributes_class",
                    spec.volume_attributes_class_name.clone().unwrap_or_default(),
                ),
            ];
            *count.entry(labels).or_default() += 1;
        }
        let families = [
            (
                "pv_collector_total_pv_count",
                "Gauge measuring total number of persistent volumes",
                all,
            ),
            (
                "pv_collector_bound_pv_count",
                "Gauge measuring number of persistent volume currently bound",
                bound,
            ),
            (
                "pv_collector_unbound_pv_count",
                "Gauge measuring number of persistent volume currently unbound",
                unbound,
            ),
            (
                "pv_collector_bound_pvc_count",
                "Gauge measuring number of persistent volume claim currently bound",
                bound_claims,
            ),
            (
                "pv_collector_unbound_pvc_count",
                "Gauge measuring number of persistent volume claim currently unbound",
                unbound_claims,
            ),
        ];
        for (name, help, gauges) in families {
            encode_gauges(&mut encoder, name, help, gauges)?;
        }
        Ok(())
    }
}
