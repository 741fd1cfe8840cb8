//! What the server counts.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::Store;

/// Status classes: 2xx, 3xx, 4xx, 5xx, others.
const CLASSES: &[&str] = &["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counters of one server.
#[derive(Debug, Default)]
pub struct Metrics {
    answers: [AtomicU64; CLASSES.len()],
}

impl Metrics {
    /// Counts an answer.
    pub fn answered(&self, code: u16) {
        let class = usize::from(code / 100);
        let class = if class < CLASSES.len() { class } else { 0 };
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self, store: &Store) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "# HELP apiserver_request_total Requests answered, by class of status code."
        );
        let _ = writeln!(out, "# TYPE apiserver_request_total counter");
        for (class, count) in CLASSES.iter().zip(&self.answers) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let _ = writeln!(out, "apiserver_request_total{{code=\"{class}\"}} {count}");
            }
        }
        let _ = writeln!(out, "# HELP apiserver_resource_objects Stored objects, by resource.");
        let _ = writeln!(out, "# TYPE apiserver_resource_objects gauge");
        for (resource, count) in store.counts() {
            let _ = writeln!(out, "apiserver_resource_objects{{resource=\"{resource}\"}} {count}");
        }
        let _ = writeln!(out, "# HELP longshore_store_revision Newest revision of the store.");
        let _ = writeln!(out, "# TYPE longshore_store_revision gauge");
        let _ = writeln!(out, "longshore_store_revision {}", store.revision());
        out
    }
}
