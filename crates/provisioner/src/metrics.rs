//! What the controller counts, under upstream's names.

use longshore_cluster::Metrics;
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
        let new = Self {
            provisioned: Family::default(),
            provision_failed: Family::default(),
            provision_seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            deleted: Family::default(),
            delete_failed: Family::default(),
            delete_seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
        };
        let claim = "controller_persistentvolumeclaim_provision";
        r.register(
            claim,
            "Total number of persistent volumes provisioned",
            new.provisioned.clone(),
        );
        r.register(
            format!("{claim}_failed"),
            "Total number of persistent volume provision failed attempts",
            new.provision_failed.clone(),
        );
        r.register(
            format!("{claim}_duration_seconds"),
            "Latency in seconds to provision persistent volumes",
            new.provision_seconds.clone(),
        );
        let volume = "controller_persistentvolume_delete";
        r.register(volume, "Total number of persistent volumes deleted", new.deleted.clone());
        r.register(
            format!("{volume}_failed"),
            "Total number of persistent volume delete failed attempts",
            new.delete_failed.clone(),
        );
        r.register(
            format!("{volume}_duration_seconds"),
            "Latency in seconds to delete persistent volumes",
            new.delete_seconds.clone(),
        );
        new
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
