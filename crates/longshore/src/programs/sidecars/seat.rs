//! One controller's life among others: waits for the driver, campaigns, works, and begins anew after whatever happens to
//! it, without the others noticing.

use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::Context;
use longshore_cluster::cache::Needs;
use longshore_cluster::controller::Burst;
use longshore_cluster::election::{self, ElectionConfig};
use longshore_core::words;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::access;
use super::board::{Entry, State};
use super::link::{Connected, Connection};
use crate::programs::sidecar::{Controller, Reached, Ready, Unable};

/// More restarts than this within so long, and a controller stays down.
const RESTARTS: (usize, Duration) = (5, Duration::from_secs(600));

/// Pause before something is tried again that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a controller that lacks a right waits before it asks again.
const RECHECK: Duration = Duration::from_secs(2);

/// What a controller has for itself in the process, and what it shares.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) entry: Arc<Entry>,
    pub(super) controller: Arc<dyn Controller>,
    pub(super) context: Context,
    pub(super) reached: Reached,
    pub(super) connection: watch::Receiver<Connection>,
    /// The candidate for its lease; none without leader election.
    pub(super) election: Option<ElectionConfig>,
    pub(super) restarts: Restarts,
}

/// The restarts of a controller. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub(super) struct Restarts(Arc<Mutex<Burst>>);

impl Default for Restarts {
    fn default() -> Self {
        let (most, within) = RESTARTS;
        Self(Arc::new(Mutex::new(Burst::new(most + 1, within))))
    }
}

impl Restarts {
    /// Counts one; true if it is one too many.
    pub(super) fn too_many(&self) -> bool {
        self.0.lock().add(Instant::now())
    }
}

/// What a controller has found out on one connection to the driver.
#[derive(Clone)]
struct Job {
    on: Arc<Connected>,
    ready: Ready,
}

/// How one run of a controller's loops ended.
enum Ended {
    /// It was told to.
    Told,
    /// The driver is away.
    Away,
    /// By itself, or because of its panics.
    Broken(String),
}

impl Seat {
    /// Lives until `stop`; calls in flight are finished then.
    pub(super) async fn run(self, stop: CancellationToken) {
        let span = self.entry.span();
        let living = async {
            while let Some(job) = stop.run_until_cancelled(self.ready()).await {
                self.serve(job, &stop).await;
                // Nothing but a restart of the process helps.
                if self.entry.state() == State::Down {
                    stop.cancelled().await;
                }
            }
        };
        living.instrument(span).await;
    }

    /// Waits until the driver is there and can do what this controller asks for, and the caches are filled: a standby
    /// takes over at once.
    async fn ready(&self) -> Job {
        loop {
            let job = match self.prepare().await {
                Ok(job) => job,
                Err((on, why)) => {
                    self.entry.set(State::Idle, why);
                    self.lost(&on).await;
                    continue;
                }
            };
            let needs = job.ready.needs(&self.context);
            let able = async {
                self.filled(&needs).await;
                self.allowed(&job.on).await;
            };
            tokio::select! {
                () = able => return job,
                () = self.lost(&job.on) => {}
            }
        }
    }

    /// Asks the driver of the present connection; the error says why there is nothing to do beside it.
    async fn prepare(&self) -> Result<Job, (Arc<Connected>, String)> {
        loop {
            let on = self.present().await;
            if let Some(missing) = self.controller.lacks(&on.driver.capabilities) {
                return Err((on, format!("the driver has no {missing}")));
            }
            let asked = tokio::select! {
                asked = self.controller.prepare(&self.reached) => asked,
                () = self.lost(&on) => continue,
            };
            match asked {
                Ok(ready) => return Ok(Job { on, ready }),
                Err(Unable::Idle(why)) => return Err((on, why)),
                Err(Unable::Failed(error)) => {
                    let error = words::causes_of(error.chain());
                    tracing::warn!(error, retry_in = words::time(PAUSE), "not ready to work");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits for the first list of each kind. A kind that may not be read takes this controller down, and no other.
    async fn filled(&self, needs: &Needs) {
        loop {
            tokio::select! {
                biased;
                (kind, why) = needs.refusal() => {
                    let rule = format!("the {} needs the verbs list and watch on {kind}", self.entry.name);
                    self.entry.set(State::Down, format!("{rule}, and the API server refuses: {why}"));
                    needs.allowed().await;
                    self.entry.set(State::Standby, "");
                }
                () = needs.synced() => return,
            }
        }
    }

    /// Waits until the API server allows what the work needs. A rule that is missing takes this controller down before
    /// it leads: another replica's account may have it, and a call without its record would leave a volume behind.
    async fn allowed(&self, on: &Connected) {
        let rights = self.controller.rights(&on.driver.capabilities);
        while let Some(rules) = access::missing(self.context.api.client(), rights).await {
            let reason = format!("the {} needs in a role of its account: {rules}", self.entry.name);
            self.entry.set(State::Down, reason);
            tokio::time::sleep(RECHECK).await;
        }
        if self.entry.state() == State::Down {
            self.entry.set(State::Standby, "");
        }
    }

    /// The connection to the driver, once there is one.
    async fn present(&self) -> Arc<Connected> {
        let mut connection = self.connection.clone();
        match connection.wait_for(Option::is_some).await.ok().and_then(|now| now.clone()) {
            Some(now) => now,
            // Nobody looks after the connection any more: the process ends.
            None => std::future::pending().await,
        }
    }

    /// Waits until a connection is lost.
    async fn lost(&self, on: &Connected) {
        let other = |now: &Connection| now.as_ref().is_none_or(|now| now.number != on.number);
        if self.connection.clone().wait_for(other).await.is_err() {
            std::future::pending().await
        }
    }

    /// Campaigns and works, until the driver has been away for too long, a right is taken away, or `stop`.
    async fn serve(&self, job: Job, stop: &CancellationToken) {
        let round = stop.child_token();
        let needs = job.ready.needs(&self.context);
        let span = tracing::Span::current();
        let work = |token| self.clone().work(job.clone(), token).instrument(span.clone());
        let serving = async {
            match &self.election {
                None => work(round.clone()).await,
                Some(candidate) => {
                    self.entry.set(State::Standby, "");
                    let ended = election::run(candidate.clone(), &round, work).await;
                    if let Err(error) = ended {
                        self.entry.set(State::Down, words::causes(&error));
                    }
                }
            }
        };
        let ending = async {
            tokio::select! {
                () = self.away_too_long() => {}
                _ = needs.refusal() => {}
            }
            round.cancel();
            std::future::pending().await
        };
        tokio::select! {
            () = serving => {}
            () = ending => {}
        }
    }

    /// Waits until the driver is away, and while this controller leads for as long as it may be away with a lease.
    async fn away_too_long(&self) {
        let Some(candidate) = &self.election else { return std::future::pending().await };
        loop {
            self.lost(&*self.present().await).await;
            if self.entry.state() != State::Leading {
                return;
            }
            let back = tokio::time::timeout(candidate.renew_deadline, self.present()).await;
            if back.is_err() {
                return;
            }
        }
    }

    /// Works as the leader until `stop`, through losses of the driver and restarts.
    async fn work(self, mut job: Job, stop: CancellationToken) {
        self.entry.set(State::Leading, "");
        while !stop.is_cancelled() {
            match self.run_loops(&job, &stop).await {
                Ended::Told => break,
                Ended::Away => {
                    self.entry.set(State::Leading, "waiting for the driver");
                    match stop.run_until_cancelled(self.prepare()).await {
                        None => break,
                        Some(Ok(again)) => job = again,
                        // The lease is for somebody else then.
                        Some(Err((_, why))) => return self.entry.set(State::Idle, why),
                    }
                    self.entry.set(State::Leading, "");
                }
                Ended::Broken(why) if self.restarts.too_many() => {
                    let (most, within) = (RESTARTS.0, words::time(RESTARTS.1));
                    let reason = format!("{why}, after {most} restarts within {within}");
                    return self.entry.set(State::Down, reason);
                }
                Ended::Broken(why) => {
                    tracing::error!(why, "the controller starts again");
                    stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                }
            }
        }
        self.entry.set(State::Standby, "");
    }

    /// Runs the loops in a task of their own, with all of their own work listed anew.
    async fn run_loops(&self, job: &Job, stop: &CancellationToken) -> Ended {
        let halt = stop.child_token();
        let vitals = &self.entry.vitals;
        let work = {
            let (ready, context, halt) = (job.ready.clone(), self.context.clone(), halt.clone());
            async move { ready.work(&context, halt).await }
        };
        let alive = {
            let vitals = vitals.clone();
            async move { vitals.alive(work).await }
        };
        let mut floods = vitals.floods();
        let span = tracing::Span::current();
        let mut task = AbortOnDropHandle::new(tokio::spawn(alive.instrument(span)));
        let ended = tokio::select! {
            biased;
            done = &mut task => return self.ended_by_itself(done, stop),
            () = stop.cancelled() => Ended::Told,
            () = self.lost(&job.on) => Ended::Away,
            _ = floods.changed() => Ended::Broken("too many panics".to_owned()),
        };
        halt.cancel();
        if task.await.is_err() {
            vitals.panicked();
        }
        ended
    }

    fn ended_by_itself(
        &self,
        done: Result<(), tokio::task::JoinError>,
        stop: &CancellationToken,
    ) -> Ended {
        match done {
            Ok(()) if stop.is_cancelled() => Ended::Told,
            Ok(()) => Ended::Broken("its loops ended".to_owned()),
            Err(error) => {
                self.entry.vitals.panicked();
                Ended::Broken(format!("its loops panicked: {error}"))
            }
        }
    }
}
