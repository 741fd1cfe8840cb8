//! Registration of metrics, and gauges that are read at each scrape.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric as _,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Makes a metric and registers it in one step.
pub trait RegistryExt {
    /// A metric, or a family of metrics, in its first state.
    fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M;

    /// A family of histograms, each of which is made by `new`.
    fn histograms<L>(
        &mut self,
        name: &str,
        help: &str,
        new: fn() -> Histogram,
    ) -> Family<L, Histogram>
    where
        L: EncodeLabelSet + Clone + std::hash::Hash + Eq + fmt::Debug + Send + Sync + 'static;
}

impl RegistryExt for Registry {
    fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.register(name, help, metric.clone());
        metric
    }

    fn histograms<L>(
        &mut self,
        name: &str,
        help: &str,
        new: fn() -> Histogram,
    ) -> Family<L, Histogram>
    where
        L: EncodeLabelSet + Clone + std::hash::Hash + Eq + fmt::Debug + Send + Sync + 'static,
    {
        let family = Family::new_with_constructor(new);
        self.register(name, help, family.clone());
        family
    }
}

/// Writes counters of one name that a collector has just read; nothing if there are none.
///
/// # Errors
/// When the encoder refuses.
pub fn encode_counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counters: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut counters = counters.into_iter().peekable();
    if counters.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    counters.try_for_each(|(labels, value)| {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)
    })
}

/// Writes gauges of one name that a collector has just counted; nothing if there are none.
///
/// # Errors
/// When the encoder refuses.
pub fn encode_gauges<L, N>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    gauges: impl IntoIterator<Item = (L, N)>,
) -> fmt::Result
where
    L: EncodeLabelSet,
    N: EncodeGaugeValue,
{
    let mut gauges = gauges.into_iter().peekable();
    if gauges.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    gauges.try_for_each(|(labels, value)| {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)
    })
}
