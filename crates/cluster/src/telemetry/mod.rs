//! Metrics, health and logs.

mod http;
mod log;
mod metrics;
mod operations;
mod pprof;

pub use self::http::{Endpoint, EndpointError};
pub use log::{LogFormat, LogOptions, init_logging, log_layer};
pub use longshore_metrics::{RegistryExt, encode_counters, encode_gauges};
pub(crate) use metrics::QueueMetrics;
pub use metrics::{Metrics, QueueStats};
pub use operations::VolumeOperations;
