//! What the server counts, in the names and labels that dashboards for Kubernetes know.
//!
//! The number of series is bounded: labels come from the served kinds, never from what a client
//! wrote, and beyond a fixed number of series everything new shares one.

mod histogram;
mod process;
mod request;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use crate::admission::Gates;
use crate::store::Store;
use histogram::{Histogram, REQUEST_BUCKETS, STORE_BUCKETS};

pub use request::Request;

/// More series of one name than this are not kept apart. Kinds come and go with their definitions.
const MAX_SERIES: usize = 10_000;

/// Series of one name, by their labels.
#[derive(Debug)]
struct Family<K, T>(RwLock<BTreeMap<K, Arc<T>>>);

impl<K, T> Default for Family<K, T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Ord + Clone + Default, T> Family<K, T> {
    fn get(&self, labels: &K, new: impl FnOnce() -> T) -> Arc<T> {
        if let Some(found) = self.0.read().get(labels) {
            return Arc::clone(found);
        }
        let mut all = self.0.write();
        let labels = if all.len() < MAX_SERIES { labels.clone() } else { K::default() };
        Arc::clone(all.entry(labels).or_insert_with(|| Arc::new(new())))
    }

    fn each(&self, mut write: impl FnMut(&K, &T)) {
        self.0.read().iter().for_each(|(labels, series)| write(labels, series));
    }
}

/// Group, version and resource of watched objects.
type Watched = (String, String, String);

/// Counters of one server.
#[derive(Debug, Default)]
pub struct Metrics {
    answers: Family<(Request, u16), AtomicU64>,
    durations: Family<Request, Histogram>,
    long_running: Family<Request, AtomicI64>,
    watch_events: Family<Watched, AtomicU64>,
    /// Writes to the store, by operation and stored resource.
    store: Family<(&'static str, String), Histogram>,
    dropped: [AtomicU64; 2],
    evaluations: Family<Evaluation, AtomicU64>,
}

/// One judgement of Pod Security admission.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evaluation {
    /// `allow` or `deny`.
    pub decision: &'static str,
    /// Level of the policy.
    pub level: &'static str,
    /// Version of the policy; those beyond the own one share a label.
    pub version: String,
    /// `enforce`, `audit` or `warn`.
    pub mode: &'static str,
    /// `create` or `update`.
    pub operation: &'static str,
}

/// Counts one request that lasts, while this lives.
#[derive(Debug)]
pub struct Lasting(Arc<AtomicI64>);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the events of one kind that watches were sent.
#[derive(Debug, Clone)]
pub struct EventCount(Arc<AtomicU64>);

impl EventCount {
    /// Counts events.
    pub fn add(&self, events: usize) {
        self.0.fetch_add(events as u64, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Counts an answer; requests that last are counted without their duration.
    pub fn answered(&self, request: Request, code: u16, took: Option<Duration>) {
        if let Some(took) = took {
            self.durations.get(&request, || Histogram::new(REQUEST_BUCKETS)).observe(took);
        }
        let count = self.answers.get(&(request, code), AtomicU64::default);
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that found no place.
    pub fn dropped(&self, mutating: bool) {
        self.dropped[usize::from(mutating)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a judgement of a pod.
    pub fn evaluated(&self, evaluation: Evaluation) {
        let count = self.evaluations.get(&evaluation, AtomicU64::default);
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that lasts begins.
    pub fn begin(&self, request: &Request) -> Lasting {
        let count = self.long_running.get(request, AtomicI64::default);
        count.fetch_add(1, Ordering::Relaxed);
        Lasting(count)
    }

    /// The counter of watch events of a kind.
    pub fn watch_events(&self, group: &str, version: &str, resource: &str) -> EventCount {
        let labels = (group.to_owned(), version.to_owned(), resource.to_owned());
        EventCount(self.watch_events.get(&labels, AtomicU64::default))
    }

    /// Counts a write to the store, until it was durable.
    pub fn stored(&self, operation: &'static str, resource: &str, took: Duration) {
        let labels = (operation, resource.to_owned());
        self.store.get(&labels, || Histogram::new(STORE_BUCKETS)).observe(took);
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self, store: &Store, gates: &Gates) -> String {
        let mut out = String::new();
        self.write_requests(&mut out);
        self.write_current(&mut out, gates);
        self.write_store(&mut out, store);
        self.write_evaluations(&mut out);
        process::write(&mut out);
        out
    }

    fn write_requests(&self, out: &mut String) {
        let name = "apiserver_request_total";
        head(out, name, "counter", "Counter of apiserver requests, by code and what they ask for.");
        self.answers.each(|(request, code), count| {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{code=\"{code}\",{}}} {count}", request.labels(true));
        });
        let name = "apiserver_request_duration_seconds";
        head(
            out,
            name,
            "histogram",
            "Response latency in seconds; requests that last are left out.",
        );
        self.durations.each(|request, times| times.write(out, name, &request.labels(true)));
    }

    fn write_current(&self, out: &mut String, gates: &Gates) {
        let name = "apiserver_current_inflight_requests";
        head(out, name, "gauge", "Requests being answered now; those that last are left out.");
        for (kind, gate) in [("mutating", &gates.writes), ("readOnly", &gates.reads)] {
            let _ = writeln!(out, "{name}{{request_kind=\"{kind}\"}} {}", gate.taken());
        }
        let name = "apiserver_dropped_requests_total";
        head(out, name, "counter", "Requests refused for want of a place.");
        for (kind, count) in ["readOnly", "mutating"].into_iter().zip(&self.dropped) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{request_kind=\"{kind}\"}} {count}");
        }
        let name = "apiserver_longrunning_requests";
        head(out, name, "gauge", "Watches and followed logs that are open.");
        self.long_running.each(|request, count| {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{{}}} {count}", request.labels(false));
        });
        let name = "apiserver_watch_events_total";
        head(out, name, "counter", "Events sent in watches.");
        self.watch_events.each(|(group, version, resource), count| {
            let count = count.load(Ordering::Relaxed);
            let labels = [("group", group), ("version", version), ("resource", resource)];
            let labels = labels.map(|(name, value)| format!("{name}=\"{value}\"")).join(",");
            let _ = writeln!(out, "{name}{{{labels}}} {count}");
        });
    }

    fn write_evaluations(&self, out: &mut String) {
        let name = "pod_security_evaluations_total";
        let help =
            "Number of policy evaluations that occurred, not counting ignored or exempt requests.";
        head(out, name, "counter", help);
        self.evaluations.each(|evaluation, count| {
            let Evaluation { decision, level, version, mode, operation } = evaluation;
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                out,
                "{name}{{decision=\"{decision}\",mode=\"{mode}\",policy_level=\"{level}\",policy_version=\"{version}\",request_operation=\"{operation}\",resource=\"pod\",subresource=\"\"}} {count}"
            );
        });
    }

    fn write_store(&self, out: &mut String, store: &Store) {
        let name = "etcd_request_duration_seconds";
        let help =
            "Time until a write was durable in the embedded store, which stands in for etcd.";
        head(out, name, "histogram", help);
        self.store.each(|(operation, resource), times| {
            let (group, resource) = split(resource);
            let labels =
                format!("operation=\"{operation}\",group=\"{group}\",resource=\"{resource}\"");
            times.write(out, name, &labels);
        });
        let counts = store.counts();
        let name = "apiserver_storage_objects";
        head(out, name, "gauge", "Stored objects, by qualified resource.");
        for (resource, count) in &counts {
            let (group, plural) = split(resource);
            let dot = if group.is_empty() { "" } else { "." };
            let _ = writeln!(out, "{name}{{resource=\"{plural}{dot}{group}\"}} {count}");
        }
        let name = "apiserver_resource_objects";
        head(out, name, "gauge", "Stored objects, by group and resource.");
        for (resource, count) in &counts {
            let (group, plural) = split(resource);
            let _ = writeln!(out, "{name}{{group=\"{group}\",resource=\"{plural}\"}} {count}");
        }
        let name = "longshore_store_revision";
        head(out, name, "gauge", "Newest revision of the store.");
        let _ = writeln!(out, "{name} {}", store.revision());
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Group and plural of a storage name.
fn split(resource: &str) -> (&str, &str) {
    resource.split_once('/').unwrap_or(("", resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_is_bounded() {
        let metrics = Metrics::default();
        for number in 0..MAX_SERIES + 100 {
            metrics.watch_events("example.com", "v1", &format!("kind{number}")).add(1);
        }
        let mut series = 0;
        let mut events = 0;
        metrics.watch_events.each(|_, count| {
            series += 1;
            events += count.load(Ordering::Relaxed);
        });
        assert_eq!(series, MAX_SERIES + 1);
        assert_eq!(events, MAX_SERIES as u64 + 100, "none is lost");
    }
}
