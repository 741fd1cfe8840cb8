//! What the API server and the programs around it report alike: families with a bounded number of
//! series, the process itself, and the Prometheus text format. Counting is prometheus-client's.

#![warn(unreachable_pub)]

mod family;
mod process;
mod registry;
mod text;

pub use family::{BoundedFamily, MAX_SERIES};
pub use process::ProcessCollector;
pub use registry::{RegistryExt, encode_counters, encode_gauges};
pub use text::render;
