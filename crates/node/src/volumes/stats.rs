//! How full volumes are: metrics under the kubelet's names, and its summary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Metrics, clock};
use longshore_core::stage::verdict::Mounted;
use longshore_csi::capabilities::{NodeCapabilities, NodeCapability};
use longshore_csi::v1;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::mount::text;
use super::{Plugin, VolumeManager};

/// How often drivers are asked.
const PERIOD: Duration = Duration::from_secs(60);

/// What is known of one volume of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Usage {
    bytes: Option<[i64; 3]>,
    inodes: Option<[i64; 3]>,
}

impl Usage {
    /// Total, available and used, per unit; units that nobody knows are passed over.
    fn of(answer: &v1::NodeGetVolumeStatsResponse) -> Self {
        let mut usage = Self::default();
        for one in &answer.usage {
            let values = Some([one.total, one.available, one.used]);
            match one.unit() {
                v1::volume_usage::Unit::Bytes => usage.bytes = values,
                v1::volume_usage::Unit::Inodes => usage.inodes = values,
                v1::volume_usage::Unit::Unknown => {}
            }
        }
        usage
    }
}

/// One volume of one pod, as it was last measured.
#[derive(Debug, Clone)]
struct Sample {
    uid: String,
    pod: String,
    namespace: String,
    name: String,
    claim: Option<String>,
    usage: Usage,
    time: String,
}

/// How full the volumes of a node's pods are. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct NodeStats {
    node: Arc<str>,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl NodeStats {
    pub(crate) fn new(node: &str) -> Self {
        Self { node: node.into(), samples: Arc::default() }
    }

    /// The kubelet's `/stats/summary`, as far as it speaks of volumes.
    #[must_use]
    pub fn summary(&self) -> Value {
        let mut pods: BTreeMap<String, Value> = BTreeMap::new();
        for one in self.samples.lock().iter() {
            let pod = pods.entry(one.uid.clone()).or_insert_with(|| {
                let reference =
                    json!({"name": one.pod, "namespace": one.namespace, "uid": one.uid});
                json!({"podRef": reference, "volume": []})
            });
            let mut volume = json!({"time": one.time, "name": one.name});
            let names = ["capacityBytes", "availableBytes", "usedBytes"];
            let inodes = ["inodes", "inodesFree", "inodesUsed"];
            for (names, values) in [(names, one.usage.bytes), (inodes, one.usage.inodes)] {
                for (name, value) in names.into_iter().zip(values.into_iter().flatten()) {
                    volume[name] = value.into();
                }
            }
            if let Some(claim) = &one.claim {
                volume["pvcRef"] = json!({"name": claim, "namespace": one.namespace});
            }
            if let Some(list) = pod["volume"].as_array_mut() {
                list.push(volume);
            }
        }
        json!({"node": {"nodeName": &*self.node}, "pods": pods.into_values().collect::<Vec<_>>()})
    }
}

type ClaimLabels = [(&'static str, String); 2];

/// The metrics of the volume manager.
pub(super) struct Gauges {
    bytes: [Family<ClaimLabels, Gauge>; 3],
    inodes: [Family<ClaimLabels, Gauge>; 3],
    volumes: Family<ClaimLabels, Gauge>,
    label_conflicts: Family<ClaimLabels, Counter>,
    reconstructed: Counter,
    not_reconstructed: Counter,
    forced: Counter,
    not_forced: Counter,
}

impl Gauges {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let gauges = Self {
            bytes: Default::default(),
            inodes: Default::default(),
            volumes: Family::default(),
            label_conflicts: Family::default(),
            reconstructed: Counter::default(),
            not_reconstructed: Counter::default(),
            forced: Counter::default(),
            not_forced: Counter::default(),
        };
        let names = [
            ("capacity_bytes", "available_bytes", "used_bytes"),
            ("inodes", "inodes_free", "inodes_used"),
        ];
        metrics.with_registry(|all| {
            for ((total, free, used), families) in
                names.into_iter().zip([&gauges.bytes, &gauges.inodes])
            {
                for (name, family) in [total, free, used].into_iter().zip(families) {
                    let help = "What the driver says about the volume";
                    all.register(format!("kubelet_volume_stats_{name}"), help, family.clone());
                }
            }
            let help = "Volumes of pods by plugin and state";
            all.register("volume_manager_total_volumes", help, gauges.volumes.clone());
            all.register(
                "volume_manager_selinux_volume_context_mismatch_errors",
                "Pods refused because another pod has the volume with another SELinux label",
                gauges.label_conflicts.clone(),
            );
            for (name, help, counter) in [
                (
                    "reconstruct_volume_operations",
                    "Volumes found on disk at start",
                    &gauges.reconstructed,
                ),
                (
                    "reconstruct_volume_operations_errors",
                    "Volumes found on disk at start that nobody can make sense of",
                    &gauges.not_reconstructed,
                ),
                (
                    "force_cleaned_failed_volume_operations",
                    "Volumes unmounted without their driver, because their metadata was lost",
                    &gauges.forced,
                ),
                (
                    "force_cleaned_failed_volume_operation_errors",
                    "Volumes that could not be unmounted without their driver",
                    &gauges.not_forced,
                ),
            ] {
                all.register(name, help, counter.clone());
            }
        });
        gauges
    }

    pub(super) fn label_conflict(&self, access_mode: &str, driver: &str) {
        let plugin = format!("kubernetes.io/csi:{driver}");
        let labels = [("access_mode", access_mode.to_owned()), ("volume_plugin", plugin)];
        self.label_conflicts.get_or_create(&labels).inc();
    }

    pub(super) fn reconstructed(&self) {
        self.reconstructed.inc();
    }

    pub(super) fn not_reconstructed(&self) {
        self.not_reconstructed.inc();
    }

    pub(super) fn forced(&self) {
        self.forced.inc();
    }

    pub(super) fn not_forced(&self) {
        self.not_forced.inc();
    }

    /// One set of figures per claim, however many pods use it: the first pod's.
    fn show(&self, samples: &[Sample]) {
        for family in self.bytes.iter().chain(&self.inodes) {
            family.clear();
        }
        let mut seen = BTreeSet::new();
        for one in samples {
            let Some(claim) = &one.claim else { continue };
            if !seen.insert((&one.namespace, claim)) {
                continue;
            }
            let labels =
                [("namespace", one.namespace.clone()), ("persistentvolumeclaim", claim.clone())];
            for (families, values) in
                [(&self.bytes, one.usage.bytes), (&self.inodes, one.usage.inodes)]
            {
                for (family, value) in families.iter().zip(values.into_iter().flatten()) {
                    family.get_or_create(&labels).set(value);
                }
            }
        }
    }
}

/// A mounted volume of a pod that can be asked about.
struct Target {
    sample: Sample,
    driver: String,
    request: v1::NodeGetVolumeStatsRequest,
}

impl VolumeManager {
    /// Asks drivers how full their volumes are, once a minute, until told to stop.
    pub(crate) async fn collect_stats(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.collect_once() => {}
            }
        }
    }

    /// Asks once, now.
    pub(crate) async fn collect_once(&self) {
        let mut samples = Vec::new();
        for Target { mut sample, driver, request } in self.stats_targets() {
            match self.ask_stats(&driver, request).await {
                Ok(Some(usage)) => sample.usage = usage,
                Ok(None) => continue,
                Err(text) => {
                    tracing::debug!(driver, volume = sample.name, error = text, "no statistics");
                    continue;
                }
            }
            samples.push(sample);
        }
        self.gauges.show(&samples);
        *self.deps.stats.samples.lock() = samples;
        self.count_volumes();
    }

    fn stats_targets(&self) -> Vec<Target> {
        let state = self.state();
        let mut targets = Vec::new();
        for (uid, facts) in &state.pods {
            for (name, one) in facts.uses.iter().flatten() {
                let (Some(volume), Some(known)) =
                    (state.volumes.get(&one.unique), state.world.actual.get(&one.unique))
                else {
                    continue;
                };
                let mounted = known.pods.get(uid).is_some_and(|mount| mount.state == Mounted::Yes);
                if volume.plugin != Plugin::Csi || !mounted {
                    continue;
                }
                let path = match volume.block {
                    true => self.deps.paths.block(&volume.spec_name).dev.join(uid),
                    false => one.path.clone(),
                };
                targets.push(Target {
                    sample: Sample {
                        uid: uid.clone(),
                        pod: facts.pod.metadata.name.clone(),
                        namespace: facts.pod.metadata.namespace.clone(),
                        name: name.clone(),
                        claim: one.claim.as_ref().map(|key| key.name.clone()),
                        usage: Usage::default(),
                        time: clock::seconds(clock::now()),
                    },
                    driver: volume.driver.clone(),
                    request: v1::NodeGetVolumeStatsRequest {
                        volume_id: volume.handle.clone(),
                        volume_path: text(&path),
                        ..Default::default()
                    },
                });
            }
        }
        targets
    }

    async fn ask_stats(
        &self,
        driver: &str,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Result<Option<Usage>, String> {
        let client = self.deps.drivers.client(driver).ok_or("the driver is not registered")?;
        let capabilities = client.node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await;
        let capabilities = capabilities.map_err(|error| error.to_string())?;
        if !NodeCapabilities::from(&capabilities).has(NodeCapability::GetVolumeStats) {
            return Ok(None);
        }
        let answer = client.node_get_volume_stats(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.usage.is_empty() {
            return Err("the driver answered without usage".to_owned());
        }
        Ok(Some(Usage::of(&answer)))
    }

    fn count_volumes(&self) {
        let state = self.state();
        let mut counts: BTreeMap<(String, &str), i64> = BTreeMap::new();
        let mut count = |unique: &str, pods: usize, which: &'static str| {
            let driver = state.volumes.get(unique).map(|facts| facts.driver.as_str());
            let plugin = format!("kubernetes.io/csi:{}", driver.unwrap_or_default());
            *counts.entry((plugin, which)).or_default() += i64::try_from(pods).unwrap_or(0);
        };
        for (unique, known) in &state.world.actual {
            count(unique, known.pods.len(), "actual_state_of_world");
        }
        for (unique, wanted) in &state.world.desired {
            count(unique, wanted.pods.len(), "desired_state_of_world");
        }
        self.gauges.volumes.clear();
        for ((plugin, which), number) in counts {
            let labels = [("plugin_name", plugin), ("state", which.to_owned())];
            self.gauges.volumes.get_or_create(&labels).set(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_set_of_gauges_per_claim() {
        // case: node/N66
        let usage = |unit: v1::volume_usage::Unit, [total, available, used]: [i64; 3]| {
            v1::VolumeUsage { total, available, used, unit: unit.into() }
        };
        let answer = v1::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(v1::volume_usage::Unit::Bytes, [10, 9, 1]),
                usage(v1::volume_usage::Unit::Inodes, [100, 70, 30]),
                usage(v1::volume_usage::Unit::Unknown, [7, 7, 7]),
            ],
            volume_condition: None,
        };
        let sample = |uid: &str, claim: Option<&str>| Sample {
            uid: uid.to_owned(),
            pod: format!("pod-{uid}"),
            namespace: "ns".to_owned(),
            name: "v".to_owned(),
            claim: claim.map(str::to_owned),
            usage: Usage::of(&answer),
            time: "2026-01-01T00:00:00Z".to_owned(),
        };
        let metrics = Metrics::new();
        let samples = vec![sample("a", Some("data")), sample("b", Some("data")), sample("c", None)];
        Gauges::register(&metrics).show(&samples);
        let text = metrics.render();
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("kubelet_volume_stats_")).collect();
        assert_eq!(lines.len(), 6, "{lines:?}");
        for (name, value) in [
            ("capacity_bytes", 10),
            ("available_bytes", 9),
            ("used_bytes", 1),
            ("inodes", 100),
            ("inodes_free", 70),
            ("inodes_used", 30),
        ] {
            let line = format!(
                "kubelet_volume_stats_{name}{{namespace=\"ns\",persistentvolumeclaim=\"data\"}} {value}"
            );
            assert!(lines.contains(&line.as_str()), "{line} in {lines:?}");
        }
        let stats = NodeStats::new("n1");
        *stats.samples.lock() = samples;
        let summary = stats.summary();
        assert_eq!(summary["pods"].as_array().map(Vec::len), Some(3));
        assert_eq!(summary["pods"][0]["volume"][0]["pvcRef"]["name"], "data");
        assert_eq!(summary["pods"][0]["volume"][0]["inodesFree"], 70);
        assert!(
            summary["pods"][2]["volume"][0]["pvcRef"].is_null(),
            "inline volumes have no claim"
        );
    }
}
