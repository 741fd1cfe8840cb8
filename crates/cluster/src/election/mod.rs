//! Leader election on a Lease, compatible with the Go sidecars on the same Lease.
//!
//! The holder renews the lease; a candidate takes it when it is free, or when it has watched
//! the same record for the whole lease duration. Expiry is judged by local observation only, so
//! clocks may differ. Writes are optimistic PUTs. In addition to polling as the Go clients do, a
//! candidate watches the lease, so that a released lease changes hands at once.

mod fence;
mod lock;
mod names;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_core::model::ObjectRef;
use longshore_core::words;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api::Api;
use crate::events::{EventType, Recorder};
use crate::telemetry::Metrics;
pub use fence::{NotHeld, holds};
use lock::Lock;
pub use names::{default_namespace, host_identity, lease_name, pod_identity, unique_identity};
pub use status::{NotRenewed, Status};

/// How long a process that was asked to stop waits for its lease to be released. A lease that is not
/// released runs out; a process that does not end in time is killed.
const RELEASE_AT_STOP: Duration = Duration::from_secs(1);

/// What to do when the lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// Return an error at once; the program exits, as the Go sidecars do.
    Exit,
    /// Wait for what runs, then campaign again.
    Rejoin,
}

/// One candidate for one lease.
#[derive(Clone)]
pub struct ElectionConfig {
    /// Access for the lease alone, outside all limits (see `ClientConfig::lease_client`).
    pub api: Api,
    pub namespace: String,
    /// Name of the lease; see [`lease_name`].
    pub name: String,
    /// Identity of this candidate: [`host_identity`] for a program that goes on where its container
    /// left off, else [`unique_identity`]. A lease found under it is watched for one retry period:
    /// unchanged it is taken at once, renewed it is another's.
    pub identity: String,
    /// A candidate takes a lease that was not renewed for this long.
    pub lease_duration: Duration,
    /// A leader that cannot renew for this long gives up.
    pub renew_deadline: Duration,
    /// Pause between two attempts to take or renew the lease.
    pub retry_period: Duration,
    /// Labels put on the lease.
    pub labels: BTreeMap<String, String>,
    pub on_loss: OnLoss,
    /// Whether a graceful stop frees the lease for the next candidate.
    pub release_on_exit: bool,
    /// Writes events about changes of leadership.
    pub recorder: Option<Recorder>,
    pub metrics: Option<Metrics>,
    /// Says whether this process leads; also the health check.
    pub status: Status,
    /// Says why the work must not be trusted any more, if so: the lease is not renewed then, and runs out.
    pub fit: Option<Fit>,
}

/// Whether work that leads may go on; the error says why not.
pub type Fit = Arc<dyn Fn() -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + Sync>;

impl ElectionConfig {
    /// A candidate with the sidecars' durations (15 s, 10 s, 5 s), a unique identity, rejoining
    /// on loss and releasing on a graceful stop.
    #[must_use]
    pub fn new(api: Api, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            api,
            namespace: namespace.into(),
            name: name.into(),
            identity: unique_identity(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
            labels: BTreeMap::new(),
            on_loss: OnLoss::Rejoin,
            release_on_exit: true,
            recorder: None,
            metrics: None,
            status: Status::default(),
            fit: None,
        }
    }

    /// Checks that lease duration > renew deadline > 1.2 × retry period.
    ///
    /// # Errors
    /// [`ElectionError::Durations`] names the rule that is broken.
    pub fn validate(&self) -> Result<(), ElectionError> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if lease <= renew {
            return Err(ElectionError::Durations(format!(
                "the lease duration ({}) must be longer than the renew deadline ({})",
                words::time(lease),
                words::time(renew)
            )));
        }
        if renew <= retry.mul_f64(1.2) {
            return Err(ElectionError::Durations(format!(
                "the renew deadline ({}) must be longer than 1.2 times the retry period ({})",
                words::time(renew),
                words::time(retry)
            )));
        }
        if retry.is_zero() || lease < Duration::from_secs(1) {
            return Err(ElectionError::Durations(
                "the retry period must not be zero and the lease must last at least a second"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// Why an election ended.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The durations contradict each other.
    #[error("leader election: {0}; change the --leader-election durations")]
    Durations(String),
    /// The lease was lost ([`OnLoss::Exit`]).
    #[error("leader election lost for lease {lease}: {reason}")]
    Lost { lease: String, reason: String },
    /// The work panicked ([`OnLoss::Exit`]).
    #[error("the work under lease {lease} panicked: {reason}")]
    Panicked { lease: String, reason: String },
}

/// Campaigns for the lease and runs `lead` while it is held.
///
/// `lead` gets a token that is cancelled when leadership ends; it must then start nothing new and
/// return. It runs as a task of its own, so a panic in it ends that leadership and nothing else.
/// Returns `Ok` after `shutdown`, or when `lead` returns by itself (the lease is freed then, and
/// the caller may campaign again).
///
/// # Errors
/// See [`ElectionError`].
pub async fn run<F, Fut>(
    config: ElectionConfig,
    shutdown: &CancellationToken,
    lead: F,
) -> Result<(), ElectionError>
where
    F: Fn(CancellationToken) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    config.validate()?;
    config.status.configure(config.lease_duration);
    if let Some(metrics) = &config.metrics {
        metrics.leading(&config.name).set(0);
    }
    let mut elector = Elector { lock: Lock::new(&config), config };
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = elector.campaign() => {}
        }
        let token = CancellationToken::new();
        let work = AbortOnDropHandle::new(tokio::spawn(lead(token.clone())));
        let ended = elector.lead(work, &token, shutdown).await;
        if shutdown.is_cancelled() {
            return Ok(());
        }
        match (ended, elector.config.on_loss) {
            (Ended::Finished, _) => return Ok(()),
            (Ended::Lost(reason), OnLoss::Exit) => {
                return Err(ElectionError::Lost { lease: elector.lease(), reason });
            }
            (Ended::Panicked(reason), OnLoss::Exit) => {
                return Err(ElectionError::Panicked { lease: elector.lease(), reason });
            }
            (Ended::Lost(_) | Ended::Panicked(_), OnLoss::Rejoin) => {
                // Others get their chance first, and a panic cannot spin.
                let pause = tokio::time::sleep(elector.config.retry_period);
                if shutdown.run_until_cancelled(pause).await.is_none() {
                    return Ok(());
                }
            }
        }
    }
}

enum Ended {
    Finished,
    Lost(String),
    Panicked(String),
}

struct Elector {
    config: ElectionConfig,
    lock: Lock,
}

impl Elector {
    fn lease(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Tries until the lease is ours.
    async fn campaign(&mut self) {
        let freed = Arc::new(Notify::new());
        let _watch = AbortOnDropHandle::new(self.watch_for_release(freed.clone()));
        crate::log_process!(lease = %self.lease(), identity = %self.config.identity, "campaigning");
        loop {
            let started = Instant::now();
            match self.lock.try_hold().await {
                Ok(true) => return self.config.status.renewed(started),
                Ok(false) => {}
                // Another candidate was quicker.
                Err(error) if error.is_conflict() || error.is_already_exists() => {}
                Err(error) => tracing::warn!(lease = %self.lease(), %error, "cannot campaign"),
            }
            // At the latest after one retry period, so that a renewal is never observed later
            // than that; and right when the lease as observed runs out.
            let pause = self.config.retry_period.mul_f64(0.9 + 0.1 * fastrand::f64());
            let mut next = Instant::now() + pause;
            if let Some(expiry) = self.lock.expiry() {
                next = next.min(expiry.max(Instant::now() + Duration::from_millis(10)));
            }
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = freed.notified() => {}
            }
        }
    }

    /// Watches the lease for the moment it is freed. Where watching is not allowed, polling does.
    fn watch_for_release(&self, freed: Arc<Notify>) -> JoinHandle<()> {
        let watcher = lock::Watcher::new(&self.config);
        let pause = self.config.retry_period;
        tokio::spawn(async move {
            loop {
                if let Err(error) = watcher.run(&freed).await {
                    tracing::debug!(%error, "the lease is polled, not watched");
                }
                tokio::time::sleep(pause).await;
            }
        })
    }

    /// Holds the lease while `work` runs.
    async fn lead(
        &mut self,
        mut work: AbortOnDropHandle<()>,
        token: &CancellationToken,
        shutdown: &CancellationToken,
    ) -> Ended {
        self.report(true, "became leader");
        let mut stop_asked = false;
        let ended = loop {
            tokio::select! {
                result = &mut work => break finished(result),
                reason = self.renew_until_lost() => break Ended::Lost(reason),
                // The lease is kept, and renewed, until the work has ended.
                () = shutdown.cancelled(), if !stop_asked => {
                    stop_asked = true;
                    token.cancel();
                }
            }
        };
        token.cancel();
        self.config.status.stopped();
        self.report(false, "stopped leading");
        match &ended {
            Ended::Lost(reason) => {
                tracing::error!(lease = %self.lease(), reason, "leadership lost");
                if self.config.on_loss == OnLoss::Rejoin {
                    let _ = work.await;
                }
            }
            Ended::Finished | Ended::Panicked(_) => self.release(stop_asked).await,
        }
        ended
    }

    /// Renews at each retry period; returns why leadership was lost.
    async fn renew_until_lost(&mut self) -> String {
        loop {
            let last = self.config.status.last_renewed().unwrap_or_else(Instant::now);
            let round = last + self.config.retry_period;
            tokio::time::sleep_until(round).await;
            if let Some(Err(reason)) = self.config.fit.as_ref().map(|fit| fit()) {
                return reason.to_string();
            }
            // Stop a little before others may take the lease, whatever the flags say.
            let deadline = (round + self.config.renew_deadline)
                .min(last + self.config.lease_duration.mul_f64(0.9));
            if let Some(reason) = self.renew_once(deadline).await {
                return reason;
            }
        }
    }

    /// Tries until renewed (`None`) or until `deadline` (why not).
    async fn renew_once(&mut self, deadline: Instant) -> Option<String> {
        let pause = self.config.retry_period.min(Duration::from_secs(1));
        loop {
            let started = Instant::now();
            // Several tries must fit before the deadline, also if the server hangs.
            let attempt_timeout = (self.config.renew_deadline / 3).max(pause);
            let until = deadline.min(started + attempt_timeout);
            let reason = match tokio::time::timeout_at(until, self.lock.try_hold()).await {
                Ok(Ok(true)) => {
                    self.config.status.renewed(started);
                    return None;
                }
                Ok(Ok(false)) => return Some(format!("{} holds it", self.lock.other_holder())),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the API server does not answer".to_owned(),
            };
            if Instant::now() + pause >= deadline {
                return Some(reason);
            }
            tracing::warn!(lease = %self.lease(), reason, "lease not renewed yet");
            tokio::time::sleep(pause).await;
        }
    }

    async fn release(&mut self, stopping: bool) {
        if stopping && !self.config.release_on_exit {
            return;
        }
        let limit = self.config.renew_deadline / 2;
        let limit = if stopping { limit.min(RELEASE_AT_STOP) } else { limit };
        match tokio::time::timeout(limit, self.lock.release()).await {
            Ok(Ok(())) => crate::log_process!(lease = %self.lease(), "lease released"),
            Ok(Err(error)) => tracing::warn!(lease = %self.lease(), %error, "lease not released"),
            Err(_) => tracing::warn!(lease = %self.lease(), "lease not released: no answer"),
        }
    }

    fn report(&self, leading: bool, what: &str) {
        let config = &self.config;
        crate::log_process!(lease = %self.lease(), identity = %config.identity, "{what}");
        if let Some(metrics) = &config.metrics {
            metrics.leading(&config.name).set(i64::from(leading));
        }
        if let Some(recorder) = &config.recorder {
            let object = ObjectRef {
                api_version: "coordination.k8s.io/v1".into(),
                kind: "Lease".into(),
                namespace: config.namespace.clone(),
                name: config.name.clone(),
                ..ObjectRef::default()
            };
            let message = format!("{} {what}", config.identity);
            recorder.event(&object, EventType::Normal, "LeaderElection", message);
        }
    }
}

fn finished(result: Result<(), JoinError>) -> Ended {
    match result {
        Ok(()) => Ended::Finished,
        Err(error) => Ended::Panicked(error.to_string()),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
