//! Says whether this process leads, for loops that must know before they act.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long past the lease duration a leader may fail to renew before it is unhealthy.
const HEALTH_GRACE: Duration = Duration::from_secs(20);

/// The state of one candidacy. Cheap to clone; all clones are the same state.
#[derive(Debug, Clone, Default)]
pub struct Status {
    inner: Arc<Mutex<State>>,
}

/// A leader is stuck. The text is upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership for {}s", since.as_secs())]
pub struct NotRenewed {
    pub since: Duration,
}

#[derive(Debug, Default)]
struct State {
    lease_duration: Duration,
    /// Start of the last successful renewal while leading; `None` on standby.
    renewed: Option<Instant>,
}

impl Status {
    /// True if the lease is ours right now, judged by the clock and not by the last renewal
    /// attempt: a process that was stopped for a minute does not lead when it wakes up.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        let state = self.inner.lock();
        state.renewed.is_some_and(|at| at.elapsed() < state.lease_duration)
    }

    /// The health check: a standby is healthy, and so is a leader that renews. A leader that has
    /// not renewed for the lease duration and 20 s is stuck.
    ///
    /// # Errors
    /// Says since when the lease was not renewed.
    pub fn check(&self) -> Result<(), NotRenewed> {
        let state = self.inner.lock();
        match state.renewed.map(|at| at.elapsed()) {
            Some(since) if since > state.lease_duration + HEALTH_GRACE => Err(NotRenewed { since }),
            _ => Ok(()),
        }
    }

    pub(super) fn configure(&self, lease_duration: Duration) {
        self.inner.lock().lease_duration = lease_duration;
    }

    pub(super) fn renewed(&self, at: Instant) {
        self.inner.lock().renewed = Some(at);
    }

    pub(super) fn stopped(&self) {
        self.inner.lock().renewed = None;
    }

    pub(super) fn last_renewed(&self) -> Option<Instant> {
        self.inner.lock().renewed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case: csi-protocol/14.16
    #[tokio::test(start_paused = true)]
    async fn a_standby_is_healthy_and_a_stuck_leader_is_not() {
        let status = Status::default();
        status.configure(Duration::from_secs(15));
        assert_eq!((status.check(), status.is_leading()), (Ok(()), false));
        status.renewed(Instant::now());
        tokio::time::advance(Duration::from_secs(14)).await;
        assert!(status.is_leading());
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!((status.check(), status.is_leading()), (Ok(()), false));
        tokio::time::advance(Duration::from_secs(2)).await;
        let stuck = status.check().expect_err("not renewed for 36 s").to_string();
        assert_eq!(stuck, "failed election to renew leadership for 36s");
        status.stopped();
        assert_eq!(status.check(), Ok(()));
    }
}
