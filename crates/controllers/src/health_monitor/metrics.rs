//! What is counted of the health calls of CSI 1.13, under the names that upstream's enhancement proposal gives.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use longshore_cluster::{
    Metrics,
    telemetry::{RegistryExt as _, encode_gauges},
};
use longshore_csi::Call;
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::claims::Known;

type Label = (&'static str, String);

/// Counters that outlive a monitor: one that takes over goes on counting.
#[derive(Clone)]
pub(super) struct HealthMetrics {
    probes: Family<[Label; 3], Counter>,
    seconds: Family<[Label; 2], Histogram>,
    /// 1 while the API server does not keep what is written.
    pub(super) server_drops: Gauge,
    standing: Arc<Standing>,
}

fn seconds() -> Histogram {
    Histogram::new([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0])
}

impl HealthMetrics {
    pub(super) fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| {
            let standing = Arc::<Standing>::default();
            registry.register_collector(Box::new(standing.clone()));
            Self {
                probes: registry.metric(
                    "csi_volume_health_probe",
                    "Number of times the driver was asked about the health of volumes",
                ),
                seconds: registry.histograms(
                    "csi_volume_health_probe_duration_seconds",
                    "How long the driver takes to answer; a list with all its pages",
                    seconds,
                ),
                server_drops: registry.metric(
                    "csi_volume_health_server_drops",
                    "1 while the API server drops the health of volumes from the status of claims",
                ),
                standing,
            }
        })
    }

    /// Shows the conditions that stand at each scrape, for as long as they are remembered.
    pub(super) fn watch(&self, driver: &str, known: &Arc<Mutex<Known>>) {
        *self.standing.shown.lock() = Some((driver.to_owned(), Arc::downgrade(known)));
    }

    /// The driver has answered, or failed to.
    pub(super) fn probed(&self, driver: &str, call: Call, took: Duration, ok: bool) {
        let driver = ("driver_name", driver.to_owned());
        let method = ("method_name", call.path().to_owned());
        let result = if ok { "success" } else { "error" };
        let labels = [driver.clone(), method.clone(), ("result", result.to_owned())];
        self.probes.get_or_create(&labels).inc();
        self.seconds.get_or_create(&[driver, method]).observe(took.as_secs_f64());
    }
}

/// What is wrong with volumes, one gauge for each condition.
#[derive(Default)]
struct Standing {
    shown: Mutex<Option<(String, Weak<Mutex<Known>>)>>,
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Standing")
    }
}

impl Collector for Standing {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let shown = self.shown.lock().clone();
        let Some((driver, known)) = shown else { return Ok(()) };
        let Some(known) = known.upgrade() else { return Ok(()) };
        let mut gauges: Vec<([Label; 5], u64)> = Vec::new();
        for health in known.lock().values() {
            for (status, reason) in health.words() {
                let labels = [
                    ("driver_name", driver.clone()),
                    ("namespace", health.claim.namespace.clone()),
                    ("persistentvolumeclaim", health.claim.name.clone()),
                    ("status", status.to_owned()),
                    ("reason", reason.to_owned()),
                ];
                gauges.push((labels, 1));
            }
        }
        let name = "csi_controller_volume_health_status";
        let help = "1 for each thing that is wrong with the volume of a claim";
        encode_gauges(&mut encoder, name, help, gauges)
    }
}
