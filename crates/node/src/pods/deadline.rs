//! `activeDeadlineSeconds`: a pod that is active for too long is ended, as by the kubelet.

use longshore_cluster::EventType;
use longshore_core::model::kinds::Pod;

use super::worker::{Stop, Worker};

const REASON: &str = "DeadlineExceeded";

/// When the pod's time is over, in milliseconds since the epoch. It runs from the start time in the
/// pod's status, so a restart of the agent gives no more of it.
pub(super) fn at_ms(pod: &Pod, since: jiff::Timestamp) -> Option<u64> {
    let seconds = u64::try_from(pod.spec.active_deadline_seconds?).unwrap_or(0);
    let started = pod.status.start_time.unwrap_or(since).as_millisecond();
    Some(u64::try_from(started).unwrap_or(0).saturating_add(seconds.saturating_mul(1000)))
}

impl Worker {
    /// Stops the containers within the pod's grace period and fails the pod.
    pub(super) async fn end_at_deadline(&mut self) {
        let text = "Pod was active on the node longer than the specified deadline";
        self.event(EventType::Warning, REASON, text);
        self.rejected = true;
        // A deletion meanwhile may shorten the grace period.
        self.stop_containers(Stop::Deleted).await;
        self.finish().await;
        self.report_failed(REASON, text).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deadline_counts_from_the_start_time_in_the_status() {
        let at = |spec: serde_json::Value, status: serde_json::Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
            let since = jiff::Timestamp::from_second(500).expect("in range");
            at_ms(&serde_json::from_value(pod).expect("valid pod"), since)
        };
        let started = json!({"startTime": "1970-01-01T00:01:40Z"});
        for (spec, status, want) in [
            (json!({}), started.clone(), None),
            (json!({"activeDeadlineSeconds": 30}), started, Some(130_000)),
            (json!({"activeDeadlineSeconds": 30}), json!({}), Some(530_000)),
            (json!({"activeDeadlineSeconds": i64::MAX}), json!({}), Some(u64::MAX)),
        ] {
            assert_eq!(at(spec.clone(), status), want, "{spec}");
        }
    }
}
