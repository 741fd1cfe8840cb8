//! One log line for what became of a pod.

use longshore_cluster::{clock, log_result};
use longshore_core::model::kinds::Pod;
use longshore_core::words;
use serde_json::Value;
use tokio::time::Instant;

/// Logs that a pod runs or is over, once for each phase. `since` is when this node began with it.
pub(super) fn phase(
    pod: &Pod,
    before: Option<&Value>,
    written: Option<&Value>,
    since: jiff::Timestamp,
) {
    let of = |status: Option<&Value>| Some(status?.get("phase")?.as_str()?.to_owned());
    let Some(phase) = of(written).filter(|phase| phase != "Pending") else { return };
    // A pod that an earlier agent began is in this phase already.
    if of(before).as_ref() == Some(&phase) || pod.status.phase.to_string() == phase {
        return;
    }
    let took = clock::now().duration_since(since).unsigned_abs();
    let node = &pod.spec.node_name;
    log_result!(%node, took = words::time(took), "pod is {phase}");
}

/// Logs that a deleted pod has left nothing behind.
pub(super) fn gone(pod: &Pod, started: Instant) {
    let (node, took) = (&pod.spec.node_name, words::time(started.elapsed()));
    log_result!(%node, took, "pod is gone");
}
