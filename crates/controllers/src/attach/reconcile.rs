//! Closes the gap between desired and actual state, one volume at a time.

use std::{sync::Arc, time::Duration};

use longshore_core::{
    attach::{
        Attach, AttachState, AttachView, Detach, DetachView, Holder, Holding, OnNode, Operation,
        OperationKey, Permit, Refused, Waited, Wanted, busy_message, decide_attach, decide_detach,
        is_final_attach_error, notice,
    },
    model::{
        NodeName, ObjectKey,
        keys::taints,
        kinds::{Node, VolumeAttachment},
    },
    names::{UniqueName, attachment_name},
};
use parking_lot::MutexGuard;
use tokio::task::JoinSet;

use super::{Controller, permit::PermitGuard, state::Inner};
use crate::planted::Planted;

impl Controller {
    /// Puts what has to be done about one volume into the queues. Whether it still has to be done is
    /// decided again before it starts.
    pub(super) fn decide(&self, volume: &UniqueName) {
        let nodes = self.state.lock().desired.nodes_wanting(volume);
        self.enqueue_detaches(volume, &nodes);
        for node in nodes {
            self.enqueue_attach(volume, &node);
        }
    }

    /// Starts what the queues have permits for.
    pub(super) fn start_next(self: &Arc<Self>, operations: &mut JoinSet<()>) {
        for operation in [Operation::Attach, Operation::Detach] {
            loop {
                let now = self.state.now();
                let Some(permit) = self.state.lock().queue_of(operation).take(now) else { break };
                self.start(operation, permit, operations);
            }
        }
    }

    fn start(self: &Arc<Self>, operation: Operation, permit: Permit, operations: &mut JoinSet<()>) {
        let (volume, node) = (permit.volume.clone(), permit.node.clone());
        let permit = PermitGuard::new(&self.state, operation, permit);
        match operation {
            Operation::Attach => self.start_attach(permit, &volume, &node, operations),
            Operation::Detach => self.start_detach(permit, &volume, &node, operations),
        }
    }

    fn enqueue_detaches(&self, volume: &UniqueName, wanting: &[NodeName]) {
        let mut state = self.state.lock();
        for entry in state.actual.of_volume(volume) {
            let node = &entry.node;
            match self.may_detach(&mut state, &entry) {
                Some(_) => {
                    // Another node's pod waits for nothing but this.
                    let urgent = !shareable(&entry) && wanting.iter().any(|other| other != node);
                    let now = self.state.now();
                    state.queue_of(Operation::Detach).enter(volume, node, now, urgent);
                }
                None => {
                    state.queue_of(Operation::Detach).leave(volume, node);
                    keep_reported(&mut state, &entry);
                }
            }
        }
    }

    /// The detach to start, if one may start now. Otherwise a timer is set where time alone
    /// changes the answer.
    fn may_detach(&self, state: &mut Inner, entry: &OnNode) -> Option<Detach> {
        let (volume, node, now) = (&entry.volume, &entry.node, self.state.now());
        if state.desired.get(volume, node).is_some() {
            return None;
        }
        match state.pending.check(&key_of(entry), Operation::Detach, now) {
            Ok(()) => {}
            Err(Refused::Pending) => return None,
            Err(Refused::Paused { until }) => {
                state.wake_at(until, volume);
                return None;
            }
        }
        let elapsed = state.actual.request_detach(volume, node, now)?;
        match decide_detach(&self.detach_view(node, elapsed, entry.mounted)) {
            Detach::Wait(None) => None,
            Detach::Wait(Some(left)) => {
                state.wake_at(now + left, volume);
                None
            }
            start @ Detach::Start { .. } => Some(start),
        }
    }

    fn start_detach(
        self: &Arc<Self>,
        permit: PermitGuard,
        volume: &UniqueName,
        node: &NodeName,
        operations: &mut JoinSet<()>,
    ) {
        let mut state = self.state.lock();
        let entry = state.actual.of_volume(volume).into_iter().find(|entry| entry.node == *node);
        let decided = entry.and_then(|entry| Some((self.may_detach(&mut state, &entry)?, entry)));
        let Some((Detach::Start { verify_safe, forced }, entry)) = decided else {
            return no_longer(permit, state, volume);
        };
        let key = key_of(&entry);
        if state.pending.start(&key, Operation::Detach, self.state.now()).is_err() {
            drop(state);
            return drop(permit);
        }
        leave_report(&mut state, volume, node);
        drop(state);
        if let Some(forced) = forced {
            tracing::warn!(%volume, node = node.as_str(), reason = forced.reason(), "forced detach");
            self.counted.forced(forced);
        }
        operations.spawn(self.clone().detach(permit, key, entry, verify_safe));
    }

    fn detach_view(&self, node: &NodeName, elapsed: Duration, mounted: bool) -> DetachView {
        let node = self.nodes.get(&ObjectKey::cluster(node));
        DetachView {
            elapsed,
            max_wait: self.config.max_wait_for_unmount,
            force_disabled: self.config.disable_force_detach_on_timeout,
            healthy: node.as_ref().is_some_and(|node| node.ready()),
            out_of_service: node.as_ref().is_some_and(|node| out_of_service(node)),
            mounted: mounted && !self.config.has(Planted::EarlyDetach),
        }
    }

    fn enqueue_attach(&self, volume: &UniqueName, node: &NodeName) {
        let now = self.state.now();
        let mut state = self.state.lock();
        let Some(wanted) = state.desired.get(volume, node).cloned() else { return };
        let waited = self.watch_wait(&mut state, volume, node, &wanted);
        let told = waited.filter(|waited| waited.tell);
        let holders = told.map(|_| self.holders(&mut state, volume, node));
        let decided = self.may_attach(&mut state, volume, node, &wanted);
        let queue = state.queue_of(Operation::Attach);
        match decided {
            Some(Attach::Start) => queue.enter(volume, node, now, false),
            _ => {
                queue.leave(volume, node);
            }
        }
        let mut holding = state.actual.holders(volume);
        holding.retain(|other| other != node);
        // Where an attach only may have succeeded, nothing has to be detached.
        let report = matches!(decided, Some(Attach::Busy { report: true })) && !holding.is_empty();
        let busy = report.then(|| {
            state.desired.set_busy_reported(volume, node);
            state.desired.pods_on(volume, &holding)
        });
        drop(state);
        for pod in wanted.pods.values() {
            if let Some(others) = &busy {
                self.warn_pod(pod, busy_message(&wanted.spec.name, pod, others));
            }
            if let (Some(told), Some(holders)) = (told, &holders) {
                self.warn_pod(pod, notice(&wanted.spec.name, pod, told.elapsed, holders));
            }
        }
    }

    /// What to do about a desired volume now; `None` while something else works on the volume or a pause
    /// lasts.
    fn may_attach(
        &self,
        state: &mut Inner,
        volume: &UniqueName,
        node: &NodeName,
        wanted: &Wanted,
    ) -> Option<Attach> {
        let shareable = wanted.spec.shareable;
        let key = OperationKey::new(volume, node, shareable);
        if state.pending.is_pending(&key) {
            return None;
        }
        // A node that may have the volume lets go of it before the next one gets it.
        if !shareable && state.queue_of(Operation::Detach).waits(volume) {
            return None;
        }
        let view = AttachView {
            state: state.actual.state(volume, node),
            shareable,
            held_elsewhere: self.held_elsewhere(state, volume, node)
                && !self.config.has(Planted::DoubleAttach),
            busy_reported: wanted.busy_reported,
        };
        let decided = decide_attach(&view);
        match decided {
            Attach::Done => state.actual.reset_detach_request(volume, node),
            Attach::Busy { .. } => {}
            Attach::Start => {
                let now = self.state.now();
                if let Err(refused) = state.pending.check(&key, Operation::Attach, now) {
                    if let Refused::Paused { until } = refused {
                        state.wake_at(until, volume);
                    }
                    return None;
                }
            }
        }
        Some(decided)
    }

    fn start_attach(
        self: &Arc<Self>,
        permit: PermitGuard,
        volume: &UniqueName,
        node: &NodeName,
        operations: &mut JoinSet<()>,
    ) {
        let mut state = self.state.lock();
        let wanted = state.desired.get(volume, node).cloned();
        let decided =
            wanted.as_ref().and_then(|wanted| self.may_attach(&mut state, volume, node, wanted));
        let (Some(Attach::Start), Some(wanted)) = (decided, wanted) else {
            return no_longer(permit, state, volume);
        };
        let key = OperationKey::new(volume, node, wanted.spec.shareable);
        let started = state.pending.start(&key, Operation::Attach, self.state.now());
        drop(state);
        match started {
            Ok(()) => {
                let node = node.clone();
                operations.spawn(self.clone().attach(permit, key, node, wanted.spec));
            }
            Err(_) => drop(permit),
        }
    }

    /// Keeps an eye on how long another node has been in the way.
    fn watch_wait(
        &self,
        state: &mut Inner,
        volume: &UniqueName,
        node: &NodeName,
        wanted: &Wanted,
    ) -> Option<Waited> {
        let first = self.config.holder_notice?;
        if wanted.spec.shareable || !self.held_elsewhere(state, volume, node) {
            state.desired.end_wait(volume, node);
            return None;
        }
        let waited = state.desired.wait(volume, node, self.state.now(), first)?;
        state.wake_at(waited.again, volume);
        Some(waited)
    }

    /// The other nodes that hold the volume, and why they do.
    fn holders(&self, state: &mut Inner, volume: &UniqueName, node: &NodeName) -> Vec<Holder> {
        let mut holders = Vec::new();
        let certain = state.actual.holders(volume);
        for other in self.nodes_before(state, volume, node) {
            let pods = state.desired.pods_on(volume, std::slice::from_ref(&other));
            let holding = match (certain.contains(&other), pods.is_empty()) {
                (false, _) => Holding::Unclear,
                (true, true) => self.holding(state, volume, &other),
                (true, false) => Holding::Used,
            };
            holders.push(Holder { node: other, pods, holding });
        }
        holders
    }

    fn holding(&self, state: &mut Inner, volume: &UniqueName, node: &NodeName) -> Holding {
        if let Some(why) = self.detach_error(volume, node) {
            return Holding::Failing(why);
        }
        let view = self.detach_view(node, Duration::ZERO, true);
        let key = OperationKey::new(volume, node, true);
        let started =
            state.pending.is_pending(&key) || state.queue_of(Operation::Detach).waits(volume);
        match (started || !state.actual.mounted(volume, node), view.healthy) {
            (true, _) => Holding::Detaching,
            (false, true) => Holding::Mounted,
            (false, false) => Holding::Unreachable,
        }
    }

    /// What the driver's attacher says against the detach.
    fn detach_error(&self, volume: &UniqueName, node: &NodeName) -> Option<String> {
        let attachment = self.attachment(volume, node)?;
        attachment.status.detach_error.as_ref().map(|error| error.message.clone())
    }

    fn attachment(&self, volume: &UniqueName, node: &NodeName) -> Option<Arc<VolumeAttachment>> {
        let (driver, handle) = volume.driver_and_handle().ok()?;
        self.attachments.get(&ObjectKey::cluster(attachment_name(&handle, &driver, node)))
    }

    fn held_elsewhere(&self, state: &Inner, volume: &UniqueName, node: &NodeName) -> bool {
        !self.nodes_before(state, volume, node).is_empty()
    }

    /// The other nodes that come before this one: those that hold the volume and, where verdicts are
    /// awaited and unless something was begun here too, those where it is wanted and an attach gave no
    /// clear result. There its attacher tries on, so a second node could get it at the same time.
    fn nodes_before(&self, state: &Inner, volume: &UniqueName, node: &NodeName) -> Vec<NodeName> {
        let mut nodes = state.actual.holders(volume);
        let nothing_here = state.actual.state(volume, node) == AttachState::Detached;
        if self.config.await_verdict && nothing_here {
            let begun = state.actual.of_volume(volume).into_iter().map(|entry| entry.node);
            nodes.extend(begun.filter(|other| {
                state.desired.get(volume, other).is_some() && !self.is_refused(volume, other)
            }));
        }
        nodes.retain(|other| other != node);
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Whether the driver has said for certain that the volume is not on the node.
    fn is_refused(&self, volume: &UniqueName, node: &NodeName) -> bool {
        self.attachment(volume, node).is_some_and(|attachment| refused(&attachment))
    }
}

/// What was lined up is not to be done any more; the volume gets another look.
fn no_longer(permit: PermitGuard, mut state: MutexGuard<'_, Inner>, volume: &UniqueName) {
    state.mark(volume);
    // The permit ends with a change of the state, so the lock must be free.
    drop(state);
    drop(permit);
}

/// Takes the volume off its node's report, and with it all that wait to leave the same node: one
/// write of the report serves them all.
fn leave_report(state: &mut Inner, volume: &UniqueName, node: &NodeName) {
    let waiting = state.queue_of(Operation::Detach).waiting_on(node);
    for leaving in waiting.iter().chain([volume]) {
        state.actual.remove_from_report(leaving, node);
    }
}

/// A volume that stays after all may have left the report together with others of its node.
fn keep_reported(state: &mut Inner, entry: &OnNode) {
    if entry.confirmed && !state.pending.is_pending(&key_of(entry)) {
        state.actual.add_to_report(&entry.volume, &entry.node);
    }
}

pub(super) fn key_of(entry: &OnNode) -> OperationKey {
    OperationKey::new(&entry.volume, &entry.node, shareable(entry))
}

/// A volume that is known only by name is taken for one that may be on several nodes.
fn shareable(entry: &OnNode) -> bool {
    entry.spec.as_ref().is_none_or(|spec| spec.shareable)
}

/// Whether the driver has refused an attachment for certain.
pub(super) fn refused(attachment: &VolumeAttachment) -> bool {
    let VolumeAttachment { status, .. } = attachment;
    let code = status.attach_error.as_ref().and_then(|error| error.error_code);
    !status.attached && code.is_some_and(is_final_attach_error)
}

/// Whether an operator has declared the node off.
pub(super) fn out_of_service(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == taints::OUT_OF_SERVICE)
}
