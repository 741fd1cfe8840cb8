//! What the server counts, in the names and labels that dashboards for Kubernetes know.
//!
//! The number of series is bounded: labels come from the served kinds, never from what a client
//! wrote, and beyond a fixed number of series everything new shares one.

mod request;
mod scrape;

use std::time::Duration;

use longshore_metrics::BoundedFamily;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

pub(crate) use request::Request;
use request::{LongRunning, Responded};

/// Upper ends of the buckets, in seconds.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Group, version and resource of watched objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Watched {
    group: String,
    version: String,
    resource: String,
}

/// A write to the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
    group: String,
    resource: String,
}

/// One judgement of Pod Security admission.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(crate) struct Evaluation {
    /// `allow` or `deny`.
    pub decision: &'static str,
    /// `enforce`, `audit` or `warn`.
    pub mode: &'static str,
    pub policy_level: &'static str,
    /// Versions beyond the server's own share a label.
    pub policy_version: String,
    /// `create` or `update`.
    pub request_operation: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    responses: BoundedFamily<Responded, Counter>,
    durations: BoundedFamily<Request, Histogram>,
    long_running: BoundedFamily<LongRunning, Gauge>,
    watch_events: BoundedFamily<Watched, Counter>,
    store: BoundedFamily<Operation, Histogram>,
    dropped_reads: Counter,
    dropped_writes: Counter,
    evaluations: BoundedFamily<Evaluation, Counter>,
}

/// Counts one long-running request while it is alive.
#[derive(Debug)]
pub(crate) struct LongRunningGuard(Gauge);

impl Drop for LongRunningGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Counts a response; long-running requests are counted without their duration.
    pub(crate) fn responded(&self, request: Request, code: u16, took: Option<Duration>) {
        if let Some(took) = took {
            let durations = self.durations.get_or_insert_with(&request, histogram);
            durations.observe(took.as_secs_f64());
        }
        let labels = Responded { code, request };
        self.responses.get_or_insert_with(&labels, Counter::default).inc();
    }

    /// Counts a request that was refused because too many were in flight.
    pub(crate) fn dropped(&self, mutating: bool) {
        if mutating {
            self.dropped_writes.inc()
        } else {
            self.dropped_reads.inc()
        };
    }

    /// Counts a judgement of a pod.
    pub(crate) fn evaluated(&self, evaluation: &Evaluation) {
        self.evaluations.get_or_insert_with(evaluation, Counter::default).inc();
    }

    /// Counts a long-running request until the guard is dropped.
    pub(crate) fn begin(&self, request: &Request) -> LongRunningGuard {
        let open = self.long_running.get_or_insert_with(&request.into(), Gauge::default);
        open.inc();
        LongRunningGuard(open)
    }

    /// The counter of events that watches of a kind were sent.
    pub(crate) fn watch_events(&self, group: &str, version: &str, resource: &str) -> Counter {
        let labels =
            Watched { group: group.into(), version: version.into(), resource: resource.into() };
        self.watch_events.get_or_insert_with(&labels, Counter::default)
    }

    /// Counts a write to the store, until it was durable.
    pub(crate) fn stored(&self, operation: &'static str, resource: &str, took: Duration) {
        let (group, resource) = split(resource);
        let labels = Operation { operation, group: group.into(), resource: resource.into() };
        self.store.get_or_insert_with(&labels, histogram).observe(took.as_secs_f64());
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Group and plural of a storage name.
fn split(resource: &str) -> (&str, &str) {
    resource.split_once('/').unwrap_or(("", resource))
}

#[cfg(test)]
mod tests {
    use longshore_metrics::MAX_SERIES;

    use super::*;

    #[test]
    fn series_beyond_the_bound_share_one() {
        let metrics = Metrics::default();
        for number in 0..MAX_SERIES + 100 {
            metrics.watch_events("example.com", "v1", &format!("kind{number}")).inc();
        }
        let counts: Vec<u64> = metrics.watch_events.values().iter().map(Counter::get).collect();
        assert_eq!(counts.len(), MAX_SERIES + 1);
        assert_eq!(counts.iter().sum::<u64>(), MAX_SERIES as u64 + 100, "none is lost");
    }
}
