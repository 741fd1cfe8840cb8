//! The node: volume manager, driver registration, mounts, and pods as host processes.
//!
//! [`NodeAgent`] ties the loops of one node together. `volumes` keeps what is staged and
//! published in step with what pods want; `registration` finds drivers by their sockets;
//! [`pods`] runs containers under one [`shim`] per pod, which outlives the agent. Decisions are in
//! `longshore_core::stage`; here is the looking and the acting.
//!
//! What is absent on purpose: ports, resource limits and probes. A pod that asks for them runs, and
//! an event says that they are ignored. A pod that asks for less or other isolation than there is, the node's
//! processes or an AppArmor profile, does not run, and an event names the field.

#![warn(unreachable_pub)]

mod agent;
mod drivers;
pub mod fault;
pub mod http;
pub mod liveness;
mod metrics;
mod node_object;
pub mod pods;
mod protected;
pub mod registrar;
mod registration;
pub mod shim;
mod volumes;

pub use agent::{ApiAddress, NodeAgent, NodeConfig, NodeError, PodLimits, PodsMode, Settings};
pub use pods::hidden::hide_from_pods;
pub use pods::logs::NodeLogs;
pub use pods::shim_client::ShimProgram;
pub use pods::streams::{NodeStreams, Streams};
pub use shim::protocol::LogLimit;
pub use volumes::stats::NodeStats;
