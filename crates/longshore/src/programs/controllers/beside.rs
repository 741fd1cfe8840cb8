//! Refuses to start beside a kube-controller-manager.
//!
//! It runs the same controllers, and its lease is not ours: two attach-detach controllers would undo each other's
//! work. Which controllers it runs cannot be seen from outside, so its operator has to say that these are off.

use std::time::Duration;

use anyhow::{Result, bail};
use longshore_cluster::{Api, ApiError};
use longshore_core::model::{
    ObjectKey,
    kinds::{Lease, LeaseSpec},
};
use tokio::time::{Instant, sleep};

use super::Controller;

const NAMESPACE: &str = "kube-system";
const LEASE: &str = "kube-controller-manager";

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause after a request without an answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// A lease is renewed at least this often while it runs: 15 s are renewed every 2 s by default, OpenShift's 137 s every
/// 26 s.
const RENEWALS: u32 = 4;

/// Whether this is the lease that a kube-controller-manager would hold, so that it and we take turns.
pub(super) fn is_its_lease(namespace: Option<&str>, name: &str) -> bool {
    (namespace, name) == (Some(NAMESPACE), LEASE)
}

/// Returns when no kube-controller-manager is at work. One that died is told by its lease, which does not change any
/// more; that takes one period of its renewals, and at least one of ours.
///
/// # Errors
/// When one is.
pub(super) async fn refuse(api: &Api, chosen: &[Controller], retry_period: Duration) -> Result<()> {
    // kube-controller-manager places no pods.
    let theirs: Vec<_> = chosen.iter().filter(|one| **one != Controller::Scheduler).collect();
    if theirs.is_empty() {
        return Ok(());
    }
    let Some(holder) = live_holder(api, retry_period).await else { return Ok(()) };
    let off: String = theirs.iter().map(|one| format!(",-{}", one.name())).collect();
    bail!(
        "a kube-controller-manager runs in this cluster: {holder:?} renews the lease {NAMESPACE}/{LEASE}. The same \
         controllers must not run twice. Start it with --controllers=*{off}, then start this program with \
         --allow-beside-kube-controller-manager"
    )
}

async fn live_holder(api: &Api, retry_period: Duration) -> Option<String> {
    let first = read(api).await?;
    let end = Instant::now() + patience(&first, retry_period);
    loop {
        sleep(LOOK_EVERY).await;
        let now = read(api).await?;
        if now != first {
            return Some(now.holder_identity);
        }
        if Instant::now() >= end {
            let holder = first.holder_identity;
            tracing::info!(holder, lease = LEASE, "the lease is not renewed: its holder is gone");
            return None;
        }
    }
}

/// Within this time whoever holds the lease renews it.
fn patience(lease: &LeaseSpec, retry_period: Duration) -> Duration {
    let seconds = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    retry_period.max(Duration::from_secs(seconds.unwrap_or(0)) / RENEWALS)
}

/// The lease, while somebody holds it.
async fn read(api: &Api) -> Option<LeaseSpec> {
    loop {
        match api.get::<Lease>(&ObjectKey::new(NAMESPACE, LEASE)).await {
            Ok(lease) => {
                return lease
                    .map(|lease| lease.spec)
                    .filter(|spec| !spec.holder_identity.is_empty());
            }
            Err(error @ ApiError::Forbidden { .. }) => {
                tracing::warn!(%error, "cannot see whether a kube-controller-manager runs; make sure that none runs these controllers");
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot ask whether a kube-controller-manager runs");
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_watched_for_one_period_of_its_renewals() {
        for (lease_seconds, retry_seconds, millis) in [
            (Some(15), 2, 3750),
            (Some(137), 26, 34_250),
            (Some(15), 5, 5000),
            (Some(-1), 2, 2000),
            (None, 2, 2000),
        ] {
            let lease = LeaseSpec { lease_duration_seconds: lease_seconds, ..LeaseSpec::default() };
            let watched = patience(&lease, Duration::from_secs(retry_seconds));
            assert_eq!(watched, Duration::from_millis(millis), "{lease_seconds:?}");
        }
    }

    #[test]
    fn its_own_lease_is_known() {
        assert!(is_its_lease(Some("kube-system"), "kube-controller-manager"));
        assert!(!is_its_lease(Some("kube-system"), "longshore-controllers"));
        assert!(!is_its_lease(None, "kube-controller-manager"));
    }
}
