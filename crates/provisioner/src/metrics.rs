//! What the controller counts, under upstream's names.

use longshore_cluster::{Metrics, telemetry::RegistryExt as _};
use longshore_core::model::kinds::{Claim, Volume};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

type ClaimLabels = [(&'static str, String); 2];
type VolumeLabels = [(&'static str, String); 1];

/// Counters and durations. Cheap to clone; register once per process and share.
#[derive(Clone, Debug)]
pub struct ProvisionMetrics {
    provisioned: Family<ClaimLabels, Counter>,
    provision_failed: Family<ClaimLabels, Counter>,
    provision_seconds: Family<ClaimLabels, Histogram>,
    deleted: Family<VolumeLabels, Counter>,
    delete_failed: Family<VolumeLabels, Counter>,
    delete_seconds: Family<VolumeLabels, Histogram>,
}

fn seconds() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

impl ProvisionMetrics {
    /// Those of the process; the first call registers them.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        metrics.shared(Self::registered)
    }

    fn registered(r: &mut Registry) -> Self {
        let claim = "controller_persistentvolumeclaim_provision";
        let volume = "controller_persistentvolume_delete";
        Self {
            provisioned: r.metric(claim, "Total number of persistent volumes provisioned"),
            provision_failed: r.metric(
                &format!("{claim}_failed"),
                "Total number of persistent volume provision failed attempts",
            ),
            provision_seconds: r.histograms(
                &format!("{claim}_duration_seconds"),
                "Latency in seconds to provision persistent volumes",
                seconds,
            ),
            deleted: r.metric(volume, "Total number of persistent volumes deleted"),
            delete_failed: r.metric(
                &format!("{volume}_failed"),
                "Total number of persistent volume delete failed attempts",
            ),
            delete_seconds: r.histograms(
                &format!("{volume}_duration_seconds"),
                "Latency in seconds to delete persistent volumes",
                seconds,
            ),
        }
    }

    pub(crate) fn provisioned(&self, claim: &Claim, seconds: f64) {
        let labels = claim_labels(claim);
        self.provisioned.get_or_create(&labels).inc();
        self.provision_seconds.get_or_create(&labels).observe(seconds);
    }

    pub(crate) fn provision_failed(&self, claim: &Claim) {
        self.provision_failed.get_or_create(&claim_labels(claim)).inc();
    }

    pub(crate) fn deleted(&self, volume: &Volume, seconds: f64) {
        let labels = volume_labels(volume);
        self.deleted.get_or_create(&labels).inc();
        self.delete_seconds.get_or_create(&labels).observe(seconds);
    }

    pub(crate) fn delete_failed(&self, volume: &Volume) {
        self.delete_failed.get_or_create(&volume_labels(volume)).inc();
    }
}

fn claim_labels(claim: &Claim) -> ClaimLabels {
    let source = claim.spec.data_source.as_ref().map(|source| source.kind.clone());
    [
        ("class", claim.spec.storage_class_name.clone().unwrap_or_default()),
        ("source", source.unwrap_or_default()),
    ]
}

fn volume_labels(volume: &Volume) -> VolumeLabels {
    [("class", volume.spec.storage_class_name.clone())]
}
