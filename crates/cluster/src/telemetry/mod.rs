//! Metrics, health and logs.

mod http;
mod log;
mod metrics;
mod pprof;

pub use self::http::{Endpoint, EndpointError};
pub use log::{LogFormat, LogOptions, init_logging, log_layer};
pub(crate) use metrics::QueueMetrics;
pub use metrics::{Metrics, QueueStats};
