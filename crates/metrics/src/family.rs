//! Series of one name, bounded in number.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// More series of one name than this are not kept apart.
pub const MAX_SERIES: usize = 10_000;

/// Series of one name by their labels, written in the order of these. When there are
/// [`MAX_SERIES`] of them, all further labels share the series of `K::default()`.
#[derive(Debug)]
pub struct BoundedFamily<K, M>(RwLock<BTreeMap<K, M>>);

impl<K, M> Default for BoundedFamily<K, M> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Ord + Clone + Default, M: Clone> BoundedFamily<K, M> {
    /// The series with these labels, or a new one.
    pub fn get_or_insert_with(&self, labels: &K, new: impl FnOnce() -> M) -> M {
        if let Some(found) = self.0.read().get(labels) {
            return found.clone();
        }
        let mut series = self.0.write();
        let labels = if series.len() < MAX_SERIES { labels.clone() } else { K::default() };
        series.entry(labels).or_insert_with(new).clone()
    }

    /// The values of all series.
    pub fn values(&self) -> Vec<M> {
        self.0.read().values().cloned().collect()
    }
}

impl<K: EncodeLabelSet, M: EncodeMetric + TypedMetric> EncodeMetric for BoundedFamily<K, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0
            .read()
            .iter()
            .try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}
