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
    /// Its number, from 1.
    pub number: u64,
    /// Which process made it, from 1.
    pub life: u64,
    /// When, since the world began.
    pub at: Duration,
    /// What kind of call, for example `api create persistentvolumes` or `csi CreateVolume`.
    pub point: String,
    /// About what.
    pub object: String,
    /// What went wrong.
    pub fault: Option<Fault>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, life, at, point, object, fault } = self;
        write!(f, "{number:>5} life {life} {:>9.3}s {point} {object}", at.as_secs_f64())?;
        match fault {
            Some(fault) => write!(f, " <== {fault}"),
            None => Ok(()),
        }
    }
}

/// What a caller gets to feel at one moment of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing is wrong.
    Go,
    /// The caller is dead: it never hears anything again.
    Dead,
    /// An error without verdict.
    Lost,
    /// A clear no.
    Refused,
    /// Somebody was faster.
    Conflict,
}

/// A call under way.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    life: u64,
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
    /// The processes that live, and the tokens that end with them.
    alive: BTreeMap<u64, CancellationToken>,
    lives: u64,
    breaches: Vec<String>,
    /// CSI calls between their first moment and their last.
    csi: Vec<Pending>,
    notes: Vec<String>,
    /// Uids of all claims that there ever were.
    claims: Vec<String>,
}

/// Numbers calls and decides over them. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    state: Arc<Mutex<State>>,
    started: Instant,
    struck: CancellationToken,
}

impl Ledger {
    /// A ledger with these faults waiting.
    pub(crate) fn new(faults: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        let state = State {
            lines: Vec::new(),
            armed: faults.into_iter().collect(),
            alive: BTreeMap::new(),
            lives: 0,
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

    /// A new process is born; its number and the token that is cancelled when it dies.
    pub(crate) fn be_born(&self) -> (u64, CancellationToken) {
        let mut state = self.state.lock();
        state.lives += 1;
        let (life, heart) = (state.lives, CancellationToken::new());
        state.alive.insert(life, heart.clone());
        (life, heart)
    }

    /// Waits until the first fault strikes.
    pub(crate) async fn strike(&self) {
        self.struck.cancelled().await;
    }

    /// A call is about to be made. `None` as ticket when it will not be.
    pub(crate) fn begin(&self, life: u64, point: String, object: String) -> (Fate, Option<Ticket>) {
        let mut state = self.state.lock();
        if !state.lives_on(life) {
            return (Fate::Dead, None);
        }
        let number = state.lines.len() as u64 + 1;
        let fault = state.armed.remove(&number);
        if fault.is_some() {
            self.struck.cancel();
        }
        let at = self.started.elapsed();
        state.lines.push(Line { number, life, at, point, object, fault });
        if state.lines.len() == CALL_BUDGET {
            state.breaches.push(format!("{CALL_BUDGET} calls: something runs in circles"));
            state.alive.clear();
            return (Fate::Dead, None);
        }
        match fault {
            Some(Fault::CrashBefore) => {
                state.die(life);
                (Fate::Dead, None)
            }
            Some(Fault::Unreached) => (Fate::Lost, None),
            Some(Fault::Refused) => (Fate::Refused, None),
            Some(Fault::Conflict) => (Fate::Conflict, None),
            fault => (Fate::Go, Some(Ticket { number, life, fault })),
        }
    }

    /// A call has taken effect; what its caller hears.
    pub(crate) fn end(&self, ticket: &Ticket) -> Fate {
        let mut state = self.state.lock();
        if !state.lives_on(ticket.life) {
            return Fate::Dead;
        }
        match ticket.fault {
            Some(Fault::CrashAfter) => {
                state.die(ticket.life);
                Fate::Dead
            }
            Some(Fault::LostAnswer) => Fate::Lost,
            _ => Fate::Go,
        }
    }

    pub(crate) fn keep_csi(&self, call: Call, request: &str, ticket: Ticket) {
        let request = request.to_owned();
        self.state.lock().csi.push(Pending { call, request, ticket });
    }

    pub(crate) fn take_csi(&self, life: u64, call: Call, request: &str) -> Option<Ticket> {
        let mut state = self.state.lock();
        let same =
            |one: &Pending| one.ticket.life == life && one.call == call && one.request == request;
        let at = state.csi.iter().position(same)?;
        Some(state.csi.remove(at).ticket)
    }

    /// Writes down that something happened which never may.
    pub fn breach(&self, text: impl Into<String>) {
        self.state.lock().breaches.push(text.into());
    }

    /// What happened and never may.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        self.state.lock().breaches.clone()
    }

    /// Writes down what user and nodes do, for reports.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        let mut state = self.state.lock();
        let (at, after) = (self.started.elapsed().as_secs_f64(), state.lines.len());
        state.notes.push(format!("{at:>9.3}s after call {after}: {text}"));
    }

    /// A claim is there: one volume may be made for it.
    pub(crate) fn claim_is_made(&self, uid: &str) {
        self.state.lock().claims.push(uid.to_owned());
    }

    /// Uids of all claims that there ever were.
    pub(crate) fn claims(&self) -> Vec<String> {
        self.state.lock().claims.clone()
    }

    /// What user and nodes did.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.state.lock().notes.clone()
    }

    /// All calls so far.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.state.lock().lines.clone()
    }

    /// How many processes have lived.
    #[must_use]
    pub fn lives(&self) -> u64 {
        self.state.lock().lives
    }

    /// Time since the world began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl State {
    fn lives_on(&self, life: u64) -> bool {
        self.alive.contains_key(&life)
    }

    fn die(&mut self, life: u64) {
        if let Some(heart) = self.alive.remove(&life) {
            heart.cancel();
        }
    }
}
