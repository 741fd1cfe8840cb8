//! The ledger: every call of the controllers with its number, and the faults that wait for one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use longshore_csi::Call;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Fault;

/// More calls than this mean that something runs in circles.
const CALL_BUDGET: usize = 20_000;

/// One call, as it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1.
    pub number: u64,
    /// The process that made it, counted from 1.
    pub process: u64,
    /// Time since the run began.
    pub at: Duration,
    /// What kind of call, for example `api create persistentvolumes` or `csi CreateVolume`.
    pub point: String,
    /// The object that the call is about.
    pub object: String,
    pub fault: Option<Fault>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, process, at, point, object, fault } = self;
        write!(f, "{number:>5} process {process} {:>9.3}s {point} {object}", at.as_secs_f64())?;
        match fault {
            Some(fault) => write!(f, " <== {fault}"),
            None => Ok(()),
        }
    }
}

/// What a caller gets before or after its call takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Go,
    /// The calling process is dead: it never gets a response.
    Dead,
    /// An error without verdict.
    Lost,
    Refused,
    Conflict,
}

#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    process: u64,
    fault: Option<Fault>,
}

struct Pending {
    call: Call,
    request: String,
    ticket: Ticket,
}

struct State {
    lines: Vec<Line>,
    armed: BTreeMap<u64, Fault>,
    /// The running processes, and the tokens that are cancelled when they are killed.
    alive: BTreeMap<u64, CancellationToken>,
    processes: u64,
    breaches: Vec<String>,
    /// CSI calls between their first moment and their last.
    csi: Vec<Pending>,
    notes: Vec<String>,
    /// Uids of all claims that there ever were.
    claims: Vec<String>,
}

/// Numbers the calls of the controllers and decides which of them fail. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    state: Arc<Mutex<State>>,
    started: Instant,
    struck: CancellationToken,
}

impl Ledger {
    /// Makes a ledger in which these faults will strike.
    pub(crate) fn new(faults: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        let state = State {
            lines: Vec::new(),
            armed: faults.into_iter().collect(),
            alive: BTreeMap::new(),
            processes: 0,
            breaches: Vec::new(),
            csi: Vec::new(),
            notes: Vec::new(),
            claims: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            started: Instant::now(),
            struck: CancellationToken::new(),
        }
    }

    /// Starts a process; returns its number and the token that is cancelled when it is killed.
    pub(crate) fn start_process(&self) -> (u64, CancellationToken) {
        let mut state = self.state.lock();
        state.processes += 1;
        let (process, killed) = (state.processes, CancellationToken::new());
        state.alive.insert(process, killed.clone());
        (process, killed)
    }

    /// Waits until the first fault strikes.
    pub(crate) async fn strike(&self) {
        self.struck.cancelled().await;
    }

    /// Numbers a call before it takes effect. The ticket is `None` if it must not take effect.
    pub(crate) fn begin(
        &self,
        process: u64,
        point: String,
        object: String,
    ) -> (CallOutcome, Option<Ticket>) {
        let mut state = self.state.lock();
        if !state.is_running(process) {
            return (CallOutcome::Dead, None);
        }
        let number = state.lines.len() as u64 + 1;
        let fault = state.armed.remove(&number);
        if fault.is_some() {
            self.struck.cancel();
        }
        let at = self.started.elapsed();
        state.lines.push(Line { number, process, at, point, object, fault });
        if state.lines.len() == CALL_BUDGET {
            state.breaches.push(format!("{CALL_BUDGET} calls: something runs in circles"));
            state.alive.clear();
            return (CallOutcome::Dead, None);
        }
        match fault {
            Some(Fault::CrashBefore) => {
                state.kill(process);
                (CallOutcome::Dead, None)
            }
            Some(Fault::Unreached) => (CallOutcome::Lost, None),
            Some(Fault::Refused) => (CallOutcome::Refused, None),
            Some(Fault::Conflict) => (CallOutcome::Conflict, None),
            fault => (CallOutcome::Go, Some(Ticket { number, process, fault })),
        }
    }

    /// Decides what the caller gets after its call took effect.
    pub(crate) fn end(&self, ticket: &Ticket) -> CallOutcome {
        let mut state = self.state.lock();
        if !state.is_running(ticket.process) {
            return CallOutcome::Dead;
        }
        match ticket.fault {
            Some(Fault::CrashAfter) => {
                state.kill(ticket.process);
                CallOutcome::Dead
            }
            Some(Fault::LostResponse) => CallOutcome::Lost,
            _ => CallOutcome::Go,
        }
    }

    /// How long ago a call began.
    pub(crate) fn age(&self, ticket: &Ticket) -> Duration {
        let state = self.state.lock();
        let began =
            state.lines.get(ticket.number as usize - 1).map_or(Duration::ZERO, |line| line.at);
        self.started.elapsed().saturating_sub(began)
    }

    pub(crate) fn keep_csi(&self, call: Call, request: &str, ticket: Ticket) {
        let request = request.to_owned();
        self.state.lock().csi.push(Pending { call, request, ticket });
    }

    pub(crate) fn take_csi(&self, process: u64, call: Call, request: &str) -> Option<Ticket> {
        let mut state = self.state.lock();
        let same = |one: &Pending| {
            one.ticket.process == process && one.call == call && one.request == request
        };
        let at = state.csi.iter().position(same)?;
        Some(state.csi.remove(at).ticket)
    }

    /// Records that an invariant was broken.
    pub fn breach(&self, text: impl Into<String>) {
        self.state.lock().breaches.push(text.into());
    }

    /// The invariants that were broken.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        self.state.lock().breaches.clone()
    }

    /// Records what user and nodes do, for reports.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        let mut state = self.state.lock();
        let (at, after) = (self.started.elapsed().as_secs_f64(), state.lines.len());
        state.notes.push(format!("{at:>9.3}s after call {after}: {text}"));
    }

    /// Records that a claim was created: one volume may be made for it.
    pub(crate) fn claim_created(&self, uid: &str) {
        self.state.lock().claims.push(uid.to_owned());
    }

    pub(crate) fn claims(&self) -> Vec<String> {
        self.state.lock().claims.clone()
    }

    /// What user and nodes did.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.state.lock().notes.clone()
    }

    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.state.lock().lines.clone()
    }

    /// How many processes were started.
    #[must_use]
    pub fn processes(&self) -> u64 {
        self.state.lock().processes
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl State {
    fn is_running(&self, process: u64) -> bool {
        self.alive.contains_key(&process)
    }

    fn kill(&mut self, process: u64) {
        if let Some(killed) = self.alive.remove(&process) {
            killed.cancel();
        }
    }
}
