//! The seeded simulator: the shipped controllers over an in-memory API and driver, with faults.
//!
//! ```text
//! sweep ──► world ──► scenario (a user) ─────────────► API server in memory
//!             │                                          ▲
//!             ├──► process: the shipped controllers ──► wire: numbered calls, faults
//!             │                                          ▼
//!             └──► node (in place of the node agent) ──► fake driver
//! ```
//!
//! Everything runs on one thread with a paused clock. Each API request and each CSI call of the
//! controllers has a number; at a chosen number a [`Fault`] strikes. A crash takes the whole
//! process: whatever it still tries afterwards is lost, its memory is dropped, and a new process
//! starts over the same API and driver. In the end the user deletes everything, and then nothing
//! may be left: no volume, no attachment, no object, no intent ([`Truth::leftovers`]). An invariant
//! that breaks at any moment is recorded as a breach ([`Ledger::breach`]).
//!
//! A run is a [`Run`] (scenario, seed, faults) and repeats exactly.

#![warn(unreachable_pub)]

mod changes;
mod checks;
mod fault;
mod latency;
mod ledger;
mod node;
mod power;
mod process;
mod report;
mod scenario;
mod snapshot_life;
mod snapshots;
mod sweep;
mod truth;
mod user;
mod wire;
mod workload;
mod world;

pub use fault::Fault;
pub use ledger::{Ledger, Line};
pub use process::Settings;
pub use report::{Report, Tally};
pub use scenario::Scenario;
pub use sweep::{Plan, Swept, first_seed, long, sweep};
pub use truth::Truth;
pub use world::{Run, Tweak};

pub const DRIVER: &str = "sim.csi.longshore.dev";
pub const TOPOLOGY_KEY: &str = "topology.sim.csi.longshore.dev/node";
pub const NODES: [&str; 2] = ["node-1", "node-2"];
/// Where the leak guard keeps its intents.
pub const INTENTS: &str = "kube-system";
