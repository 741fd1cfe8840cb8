//! How full volumes are: what drivers say, once a minute, and the kubelet's summary of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use longshore_cluster::clock;
use longshore_core::model::Uid;
use longshore_core::stage::verdict::Mounted;
use longshore_csi::{Call, v1};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::mount::text;
use super::{Plugin, VolumeManager};

/// What a driver says of a volume. Each unit has total, available and used; one that the driver does
/// not speak of counts as zero, as users know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub bytes: [i64; 3],
    pub inodes: [i64; 3],
    /// Absent when the driver does not judge.
    pub abnormal: Option<bool>,
}

impl Usage {
    fn of(answer: &v1::NodeGetVolumeStatsResponse) -> Self {
        let abnormal = answer.volume_condition.as_ref().map(|condition| condition.abnormal);
        let mut usage = Self { abnormal, ..Self::default() };
        for one in &answer.usage {
            let values = [one.total, one.available, one.used];
            match one.unit() {
                v1::volume_usage::Unit::Bytes => usage.bytes = values,
                v1::volume_usage::Unit::Inodes => usage.inodes = values,
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
        let mut volume = json!({"time": self.time, "name": self.name});
        let bytes = ["capacityBytes", "availableBytes", "usedBytes"];
        let inodes = ["inodes", "inodesFree", "inodesUsed"];
        for (names, values) in [(bytes, self.usage.bytes), (inodes, self.usage.inodes)] {
            for (name, value) in names.into_iter().zip(values) {
                volume[name] = value.into();
            }
        }
        if let Some(claim) = &self.claim {
            volume["pvcRef"] = json!({"name": claim, "namespace": namespace});
        }
        volume
    }
}

/// A mounted volume of a pod that can be asked about.
struct Target {
    uid: Uid,
    sample: Sample,
    driver: String,
    request: v1::NodeGetVolumeStatsRequest,
}

impl VolumeManager {
    /// Asks drivers how full their volumes are, again and again until told to stop.
    pub(crate) async fn collect_stats(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.deps.stats_period) => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.collect_once() => {}
            }
        }
    }

    /// Asks once, now.
    async fn collect_once(&self) {
        let mut measured: BTreeMap<Uid, Vec<Sample>> = BTreeMap::new();
        for Target { uid, mut sample, driver, request } in self.stats_targets() {
            match self.ask_stats(&driver, request).await {
                Ok(Some(usage)) => sample.usage = usage,
                Ok(None) => continue,
                Err(text) => {
                    tracing::debug!(driver, volume = sample.name, error = text, "no statistics");
                    continue;
                }
            }
            measured.entry(uid).or_default().push(sample);
        }
        let pods = self.pods_with(measured);
        *self.deps.stats.pods.lock() = pods;
        self.deps.metrics.show(&self.deps.stats.claims());
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
                    driver: volume.driver.to_string(),
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

    async fn ask_stats(
        &self,
        driver: &str,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Result<Option<Usage>, String> {
        let client = self.deps.drivers.client(driver).ok_or("the driver is not registered")?;
        let supported = client.supports(Call::NodeGetVolumeStats).await;
        if !supported.map_err(|error| error.to_string())? {
            return Ok(None);
        }
        let answer = client.node_get_volume_stats(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.usage.is_empty() {
            return Err("the driver answered without usage".to_owned());
        }
        Ok(Some(Usage::of(&answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::NodeMetrics;
    use longshore_cluster::Metrics;

    fn answer() -> v1::NodeGetVolumeStatsResponse {
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
            usage: Usage::of(&answer()),
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
        NodeMetrics::of(&metrics).show(&stats.claims());
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
    fn a_driver_that_judges_is_heard() {
        let condition = v1::VolumeCondition { abnormal: true, message: "bad".to_owned() };
        let answer =
            v1::NodeGetVolumeStatsResponse { volume_condition: Some(condition), ..answer() };
        let metrics = Metrics::new();
        let mut bad = pod("a", Some("data"));
        bad.volumes[0].usage = Usage::of(&answer);
        let stats = NodeStats::new("n1");
        *stats.pods.lock() = vec![bad];
        NodeMetrics::of(&metrics).show(&stats.claims());
        let line = "kubelet_volume_stats_health_status_abnormal{namespace=\"ns\",persistentvolumeclaim=\"data\"} 1";
        assert!(metrics.render().contains(line));
    }
}
