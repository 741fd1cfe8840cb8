//! What a scrape of `/metrics` reads.

use std::fmt::{self, Debug, Write};
use std::sync::Arc;

use longshore_metrics::ProcessCollector;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::{MetricType, gauge::ConstGauge};
use prometheus_client::registry::Registry;

use super::{Metrics, split};
use crate::admission::Gates;
use crate::store::Store;

impl Metrics {
    /// All metrics in the Prometheus text format.
    pub(crate) fn text(self: &Arc<Self>, store: &Store, gates: &Gates) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape {
            metrics: Arc::clone(self),
            in_flight: [("mutating", gates.writes.taken()), ("readOnly", gates.reads.taken())],
            objects: store.counts(),
            bytes: store.bytes(),
            used: store.used(),
            revision: store.revision(),
        }));
        registry.register_collector(Box::new(ProcessCollector));
        with_upstream_ends(&longshore_metrics::render(&registry))
    }
}

/// Upstream writes the upper end of a bucket last, and without a fraction if there is none: `le="1"`.
fn with_upstream_ends(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let bucket = line.split_once("_bucket{le=\"").and_then(|(name, rest)| {
            let (end, rest) = rest.split_once("\",")?;
            Some((name, end.strip_suffix(".0").unwrap_or(end), rest.split_once("} ")?))
        });
        let _ = match bucket {
            Some((name, end, (labels, count))) => {
                writeln!(out, "{name}_bucket{{{labels},le=\"{end}\"}} {count}")
            }
            None => writeln!(out, "{line}"),
        };
    }
    out
}

/// The counters, and what the server knows at this moment.
#[derive(Debug)]
struct Scrape {
    metrics: Arc<Metrics>,
    in_flight: [(&'static str, usize); 2],
    objects: Vec<(Arc<str>, usize)>,
    bytes: Vec<(Arc<str>, usize)>,
    /// Bytes of all objects, and how many there may be.
    used: (usize, usize),
    revision: u64,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_requests(&mut encoder)?;
        self.encode_store(&mut encoder)?;
        let help =
            "Number of policy evaluations that occurred, not counting ignored or exempt requests.";
        metric(&mut encoder, "pod_security_evaluations", help, &self.metrics.evaluations)
    }
}

impl Scrape {
    fn encode_requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &*self.metrics;
        let help = "Counter of apiserver requests, by code and what they ask for.";
        metric(encoder, "apiserver_request", help, &metrics.responses)?;
        let help = "Response latency in seconds; requests that last are left out.";
        metric(encoder, "apiserver_request_duration_seconds", help, &metrics.durations)?;
        let help = "Requests being answered now; those that last are left out.";
        let kinds = self.in_flight.map(|(kind, count)| ([("request_kind", kind)], count));
        gauges(encoder, "apiserver_current_inflight_requests", help, kinds)?;
        let help = "Requests refused for want of a place.";
        let counter = MetricType::Counter;
        let name = "apiserver_dropped_requests";
        let mut dropped = encoder.encode_descriptor(name, help, None, counter)?;
        for (kind, count) in
            [("readOnly", &metrics.dropped_reads), ("mutating", &metrics.dropped_writes)]
        {
            count.encode(dropped.encode_family(&[("request_kind", kind)])?)?;
        }
        let help = "Watches and followed logs that are open.";
        metric(encoder, "apiserver_longrunning_requests", help, &metrics.long_running)?;
        let help = "Events sent in watches.";
        metric(encoder, "apiserver_watch_events", help, &metrics.watch_events)
    }

    fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help =
            "Time until a write was durable in the embedded store, which stands in for etcd.";
        metric(encoder, "etcd_request_duration_seconds", help, &self.metrics.store)?;
        let qualified = self.objects.iter().map(|(resource, count)| {
            let (group, plural) = split(resource);
            let dot = if group.is_empty() { "" } else { "." };
            ([("resource", format!("{plural}{dot}{group}"))], *count)
        });
        let help = "Stored objects, by qualified resource.";
        gauges(encoder, "apiserver_storage_objects", help, qualified)?;
        let help = "Stored objects, by group and resource.";
        gauges(encoder, "apiserver_resource_objects", help, by_resource(&self.objects))?;
        let help = "What the stored objects take of the limit, in bytes.";
        metric(encoder, "longshore_apiserver_store_bytes", help, &ConstGauge::new(self.used.0))?;
        let help = "What the stored objects may take (--store-limit); 0: no limit.";
        let limit = ConstGauge::new(self.used.1);
        metric(encoder, "longshore_apiserver_store_limit_bytes", help, &limit)?;
        let help = "What the stored objects take, by group and resource.";
        let bytes = by_resource(&self.bytes);
        gauges(encoder, "longshore_apiserver_store_resource_bytes", help, bytes)?;
        let help = "Newest revision of the store.";
        metric(encoder, "longshore_store_revision", help, &ConstGauge::new(self.revision))
    }
}

/// Values by storage name, labelled with group and resource.
fn by_resource(
    values: &[(Arc<str>, usize)],
) -> impl Iterator<Item = ([(&'static str, &str); 2], usize)> {
    values.iter().map(|(resource, value)| {
        let (group, plural) = split(resource);
        ([("group", group), ("resource", plural)], *value)
    })
}

fn metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn gauges<L, V>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, V)>,
) -> fmt::Result
where
    L: EncodeLabelSet,
    ConstGauge<V>: EncodeMetric,
{
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
