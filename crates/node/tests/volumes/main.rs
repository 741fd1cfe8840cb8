//! What the agent does for volumes, case by case, over a real API server in memory and a driver
//! behind a recording proxy.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod backoff;
mod block;
mod defects;
mod golden;
mod golden_failing;
mod golden_node;
mod golden_policy;
mod golden_stats;
mod grow;
mod leaving;
mod mounts;
mod neighbours;
mod neighbours_growing;
mod one_handle;
mod recorded;
mod registering;
#[path = "../rig/mod.rs"]
mod rig;

use serde_json::{Value, json};

/// A script that stays until it is told to end, and then ends at once.
const STAY: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

/// Ends at once when told to.
fn quick() -> Value {
    json!({"terminationGracePeriodSeconds": 0})
}
