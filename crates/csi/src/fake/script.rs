//! Faults, hooks and the log of calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::{Message, Name};
use tonic::{Code, Request, Response, Status};

use super::state::State;
use super::{Config, Driver};
use crate::{Call, redact, status_text};

/// One scripted fault.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing is wrong with this call.
    None,
    /// Fails and does nothing.
    Before(Code, String),
    /// Does its work, then fails.
    After(Code, String),
    /// Sends no response and does nothing.
    Hang,
    /// Does its work, then sends no response.
    HangAfter,
    /// Waits, then works as usual.
    Delay(Duration),
}

impl Fault {
    /// Fails with `code` and does nothing.
    pub fn before(code: Code) -> Self {
        Self::Before(code, "scripted failure".to_owned())
    }

    /// Does its work, then fails with `code`.
    pub fn after(code: Code) -> Self {
        Self::After(code, "scripted failure".to_owned())
    }
}

/// Whether a call is about to take effect or just did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has happened yet.
    Before,
    /// The effect is there, the response is not sent.
    After,
}

/// One call, as a hook sees it.
#[derive(Debug)]
pub struct CallEvent<'a> {
    pub call: Call,
    /// Before or after the effect.
    pub phase: Phase,
    /// The node whose service was called.
    pub node: &'a str,
    /// The request as one line without secrets.
    pub request: &'a str,
}

/// What a hook decides.
#[derive(Clone, Debug)]
pub enum Action {
    Continue,
    Fail(Status),
    /// Send no response.
    Hang,
    /// Wait, then go on.
    Delay(Duration),
}

type Hook = Arc<dyn Fn(&CallEvent<'_>) -> Action + Send + Sync>;

/// One call as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    pub call: Call,
    /// The node whose service was called.
    pub node: String,
    /// The request as one line without secrets.
    pub request: String,
    /// The response as one line, or the status in Go form; absent while in flight, also if cancelled.
    pub result: Option<Result<String, String>>,
}

#[derive(Default)]
pub(super) struct Script {
    queued: BTreeMap<Call, VecDeque<Fault>>,
    standing: BTreeMap<Call, Fault>,
    hook: Option<Hook>,
    log: Vec<CallRecord>,
    /// How many records were cleared, so that late responses do not hit the wrong one.
    cleared: usize,
}

impl Driver {
    /// Queues faults: each applies to one call, in order.
    pub fn script(&self, call: Call, faults: impl IntoIterator<Item = Fault>) -> &Self {
        self.backend.script.lock().queued.entry(call).or_default().extend(faults);
        self
    }

    /// Lets every call without a queued fault have this one; [`Fault::None`] ends it.
    pub fn always(&self, call: Call, fault: Fault) -> &Self {
        self.backend.script.lock().standing.insert(call, fault);
        self
    }

    /// Forgets all queued and standing faults.
    pub fn clear_faults(&self) {
        let mut script = self.backend.script.lock();
        script.queued.clear();
        script.standing.clear();
    }

    /// Calls `hook` before and after the effect of every call, ahead of the scripted faults.
    pub fn hook(&self, hook: impl Fn(&CallEvent<'_>) -> Action + Send + Sync + 'static) {
        self.backend.script.lock().hook = Some(Arc::new(hook));
    }

    pub fn clear_hook(&self) {
        self.backend.script.lock().hook = None;
    }

    /// All calls so far, in order of arrival.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.backend.script.lock().log.clone()
    }

    /// The calls of one kind.
    pub fn calls_of(&self, call: Call) -> Vec<CallRecord> {
        self.calls().into_iter().filter(|record| record.call == call).collect()
    }

    /// Forgets the calls so far.
    pub fn clear_calls(&self) {
        let mut script = self.backend.script.lock();
        script.cleared += script.log.len();
        script.log.clear();
    }

    /// Everything around one call: log, hook, faults, and in the middle the effect, which happens at once.
    pub(super) async fn run<Q, R>(
        &self,
        call: Call,
        request: Request<Q>,
        effect: impl FnOnce(&mut State, &Config, &Q) -> Result<R, Status> + Send,
    ) -> Result<Response<R>, Status>
    where
        Q: Message + Name,
        R: Message + Name,
    {
        let request = request.into_inner();
        let text = redact::text(&request);
        let (index, fault) = self.begin(call, &text);
        let result = self.perform(call, &text, fault, move |driver| {
            let config = driver.backend.config.lock().clone();
            if !config.version.knows(call) {
                return Err(Status::unimplemented(format!("unknown method {}", call.name())));
            }
            effect(&mut driver.backend.state.lock(), &config, &request)
        });
        let result = result.await;
        self.finish(index, &result);
        result.map(Response::new)
    }

    async fn perform<R>(
        &self,
        call: Call,
        text: &str,
        fault: Fault,
        effect: impl FnOnce(&Self) -> Result<R, Status>,
    ) -> Result<R, Status> {
        self.ask_hook(call, Phase::Before, text).await?;
        match &fault {
            Fault::Before(code, message) => return Err(Status::new(*code, message)),
            Fault::Hang => std::future::pending().await,
            Fault::Delay(pause) => tokio::time::sleep(*pause).await,
            Fault::None | Fault::After(..) | Fault::HangAfter => {}
        }
        let result = effect(self);
        self.ask_hook(call, Phase::After, text).await?;
        match fault {
            Fault::After(code, message) => Err(Status::new(code, message)),
            Fault::HangAfter => std::future::pending().await,
            _ => result,
        }
    }

    async fn ask_hook(&self, call: Call, phase: Phase, request: &str) -> Result<(), Status> {
        let hook = self.backend.script.lock().hook.clone();
        let Some(hook) = hook else { return Ok(()) };
        match hook(&CallEvent { call, phase, node: self.node_id(), request }) {
            Action::Continue => {}
            Action::Fail(status) => return Err(status),
            Action::Hang => std::future::pending().await,
            Action::Delay(pause) => tokio::time::sleep(pause).await,
        }
        Ok(())
    }

    fn begin(&self, call: Call, request: &str) -> (usize, Fault) {
        let mut script = self.backend.script.lock();
        script.log.push(CallRecord {
            call,
            node: self.node_id().to_owned(),
            request: request.to_owned(),
            result: None,
        });
        let queued = script.queued.get_mut(&call).and_then(VecDeque::pop_front);
        let fault = queued.or_else(|| script.standing.get(&call).cloned()).unwrap_or(Fault::None);
        (script.cleared + script.log.len() - 1, fault)
    }

    fn finish<R: Message + Name>(&self, index: usize, result: &Result<R, Status>) {
        let text = match result {
            Ok(response) => Ok(redact::text(response)),
            Err(status) => Err(status_text(status)),
        };
        let mut script = self.backend.script.lock();
        let index = index.checked_sub(script.cleared);
        if let Some(record) = index.and_then(|index| script.log.get_mut(index)) {
            record.result = Some(text);
        }
    }
}
