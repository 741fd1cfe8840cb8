//! How each controller of the process is doing, for health checks and metrics.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use longshore_cluster::controller::{Burst, Vitals};
use longshore_cluster::election::{NotRenewed, Status};
use longshore_cluster::telemetry::{encode_counters, encode_gauges};
use longshore_core::words;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::watch;

/// So many panics of one controller within so long have it started anew.
const PANICS: (usize, Duration) = (5, Duration::from_secs(60));

/// A pass that has run for so many times the deadline of a call is stuck.
const STUCK_AFTER: u32 = 10;

/// A controller that has not shown for so long that it gets to run is stuck.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// Why the work of a controller must not be trusted any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stuck {
    #[error(
        "stuck: one pass has been running for {}, and a call may take {}",
        words::time(*.pass), words::time(*.deadline)
    )]
    Pass { pass: Duration, deadline: Duration },
    #[error("stuck: its loops have not run for {}", words::time(*.0))]
    Silent(Duration),
}

/// Leases, by name, that are held and not renewed.
#[derive(Debug, thiserror::Error)]
#[error("{}", words::list(.0.iter().map(|(lease, why)| format!("{lease}: {why}"))))]
pub(super) struct NotAllRenewed(Vec<(String, NotRenewed)>);

/// What a controller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It works.
    Leading,
    /// It would work if it had its lease, or its driver.
    Standby,
    /// The driver has nothing to do for it.
    Idle,
    /// It cannot work, and somebody has to do something about it.
    Down,
}

impl State {
    const ALL: [Self; 4] = [Self::Leading, Self::Standby, Self::Idle, Self::Down];

    fn word(self) -> &'static str {
        match self {
            Self::Leading => "leading",
            Self::Standby => "standby",
            Self::Idle => "idle",
            Self::Down => "down",
        }
    }
}

/// One controller's place on the board.
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// Deadline of the calls of a controller; none for what belongs to a node, and has no lease.
    deadline: Option<Duration>,
    state: Mutex<(State, String)>,
    pub(super) vitals: Vitals,
    /// The lease that it holds, or would.
    lease: OnceLock<String>,
    pub(super) leads: Status,
    changed: watch::Sender<u64>,
}

impl Entry {
    /// The span of everything that is about this controller.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::info_span!("controller", controller = self.name)
    }

    /// Says what it does now, and why; within its span.
    pub(super) fn set(&self, state: State, reason: impl Into<String>) {
        let now = (state, reason.into());
        let before = std::mem::replace(&mut *self.state.lock(), now.clone());
        if before == now {
            return;
        }
        let (_, reason) = now;
        match state {
            State::Down => tracing::error!(reason, "controller is down"),
            State::Idle => tracing::info!(reason, "controller is idle"),
            State::Leading | State::Standby => {
                longshore_cluster::log_process!(reason, "controller is {}", state.word());
            }
        }
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn state(&self) -> State {
        self.state.lock().0
    }

    /// Names the lease, once the driver's name is known.
    pub(super) fn under(&self, lease: &str) {
        self.lease.get_or_init(|| lease.to_owned());
    }

    /// Why its work must not be trusted any more, if so.
    pub(super) fn stuck(&self) -> Result<(), Stuck> {
        let (pass, silence) = (self.vitals.oldest_pass(), self.vitals.silence());
        match self.deadline {
            Some(deadline) if pass > deadline * STUCK_AFTER => Err(Stuck::Pass { pass, deadline }),
            _ if silence > LONGEST_SILENCE => Err(Stuck::Silent(silence)),
            _ => Ok(()),
        }
    }

    /// One line: the state, and why; the second word says whether that is well.
    fn line(&self) -> (String, bool) {
        let (state, reason) = self.state.lock().clone();
        let (reason, well) = match self.stuck() {
            Err(stuck) => (stuck.to_string(), false),
            Ok(()) => (reason, state != State::Down),
        };
        let colon = if reason.is_empty() { "" } else { ": " };
        (format!("{} {}{colon}{reason}", self.name, state.word()), well)
    }
}

/// All controllers of the process.
#[derive(Clone)]
pub(super) struct Board {
    entries: Arc<Vec<Arc<Entry>>>,
    driver: Arc<OnceLock<String>>,
    changed: watch::Sender<u64>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Board")
    }
}

impl Board {
    /// A board for these controllers, each with the deadline of its calls.
    pub(super) fn new(
        controllers: impl IntoIterator<Item = (&'static str, Option<Duration>)>,
    ) -> Self {
        let changed = watch::Sender::new(0);
        let entry = |(name, deadline)| {
            let (limit, within) = PANICS;
            Arc::new(Entry {
                name,
                deadline,
                state: Mutex::new((State::Standby, "waiting for the driver".to_owned())),
                vitals: Vitals::new(Burst::new(limit, within)),
                lease: OnceLock::new(),
                leads: Status::default(),
                changed: changed.clone(),
            })
        };
        let entries = controllers.into_iter().map(entry).collect();
        Self { entries: Arc::new(entries), driver: Arc::default(), changed }
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    pub(super) fn name_driver(&self, driver: &str) {
        self.driver.get_or_init(|| driver.to_owned());
    }

    /// Waits until the driver has nothing to do for any of them, and says why for each.
    pub(super) async fn all_idle(&self) -> String {
        let idle = |entry: &Arc<Entry>| entry.state() == State::Idle;
        let mut changed = self.changed.subscribe();
        // The sender is ours.
        let _ = changed.wait_for(|_| self.entries.iter().all(idle)).await;
        words::list(self.entries.iter().map(|entry| entry.line().0))
    }

    /// One line for each controller, and whether all are well.
    pub(super) fn controllers(&self) -> (String, bool) {
        let lines: Vec<_> = self.entries.iter().map(|entry| entry.line()).collect();
        let text = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
        (text, lines.iter().all(|(_, well)| *well))
    }

    /// Whether every lease that is held is renewed; of one controller, or of all. `None`, if there is no such controller.
    pub(super) fn leases(&self, only: Option<&str>) -> Option<Result<(), NotAllRenewed>> {
        let asked = self.entries.iter().filter(|entry| only.is_none_or(|one| one == entry.name));
        let asked: Vec<_> = asked.filter(|entry| entry.deadline.is_some()).collect();
        if only.is_some() && asked.is_empty() {
            return None;
        }
        let stuck: Vec<(String, NotRenewed)> = asked
            .into_iter()
            .filter_map(|entry| Some((entry.lease.get()?.clone(), entry.leads.check().err()?)))
            .collect();
        Some(if stuck.is_empty() { Ok(()) } else { Err(NotAllRenewed(stuck)) })
    }

    fn labels(&self, entry: &Entry) -> Vec<(&'static str, String)> {
        let driver = self.driver.get().cloned().unwrap_or_else(|| "unknown-driver".into());
        vec![("driver_name", driver), ("controller", entry.name.to_owned())]
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let states = self.entries.iter().flat_map(|entry| {
            let now = entry.state();
            State::ALL.map(|state| {
                let word = [("state", state.word().to_owned())];
                ([self.labels(entry), word.to_vec()].concat(), i64::from(state == now))
            })
        });
        let help = "1 for what the controller does now, else 0";
        encode_gauges(&mut encoder, "longshore_controller_state", help, states)?;
        let panics = self.entries.iter().map(|entry| (self.labels(entry), entry.vitals.panics()));
        let help = "Panics that were caught in a controller's tasks";
        encode_counters(&mut encoder, "longshore_controller_panics", help, panics)?;
        let oldest = self
            .entries
            .iter()
            .map(|entry| (self.labels(entry), entry.vitals.oldest_pass().as_secs_f64()));
        let help = "Seconds for which the pass of the controller runs that has run longest";
        encode_gauges(&mut encoder, "longshore_controller_oldest_item_seconds", help, oldest)
    }
}
