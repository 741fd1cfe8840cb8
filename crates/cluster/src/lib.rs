//! The API's wire: everything between a loop and the Kubernetes API.
//!
//! [`ClientConfig`] makes a client with [limits](limit) inside; [`Api`] sends requests; [`Cache`]
//! keeps a local copy of one kind by a watch; [`WorkQueue`] runs work on keys; [`Recorder`] writes
//! events; [`election`] decides who works; [`telemetry`] has metrics, health and logs. Time is
//! tokio's throughout, so all of it runs under a paused clock.
//!
//! What is absent on purpose: typed objects for writing. A full update starts from the live object
//! as raw JSON, so that fields unknown to this program survive.

#![warn(unreachable_pub)]

pub mod api;
pub mod awaited;
mod bucket;
pub mod cache;
pub mod clock;
pub mod config;
pub mod controller;
pub mod election;
pub mod error;
pub mod events;
mod in_flight;
pub mod limit;
mod lines;
pub mod listen;
mod managed_fields;
mod proxy;
pub mod queue;
pub mod secrets;
pub mod shutdown;
pub mod telemetry;
#[cfg(test)]
mod testing;
mod transport;

pub use api::{Api, DeleteParams, ListParams, Patch};
pub use cache::{Cache, Cacheable, Change, Scope, SharedCaches, Subscription};
pub use config::{ClientConfig, ConfigError};
pub use controller::{Context, Loop, Reconciler, Sources, Subject};
pub use error::{ApiError, OptionalExt, Target};
pub use events::{EventType, Recorder};
pub use longshore_core::model::{ObjectKey, ObjectRef};
pub use queue::{Outcome, QueueOptions, WorkQueue};
pub use telemetry::{Metrics, QueueStats};
pub use transport::KeepAlive;
// For the macros that log with a verbosity.
#[doc(hidden)]
pub use tracing;
