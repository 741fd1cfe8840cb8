//! How full volumes are: what drivers say, once a minute, and the kubelet's summary of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use longshore_cluster::controller::note;
use longshore_cluster::{
    Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue, clock,
};
use longshore_core::model::Uid;
use longshore_core::stage::verdict::Mounted;
use longshore_csi::{Call, CsiError, v1};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::mount::text;
use super::{Plugin, VolumeManager};

/// Drivers that are asked side by side.
const WORKERS: usize = 8;

/// How much of a volume is there, in bytes or inodes. What the driver does not report is zero, as
/// users know it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub total: i64,
    pub available: i64,
    pub used: i64,
}

/// What a driver reports of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub bytes: Amount,
    pub inodes: Amount,
    /// Absent when the driver does not judge.
    pub abnormal: Option<bool>,
}

impl Usage {
    fn of(response: &v1::NodeGetVolumeStatsResponse) -> Self {
        let abnormal = response.volume_condition.as_ref().map(|condition| condition.abnormal);
        let mut usage = Self { abnormal, ..Self::default() };
        for one in &response.usage {
            let amount = Amount { total: one.total, available: one.available, used: one.used };
            match one.unit() {
                v1::volume_usage::Unit::Bytes => usage.bytes = amount,
                v1::volume_usage::Unit::Inodes => usage.inodes = amount,
                v1::volume_usage::Unit::Unknown => {}
            }
        }
        usage
    }
}

/// How full the volume of one claim is.
pub(crate) struct ClaimUsage {
    pub namespace: String,
    pub claim: String,
    pub usage: Usage,
}

/// One volume of one pod, as it was last measured.
#[derive(Debug, Clone)]
struct Sample {
    /// The pod's name for it.
    name: String,
    claim: Option<String>,
    usage: Usage,
    time: String,
}

/// One pod with its volumes.
#[derive(Debug, Clone)]
struct PodSample {
    uid: Uid,
    pod: String,
    namespace: String,
    volumes: Vec<Sample>,
}

/// How full the volumes of a node's pods are. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct NodeStats {
    node: Arc<str>,
    pods: Arc<Mutex<Vec<PodSample>>>,
}

impl NodeStats {
    pub(crate) fn new(node: &str) -> Self {
        Self { node: node.into(), pods: Arc::default() }
    }

    /// The kubelet's `/stats/summary`, as far as it speaks of volumes. A pod that has not been
    /// looked at yet has no list of them.
    #[must_use]
    pub fn summary(&self) -> Value {
        let pods: Vec<Value> = self.pods.lock().iter().map(PodSample::summary).collect();
        json!({"node": {"nodeName": &*self.node}, "pods": pods})
    }

    /// One entry per claim, however many pods use it: the first pod's.
    fn claims(&self) -> Vec<ClaimUsage> {
        let (mut seen, mut claims) = (BTreeSet::new(), Vec::new());
        for pod in self.pods.lock().iter() {
            for one in &pod.volumes {
                let Some(claim) = one.claim.clone() else { continue };
                if seen.insert((pod.namespace.clone(), claim.clone())) {
                    let (namespace, usage) = (pod.namespace.clone(), one.usage.clone());
                    claims.push(ClaimUsage { namespace, claim, usage });
                }
            }
        }
        claims
    }
}

impl PodSample {
    fn summary(&self) -> Value {
        let reference = json!({"name": self.pod, "namespace": self.namespace, "uid": self.uid});
        let mut pod = json!({"podRef": reference});
        if !self.volumes.is_empty() {
            let volumes = self.volumes.iter().map(|one| one.summary(&self.namespace));
            pod["volume"] = volumes.collect::<Vec<_>>().into();
        }
        pod
    }
}

impl Sample {
    fn summary(&self, namespace: &str) -> Value {
        let Usage { bytes, inodes, .. } = &self.usage;
        let mut volume = json!({
            "time": self.time, "name": self.name,
            "capacityBytes": bytes.total, "availableBytes": bytes.available, "usedBytes": bytes.used,
            "inodes": inodes.total, "inodesFree": inodes.available, "inodesUsed": inodes.used,
        });
        if let Some(claim) = &self.claim {
            volume["pvcRef"] = json!({"name": claim, "namespace": namespace});
        }
        volume
    }
}

/// A mounted volume of a pod whose driver can be asked.
struct Target {
    uid: Uid,
    sample: Sample,
    request: v1::NodeGetVolumeStatsRequest,
}

/// Why there are no statistics of a volume.
#[derive(Debug, thiserror::Error)]
enum StatsError {
    #[error("the driver is not registered")]
    NotRegistered,
    #[error(transparent)]
    Call(#[from] CsiError),
    #[error("the driver answered without usage")]
    NoUsage,
}

/// The loop that measures volumes. A key is a driver, so a slow one holds up only its own volumes.
struct StatsLoop {
    manager: Arc<VolumeManager>,
    /// Samples by driver, with the UIDs of their pods.
    measured: Mutex<BTreeMap<String, Vec<(Uid, Sample)>>>,
}

impl Reconciler for StatsLoop {
    type Key = String;

    fn sources(&self, _: &mut Sources<Self>) {}

    fn subject(&self, driver: &String) -> Subject {
        Subject::key(driver)
    }

    async fn reconcile(&self, driver: &String) -> Outcome {
        note("driver", driver);
        let mut samples = Vec::new();
        for Target { uid, mut sample, request } in self.manager.stats_targets(driver) {
            match self.manager.volume_usage(driver, request).await {
                Ok(Some(usage)) => {
                    sample.usage = usage;
                    samples.push((uid, sample));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(driver, volume = sample.name, %error, "cannot read volume statistics");
                }
            }
        }
        self.measured.lock().insert(driver.clone(), samples);
        self.publish();
        Outcome::Done
    }
}

impl StatsLoop {
    /// Enqueues all drivers with mounted volumes, once in a period.
    async fn enqueue_drivers(self: Arc<Self>, queue: WorkQueue<String>) {
        loop {
            tokio::time::sleep(self.manager.deps.stats_period).await;
            let drivers = self.manager.drivers_in_use();
            self.measured.lock().retain(|driver, _| drivers.contains(driver));
            drivers.into_iter().for_each(|driver| queue.add(driver));
            self.publish();
        }
    }

    /// Shows all pods of the node with what was measured of them.
    fn publish(&self) {
        let mut by_pod: BTreeMap<Uid, Vec<Sample>> = BTreeMap::new();
        for (uid, sample) in self.measured.lock().values().flatten() {
            by_pod.entry(uid.clone()).or_default().push(sample.clone());
        }
        by_pod.values_mut().for_each(|samples| samples.sort_by(|a, b| a.name.cmp(&b.name)));
        let deps = &self.manager.deps;
        *deps.stats.pods.lock() = self.manager.pods_with(by_pod);
        deps.metrics.set_usage(&deps.stats.claims());
    }
}

impl VolumeManager {
    /// Asks drivers how full their volumes are, again and again until `shutdown`.
    pub(crate) async fn collect_stats(self: Arc<Self>, shutdown: CancellationToken) {
        let queue = WorkQueue::new("stats", QueueOptions::default());
        let stats = Arc::new(StatsLoop { manager: self, measured: Mutex::default() });
        let passes = Loop::new("stats", stats.clone(), queue.clone())
            .workers(WORKERS)
            .beside(stats.enqueue_drivers(queue));
        // A pass in flight is dropped at shutdown: it may wait for a driver that hangs.
        shutdown.run_until_cancelled(passes.run(&CancellationToken::new())).await;
    }

    /// All pods that are here, with what was measured of them.
    fn pods_with(&self, mut measured: BTreeMap<Uid, Vec<Sample>>) -> Vec<PodSample> {
        let state = self.state();
        let sample = |(uid, facts): (&Uid, &super::PodFacts)| PodSample {
            uid: uid.clone(),
            pod: facts.pod.metadata.name.clone(),
            namespace: facts.pod.metadata.namespace.clone(),
            volumes: measured.remove(uid).unwrap_or_default(),
        };
        state.pods.iter().map(sample).collect()
    }

    /// Drivers of the volumes that are mounted, or may be.
    fn drivers_in_use(&self) -> BTreeSet<String> {
        let state = self.state();
        let volumes = state.world.actual.keys().filter_map(|unique| state.volumes.get(unique));
        let drivers = volumes.filter(|volume| volume.plugin == Plugin::Csi);
        drivers.map(|volume| volume.driver.to_string()).collect()
    }

    fn stats_targets(&self, driver: &str) -> Vec<Target> {
        let state = self.state();
        let mut targets = Vec::new();
        for (uid, facts) in &state.pods {
            for (name, one) in facts.uses.iter().flatten() {
                let (Some(volume), Some(known)) =
                    (state.facts(&one.unique, Some(uid)), state.world.actual.get(&one.unique))
                else {
                    continue;
                };
                let mounted = known.pods.get(uid).is_some_and(|mount| mount.state == Mounted::Yes);
                if volume.plugin != Plugin::Csi || volume.driver != driver || !mounted {
                    continue;
                }
                let path = match volume.block {
                    true => self.deps.paths.block(&volume.spec_name).dev.join(uid.as_str()),
                    false => one.path.clone(),
                };
                targets.push(Target {
                    uid: uid.clone(),
                    sample: Sample {
                        name: name.clone(),
                        claim: one.claim.as_ref().map(|key| key.name.clone()),
                        usage: Usage::default(),
                        time: clock::seconds(clock::now()),
                    },
                    request: v1::NodeGetVolumeStatsRequest {
                        volume_id: volume.handle.to_string(),
                        volume_path: text(&path),
                        ..Default::default()
                    },
                });
            }
        }
        targets
    }

    /// What a driver says of a volume; `None` if it does not measure volumes.
    async fn volume_usage(
        &self,
        driver: &str,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Result<Option<Usage>, StatsError> {
        let client = self.deps.drivers.client(driver).ok_or(StatsError::NotRegistered)?;
        if !client.supports(Call::NodeGetVolumeStats).await? {
            return Ok(None);
        }
        let response = client.node_get_volume_stats(request).await?;
        if response.usage.is_empty() {
            return Err(StatsError::NoUsage);
        }
        Ok(Some(Usage::of(&response)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::NodeMetrics;
    use longshore_cluster::Metrics;

    fn response() -> v1::NodeGetVolumeStatsResponse {
        let usage = |unit: v1::volume_usage::Unit, [total, available, used]: [i64; 3]| {
            v1::VolumeUsage { total, available, used, unit: unit.into() }
        };
        v1::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(v1::volume_usage::Unit::Bytes, [10, 9, 1]),
                usage(v1::volume_usage::Unit::Inodes, [100, 70, 30]),
                usage(v1::volume_usage::Unit::Unknown, [7, 7, 7]),
            ],
            volume_condition: None,
        }
    }

    fn pod(uid: &str, claim: Option<&str>) -> PodSample {
        let sample = Sample {
            name: "v".to_owned(),
            claim: claim.map(str::to_owned),
            usage: Usage::of(&response()),
            time: "2026-01-01T00:00:00Z".to_owned(),
        };
        PodSample {
            uid: uid.into(),
            pod: format!("pod-{uid}"),
            namespace: "ns".to_owned(),
            volumes: vec![sample],
        }
    }

    #[test]
    fn one_set_of_gauges_per_claim() {
        // case: node/N66
        let metrics = Metrics::new();
        let stats = NodeStats::new("n1");
        *stats.pods.lock() = vec![pod("a", Some("data")), pod("b", Some("data")), pod("c", None)];
        NodeMetrics::of(&metrics).set_usage(&stats.claims());
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
    }

    #[test]
    fn the_summary_lists_pods_with_what_is_known() {
        let stats = NodeStats::new("n1");
        let young = PodSample { volumes: Vec::new(), ..pod("d", None) };
        *stats.pods.lock() = vec![pod("a", Some("data")), pod("c", None), young];
        let summary = stats.summary();
        assert_eq!(summary["pods"].as_array().map(Vec::len), Some(3));
        assert_eq!(summary["pods"][0]["volume"][0]["pvcRef"]["name"], "data");
        assert_eq!(summary["pods"][0]["volume"][0]["inodesFree"], 70);
        assert!(summary["pods"][1]["volume"][0]["pvcRef"].is_null(), "an inline volume");
        assert!(summary["pods"][2]["volume"].is_null(), "not looked at yet");
    }

    #[test]
    fn an_abnormal_volume_condition_sets_the_gauge() {
        let condition = v1::VolumeCondition { abnormal: true, message: "bad".to_owned() };
        let response =
            v1::NodeGetVolumeStatsResponse { volume_condition: Some(condition), ..response() };
        let metrics = Metrics::new();
        let mut bad = pod("a", Some("data"));
        bad.volumes[0].usage = Usage::of(&response);
        let stats = NodeStats::new("n1");
        *stats.pods.lock() = vec![bad];
        NodeMetrics::of(&metrics).set_usage(&stats.claims());
        let line = "kubelet_volume_stats_health_status_abnormal{namespace=\"ns\",persistentvolumeclaim=\"data\"} 1";
        assert!(metrics.render().contains(line));
    }
}
