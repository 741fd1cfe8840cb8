//! Durations, counted in buckets.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the buckets for requests, in seconds.
pub const REQUEST_BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upper ends of the buckets for writes to the store, in seconds.
pub const STORE_BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Counts durations.
#[derive(Debug)]
pub struct Histogram {
    ends: &'static [f64],
    /// One per end, and one for what is longer than all.
    counts: Vec<AtomicU64>,
    sum_micros: AtomicU64,
}

impl Histogram {
    /// An empty one.
    pub fn new(ends: &'static [f64]) -> Self {
        let counts = (0..=ends.len()).map(|_| AtomicU64::new(0)).collect();
        Self { ends, counts, sum_micros: AtomicU64::new(0) }
    }

    /// Counts a duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.ends.partition_point(|end| *end < seconds);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Writes its lines; `labels` come without braces.
    pub fn write(&self, out: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        let comma = if labels.is_empty() { "" } else { "," };
        let ends = self.ends.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (end, count) in ends.zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{end}\"}} {total}");
        }
        let sum = Duration::from_micros(self.sum_micros.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(out, "{name}_count{{{labels}}} {total}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_is_not_longer() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 100, 101, 5000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut out = String::new();
        histogram.write(&mut out, "x", "a=\"b\"");
        let wanted = "x_bucket{a=\"b\",le=\"0.1\"} 2\nx_bucket{a=\"b\",le=\"1\"} 3\n\
                      x_bucket{a=\"b\",le=\"+Inf\"} 4\nx_sum{a=\"b\"} 5.251\nx_count{a=\"b\"} 4\n";
        assert_eq!(out, wanted);
    }
}
