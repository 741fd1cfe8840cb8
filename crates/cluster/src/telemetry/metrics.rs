//! The process's metrics under upstream's names.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use longshore_metrics::{ProcessCollector, RegistryExt as _, encode_gauges};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// One `name` label, as upstream's queue and election metrics have.
type Named = [(&'static str, String); 1];
type RequestLabels = [(&'static str, String); 2];

/// The metrics of this process. Cheap to clone; all clones are the same registry.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Mutex<Registry>,
    adds: Family<Named, Counter>,
    retries: Family<Named, Counter>,
    queue_seconds: Family<Named, Histogram>,
    work_seconds: Family<Named, Histogram>,
    leading: Family<Named, Gauge>,
    slow_path: Family<Named, Counter>,
    requests: Family<RequestLabels, Counter>,
    in_flight_limit: Gauge,
    queues: Arc<QueueCollector>,
    shared: Mutex<HashMap<TypeId, Box<dyn Any + Send>>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Upstream's buckets for queue times: powers of ten from 10 ns to 10 s.
fn queue_histogram() -> Histogram {
    Histogram::new((-8..=1).map(|e| 10f64.powi(e)))
}

impl Metrics {
    /// A registry with the families every program of ours has.
    #[must_use]
    pub fn new() -> Self {
        let mut r = Registry::default();
        let inner = Inner {
            adds: r.metric("workqueue_adds", "Total number of adds handled by workqueue"),
            retries: r.metric("workqueue_retries", "Total number of retries handled by workqueue"),
            queue_seconds: r.histograms(
                "workqueue_queue_duration_seconds",
                "How long an item stays in the queue before it is taken",
                queue_histogram,
            ),
            work_seconds: r.histograms(
                "workqueue_work_duration_seconds",
                "How long processing an item takes",
                queue_histogram,
            ),
            leading: r.metric(
                "leader_election_master_status",
                "1 if this process holds the named lease, else 0",
            ),
            slow_path: r.metric(
                "leader_election_slowpath",
                "Lease renewals that had to read the lease again",
            ),
            requests: r.metric(
                "rest_client_requests",
                "Number of HTTP requests, by status code and method",
            ),
            in_flight_limit: r.metric(
                "longshore_api_in_flight_limit",
                "Requests to the API that may be in flight at once",
            ),
            queues: Arc::default(),
            shared: Mutex::default(),
            registry: Mutex::default(),
        };
        r.register_collector(Box::new(inner.queues.clone()));
        r.register_collector(Box::new(ProcessCollector));
        *inner.registry.lock() = r;
        Self { inner: Arc::new(inner) }
    }

    /// Registers further metrics.
    pub fn with_registry<R>(&self, register: impl FnOnce(&mut Registry) -> R) -> R {
        register(&mut self.inner.registry.lock())
    }

    /// The one `T` of this process, registered when it is first asked for. A loop that is started
    /// again goes on with the metrics it had.
    pub fn shared<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T
    where
        T: Any + Clone + Send,
    {
        let mut shared = self.inner.shared.lock();
        let known = shared.get(&TypeId::of::<T>()).and_then(|known| known.downcast_ref::<T>());
        if let Some(known) = known {
            return known.clone();
        }
        let new = self.with_registry(register);
        shared.insert(TypeId::of::<T>(), Box::new(new.clone()));
        new
    }

    /// All metrics in the Prometheus text format 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        longshore_metrics::render(&self.inner.registry.lock())
    }

    /// 1 while this process holds the named lease.
    #[must_use]
    pub fn leading(&self, lease: &str) -> Gauge {
        self.inner.leading.get_or_create_owned(&named(lease))
    }

    /// Counts renewals that had to read the lease first.
    #[must_use]
    pub fn slow_path(&self, lease: &str) -> Counter {
        self.inner.slow_path.get_or_create_owned(&named(lease))
    }

    pub(crate) fn in_flight_limit(&self) -> Gauge {
        self.inner.in_flight_limit.clone()
    }

    /// Counts a request; `code` is `None` if no answer came.
    pub(crate) fn request(&self, method: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [("code", code), ("method", method.to_owned())];
        self.inner.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn queue(&self, name: &str) -> QueueMetrics {
        let name = named(name);
        QueueMetrics {
            adds: self.inner.adds.get_or_create_owned(&name),
            retries: self.inner.retries.get_or_create_owned(&name),
            queue_seconds: self.inner.queue_seconds.get_or_create_owned(&name),
            work_seconds: self.inner.work_seconds.get_or_create_owned(&name),
        }
    }

    /// Has a queue's depth and ages read at each scrape for as long as it lives.
    pub fn watch_queue(&self, name: &str, queue: Weak<dyn QueueStats>) {
        let mut queues = self.inner.queues.queues.lock();
        queues.retain(|(_, q)| q.strong_count() > 0);
        queues.push((name.to_owned(), queue));
    }
}

fn named(name: &str) -> Named {
    [("name", name.to_owned())]
}

/// The handles a queue writes to.
pub(crate) struct QueueMetrics {
    pub(crate) adds: Counter,
    pub(crate) retries: Counter,
    pub(crate) queue_seconds: Histogram,
    pub(crate) work_seconds: Histogram,
}

/// What a scrape asks a queue.
pub trait QueueStats: Send + Sync {
    /// How many wait.
    fn depth(&self) -> usize;
    /// How long the one that waits longest has waited.
    fn oldest_age(&self) -> Duration;
    /// Ages of the passes in flight.
    fn running(&self) -> Vec<Duration>;
}

#[derive(Default)]
struct QueueCollector {
    queues: Mutex<Vec<(String, Weak<dyn QueueStats>)>>,
}

impl fmt::Debug for QueueCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueCollector")
    }
}

type Read = fn(&dyn QueueStats) -> f64;

const QUEUE_GAUGES: [(&str, &str, Read); 4] = [
    ("workqueue_depth", "Current depth of workqueue.", |q| q.depth() as f64),
    (
        "workqueue_unfinished_work_seconds",
        "Seconds of work in progress that is not observed by work_duration yet.",
        |q| q.running().iter().map(Duration::as_secs_f64).sum(),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "Seconds the longest running worker has been at its item.",
        |q| q.running().iter().max().map_or(0.0, Duration::as_secs_f64),
    ),
    (
        "longshore_workqueue_oldest_age_seconds",
        "Seconds the item at the front of the queue has waited.",
        |q| q.oldest_age().as_secs_f64(),
    ),
];

impl Collector for QueueCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let queues: Vec<_> = {
            let queues = self.queues.lock();
            queues.iter().filter_map(|(n, q)| Some((n.clone(), q.upgrade()?))).collect()
        };
        for (metric, help, read) in QUEUE_GAUGES {
            let gauges = queues.iter().map(|(name, queue)| (named(name), read(queue.as_ref())));
            encode_gauges(&mut encoder, metric, help, gauges)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_carry_their_suffix_in_the_type_line() {
        let metrics = Metrics::new();
        metrics.queue("claims").adds.inc();
        let text = metrics.render();
        assert!(text.contains("# TYPE workqueue_adds_total counter\n"), "{text}");
        assert!(text.contains("workqueue_adds_total{name=\"claims\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE process_start_time_seconds gauge\n"), "{text}");
        assert!(text.contains("# TYPE process_cpu_seconds_total counter\n"), "{text}");
        for name in ["resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds"] {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("process_{name} ")));
            let value: f64 = line.expect(name).parse().expect("a number");
            assert!(value > 0.0, "{name}: {value}");
        }
        assert!(!text.contains("# EOF"), "{text}");
    }
}
