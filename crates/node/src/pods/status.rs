//! A pod's status from what its shim knows.

use longshore_cluster::clock;
use longshore_core::model::kinds::{Condition, Container, Pod};
use longshore_core::stage::lifecycle::{Next, Phase};
use serde_json::{Map, Value, json};

use super::shim_client::ShimView;
use super::termination::Messages;
use super::worker::Worker;
use crate::shim::protocol::{Outcome, RunState};

/// Why containers that do not run do not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub reason: &'static str,
    pub message: String,
}

impl Waiting {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What a status is made from.
struct Facts<'a> {
    pub pod: &'a Pod,
    pub view: &'a ShimView,
    pub next: &'a Next,
    pub waiting: &'a Waiting,
    /// What containers said at their end.
    pub messages: &'a Messages,
    /// Since when the node knows the pod.
    pub since: jiff::Timestamp,
}

impl Worker {
    /// The whole `status` of the pod as the last decision saw it.
    pub(super) fn status(&mut self, next: &Next) -> Value {
        self.messages.update(&self.deps.paths, &self.pod, &self.seen);
        status(&Facts {
            pod: &self.pod,
            view: &self.seen,
            next,
            waiting: &self.waiting,
            messages: &self.messages,
            since: self.since,
        })
    }
}

/// The whole `status` of a pod, conditions of others kept.
fn status(facts: &Facts<'_>) -> Value {
    let Facts { pod, next, .. } = facts;
    let main =
        pod.spec.containers.iter().map(|one| container(facts, one, false)).collect::<Vec<_>>();
    let init =
        pod.spec.init_containers.iter().map(|one| container(facts, one, true)).collect::<Vec<_>>();
    let ready = !main.is_empty() && main.iter().all(|one| one["ready"] == true);
    let mut status = json!({
        "phase": next.phase.as_str(),
        "conditions": conditions(facts, ready),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "startTime": clock::seconds(pod.status.start_time.unwrap_or(facts.since)),
        "containerStatuses": main,
        "qosClass": "BestEffort",
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = init.into();
    }
    status
}

fn container(facts: &Facts<'_>, one: &Container, init: bool) -> Value {
    let newest = facts.view.newest(&one.name);
    let running = newest.is_some_and(|run| run.outcome.is_none());
    let done = newest
        .is_some_and(|run| run.outcome.as_ref().is_some_and(|outcome| outcome.exit_code == 0));
    let restarting = facts.next.wake_at_ms.is_some()
        || facts.next.start.iter().any(|(name, _)| *name == one.name);
    let waits_again = restarting && newest.is_some() && !running && !facts.next.phase.is_over();
    let state = match newest {
        None => waiting(facts.waiting),
        Some(run) if waits_again && !done => waiting(&Waiting::new(
            "CrashLoopBackOff",
            format!("back-off restarting failed container {}", run.name),
        )),
        Some(run) => run_state(facts, run),
    };
    let last = if waits_again && !done { newest } else { facts.view.previous(&one.name) };
    json!({
        "name": one.name,
        "image": one.image,
        "imageID": "",
        "containerID": newest.map(|run| container_id(facts, run)).unwrap_or_default(),
        "ready": if init { done || running } else { running },
        "started": running,
        "restartCount": newest.map_or(0, |run| run.attempt),
        "state": state,
        "lastState": last.map_or_else(|| json!({}), |run| run_state(facts, run)),
    })
}

fn container_id(facts: &Facts<'_>, run: &RunState) -> String {
    format!("longshore://{}/{}/{}", facts.pod.metadata.uid, run.name, run.attempt)
}

fn waiting(waiting: &Waiting) -> Value {
    let mut state = json!({"reason": waiting.reason});
    if !waiting.message.is_empty() {
        state["message"] = waiting.message.as_str().into();
    }
    json!({"waiting": state})
}

fn run_state(facts: &Facts<'_>, run: &RunState) -> Value {
    let started = time(run.started_at_ms);
    let Some(outcome) = &run.outcome else { return json!({"running": {"startedAt": started}}) };
    let mut state = Map::new();
    state.insert("exitCode".into(), outcome.exit_code.into());
    state.insert("reason".into(), reason(outcome).into());
    state.insert("startedAt".into(), started.into());
    state.insert("finishedAt".into(), time(outcome.finished_at_ms).into());
    if outcome.signal != 0 {
        state.insert("signal".into(), outcome.signal.into());
    }
    let message = facts.messages.of(run);
    if !message.is_empty() {
        state.insert("message".into(), message.into());
    }
    json!({"terminated": state})
}

fn reason(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome { start_error: Some(_), .. } => "StartError",
        Outcome { exit_code: 0, .. } => "Completed",
        Outcome { .. } => "Error",
    }
}

fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    clock::seconds(at.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

fn conditions(facts: &Facts<'_>, ready: bool) -> Value {
    let over = match facts.next.phase {
        Phase::Succeeded => Some("PodCompleted"),
        Phase::Failed => Some("PodFailed"),
        Phase::Pending | Phase::Running => None,
    };
    let not_ready = over.unwrap_or("ContainersNotReady");
    let present = &facts.pod.status.conditions;
    let closed_gate = closed_gate(facts.pod);
    let initialized = facts.next.initialized;
    let init_reason = over.unwrap_or("ContainersNotInitialized");
    let ours = [
        (
            "Initialized",
            initialized,
            if initialized { over.unwrap_or_default() } else { init_reason },
        ),
        (
            "Ready",
            ready && closed_gate.is_none(),
            match &closed_gate {
                _ if !ready => not_ready,
                Some(_) => GATES_NOT_READY,
                None => "",
            },
        ),
        ("ContainersReady", ready, if ready { "" } else { not_ready }),
    ];
    let foreign = present.iter().filter(|one| ours.iter().all(|(kind, ..)| one.kind != *kind));
    let mut all: Vec<Value> = foreign.map(keep).collect();
    for (kind, holds, reason) in ours {
        let status = if holds { "True" } else { "False" };
        let old = present.iter().find(|one| one.kind == kind && one.status == status);
        let since = old.and_then(|one| one.last_transition_time).unwrap_or_else(clock::now);
        let mut one =
            json!({"type": kind, "status": status, "lastTransitionTime": clock::seconds(since)});
        if !reason.is_empty() {
            one["reason"] = reason.into();
        }
        if let Some(gate) = closed_gate.as_ref().filter(|_| reason == GATES_NOT_READY) {
            one["message"] = gate.as_str().into();
        }
        all.push(one);
    }
    all.into()
}

const GATES_NOT_READY: &str = "ReadinessGatesNotReady";

/// What is missing of the pod's readiness gates, in kubelet's words; `None` when all are open.
fn closed_gate(pod: &Pod) -> Option<String> {
    let missing = pod.spec.readiness_gates.iter().filter_map(|gate| {
        let kind = &gate.condition_type;
        match pod.status.conditions.iter().find(|one| one.kind == *kind) {
            None => Some(format!(
                "corresponding condition of pod readiness gate \"{kind}\" does not exist."
            )),
            Some(one) if one.status != "True" => Some(format!(
                "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                one.status
            )),
            Some(_) => None,
        }
    });
    let missing: Vec<String> = missing.collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

fn keep(one: &Condition) -> Value {
    let mut kept = json!({"type": one.kind, "status": one.status});
    if let Some(at) = one.last_transition_time {
        kept["lastTransitionTime"] = clock::seconds(at).into();
    }
    for (key, value) in [("reason", &one.reason), ("message", &one.message)] {
        if !value.is_empty() {
            kept[key] = value.as_str().into();
        }
    }
    kept
}
