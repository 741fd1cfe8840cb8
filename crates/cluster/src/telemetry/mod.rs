//! Metrics, health and logs.

mod metrics;

pub use metrics::Metrics;
pub(crate) use metrics::{QueueMetrics, QueueStats};
