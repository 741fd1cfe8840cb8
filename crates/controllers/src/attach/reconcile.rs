//! Closing the gap between wish and reality, one volume at a time.

use std::{sync::Arc, time::Duration};

use longshore_core::{
    attach::{
        Attach, AttachState, AttachView, Detach, DetachView, Holder, Holding, OnNode, Operation,
        Refused, SlotKey, Ticket, Waited, Wanted, busy_message, decide_attach, decide_detach,
        notice,
    },
    model::{
        ObjectKey,
        keys::taints,
        kinds::{Node, VolumeAttachment},
    },
    names::{UniqueName, attachment_name},
};
use parking_lot::MutexGuard;
use tokio::task::JoinSet;

use super::{Controller, turn::Turn, world::Inner};
use crate::planted::Planted;

impl Controller {
    /// Puts what has to be done about one volume into the lanes. Whether it still has to be done is
    /// decided again before it starts.
    pub(super) fn decide(&self, volume: &UniqueName) {
        let nodes = self.world.lock().desired.nodes_wanting(volume);
        self.line_up_detaches(volume, &nodes);
        for node in nodes {
            self.line_up_attach(volume, &node);
        }
    }

    /// Starts what the lanes have places for.
    pub(super) fn start_next(self: &Arc<Self>, operations: &mut JoinSet<()>) {
        for operation in [Operation::Attach, Operation::Detach] {
            loop {
                let now = self.world.now();
                let Some(ticket) = self.world.lock().lane(operation).take(now) else { break };
                self.start(operation, ticket, operations);
            }
        }
    }

    fn start(self: &Arc<Self>, operation: Operation, ticket: Ticket, operations: &mut JoinSet<()>) {
        let (volume, node) = (ticket.volume.clone(), ticket.node.clone());
        let turn = Turn::new(&self.world, operation, ticket);
        match operation {
            Operation::Attach => self.start_attach(turn, &volume, &node, operations),
            Operation::Detach => self.start_detach(turn, &volume, &node, operations),
        }
    }

    fn line_up_detaches(&self, volume: &UniqueName, wanting: &[String]) {
        let mut world = self.world.lock();
        for entry in world.actual.of_volume(volume) {
            let node = entry.node.as_str();
            match self.may_detach(&mut world, &entry) {
                Some(_) => {
                    // Another node's pod waits for nothing but this.
                    let urgent = !shareable(&entry) && wanting.iter().any(|other| other != node);
                    let now = self.world.now();
                    world.lane(Operation::Detach).enter(volume, node, now, urgent);
                }
                None => {
                    world.lane(Operation::Detach).leave(volume, node);
                    keep_reported(&mut world, &entry);
                }
            }
        }
    }

    /// The detach to start, if one may start now. Otherwise a timer is set where time alone
    /// changes the answer.
    fn may_detach(&self, world: &mut Inner, entry: &OnNode) -> Option<Detach> {
        let (volume, node, now) = (&entry.volume, entry.node.as_str(), self.world.now());
        if world.desired.get(volume, node).is_some() {
            return None;
        }
        let key = SlotKey::new(volume, node, shareable(entry));
        match world.slots.check(&key, Operation::Detach, now) {
            Ok(()) => {}
            Err(Refused::Pending) => return None,
            Err(Refused::Paused { until }) => {
                world.wake_at(until, volume);
                return None;
            }
        }
        let elapsed = world.actual.request_detach(volume, node, now)?;
        match decide_detach(&self.detach_view(node, elapsed, entry.mounted)) {
            Detach::Wait(None) => None,
            Detach::Wait(Some(left)) => {
                world.wake_at(now + left, volume);
                None
            }
            start @ Detach::Start { .. } => Some(start),
        }
    }

    fn start_detach(
        self: &Arc<Self>,
        turn: Turn,
        volume: &UniqueName,
        node: &str,
        operations: &mut JoinSet<()>,
    ) {
        let mut world = self.world.lock();
        let entry = world.actual.of_volume(volume).into_iter().find(|entry| entry.node == node);
        let decided = entry.and_then(|entry| Some((self.may_detach(&mut world, &entry)?, entry)));
        let Some((Detach::Start { verify_safe, forced }, entry)) = decided else {
            return no_longer(turn, world, volume);
        };
        let key = SlotKey::new(volume, node, shareable(&entry));
        if world.slots.start(&key, Operation::Detach, self.world.now()).is_err() {
            drop(world);
            return drop(turn);
        }
        leave_report(&mut world, volume, node);
        drop(world);
        if let Some(forced) = forced {
            tracing::warn!(%volume, node, reason = forced.reason(), "forced detach");
            self.counted.forced(forced);
        }
        operations.spawn(self.clone().detach(turn, key, entry, verify_safe));
    }

    fn detach_view(&self, node: &str, elapsed: Duration, mounted: bool) -> DetachView {
        let node = self.caches.nodes.get(&ObjectKey::cluster(node));
        DetachView {
            elapsed,
            max_wait: self.config.max_wait_for_unmount,
            force_disabled: self.config.disable_force_detach_on_timeout,
            healthy: node.as_ref().is_some_and(|node| node.ready()),
            out_of_service: node.as_ref().is_some_and(|node| out_of_service(node)),
            mounted: mounted && !self.config.has(Planted::EarlyDetach),
        }
    }

    fn line_up_attach(&self, volume: &UniqueName, node: &str) {
        let now = self.world.now();
        let mut world = self.world.lock();
        let Some(wanted) = world.desired.get(volume, node).cloned() else { return };
        let waited = self.watch_wait(&mut world, volume, node, &wanted);
        let told = waited.filter(|waited| waited.tell);
        let holders = told.map(|_| self.holders(&mut world, volume, node));
        let decided = self.may_attach(&mut world, volume, node, &wanted);
        let lane = world.lane(Operation::Attach);
        match decided {
            Some(Attach::Start) => lane.enter(volume, node, now, false),
            _ => {
                lane.leave(volume, node);
            }
        }
        let busy = matches!(decided, Some(Attach::Busy { report: true })).then(|| {
            let nodes = nodes_before(&world, volume, node);
            world.desired.set_busy_reported(volume, node);
            world.desired.pods_on(volume, &nodes)
        });
        drop(world);
        for pod in wanted.pods.values() {
            if let Some(others) = &busy {
                self.warn_pod(pod, busy_message(&wanted.spec.name, pod, others));
            }
            if let (Some(told), Some(holders)) = (told, &holders) {
                self.warn_pod(pod, notice(&wanted.spec.name, pod, told.elapsed, holders));
            }
        }
    }

    /// What to do about a wish now; `None` while something else works on the volume or a pause
    /// lasts.
    fn may_attach(
        &self,
        world: &mut Inner,
        volume: &UniqueName,
        node: &str,
        wanted: &Wanted,
    ) -> Option<Attach> {
        let shareable = wanted.spec.shareable;
        let key = SlotKey::new(volume, node, shareable);
        if world.slots.is_pending(&key) {
            return None;
        }
        // A node that may have the volume lets go of it before the next one gets it.
        if !shareable && world.lane(Operation::Detach).waits(volume) {
            return None;
        }
        let view = AttachView {
            state: world.actual.state(volume, node),
            shareable,
            held_elsewhere: held_elsewhere(world, volume, node)
                && !self.config.has(Planted::DoubleAttach),
            busy_reported: wanted.busy_reported,
        };
        let decided = decide_attach(&view);
        match decided {
            Attach::Done => world.actual.reset_detach_request(volume, node),
            Attach::Busy { .. } => {}
            Attach::Start => {
                let now = self.world.now();
                if let Err(refused) = world.slots.check(&key, Operation::Attach, now) {
                    if let Refused::Paused { until } = refused {
                        world.wake_at(until, volume);
                    }
                    return None;
                }
            }
        }
        Some(decided)
    }

    fn start_attach(
        self: &Arc<Self>,
        turn: Turn,
        volume: &UniqueName,
        node: &str,
        operations: &mut JoinSet<()>,
    ) {
        let mut world = self.world.lock();
        let wanted = world.desired.get(volume, node).cloned();
        let decided =
            wanted.as_ref().and_then(|wanted| self.may_attach(&mut world, volume, node, wanted));
        let (Some(Attach::Start), Some(wanted)) = (decided, wanted) else {
            return no_longer(turn, world, volume);
        };
        let key = SlotKey::new(volume, node, wanted.spec.shareable);
        let started = world.slots.start(&key, Operation::Attach, self.world.now());
        drop(world);
        match started {
            Ok(()) => {
                let node = node.to_owned();
                operations.spawn(self.clone().attach(turn, key, node, wanted.spec));
            }
            Err(_) => drop(turn),
        }
    }

    /// Keeps an eye on how long another node has been in the way.
    fn watch_wait(
        &self,
        world: &mut Inner,
        volume: &UniqueName,
        node: &str,
        wanted: &Wanted,
    ) -> Option<Waited> {
        let first = self.config.holder_notice?;
        if wanted.spec.shareable || !held_elsewhere(world, volume, node) {
            world.desired.end_wait(volume, node);
            return None;
        }
        let waited = world.desired.wait(volume, node, self.world.now(), first)?;
        world.wake_at(waited.again, volume);
        Some(waited)
    }

    /// The other nodes that hold the volume, and why they do.
    fn holders(&self, world: &mut Inner, volume: &UniqueName, node: &str) -> Vec<Holder> {
        let mut holders = Vec::new();
        for other in nodes_before(world, volume, node) {
            let pods = world.desired.pods_on(volume, std::slice::from_ref(&other));
            let holding =
                if pods.is_empty() { self.holding(world, volume, &other) } else { Holding::Used };
            holders.push(Holder { node: other, pods, holding });
        }
        holders
    }

    fn holding(&self, world: &mut Inner, volume: &UniqueName, node: &str) -> Holding {
        if let Some(why) = self.detach_error(volume, node) {
            return Holding::Failing(why);
        }
        let view = self.detach_view(node, Duration::ZERO, true);
        let key = SlotKey::new(volume, node, true);
        let started = world.slots.is_pending(&key) || world.lane(Operation::Detach).waits(volume);
        match (started || !world.actual.mounted(volume, node), view.healthy) {
            (true, _) => Holding::Detaching,
            (false, true) => Holding::Mounted,
            (false, false) => Holding::Unreachable,
        }
    }

    /// What the driver's attacher says against the detach.
    fn detach_error(&self, volume: &UniqueName, node: &str) -> Option<String> {
        let (driver, handle) = volume.driver_and_handle().ok()?;
        let key = ObjectKey::cluster(attachment_name(handle, driver, node));
        let attachment = self.caches.attachments.get(&key)?;
        let VolumeAttachment { status, .. } = attachment.as_ref();
        status.detach_error.as_ref().map(|error| error.message.clone())
    }
}

/// What was lined up is not to be done any more; the volume gets another look.
fn no_longer(turn: Turn, mut world: MutexGuard<'_, Inner>, volume: &UniqueName) {
    world.mark(volume);
    // The turn ends with a change of the world, so the lock must be free.
    drop(world);
    drop(turn);
}

/// Takes the volume off its node's report, and with it all that wait to leave the same node: one
/// write of the report serves them all.
fn leave_report(world: &mut Inner, volume: &UniqueName, node: &str) {
    let waiting = world.lane(Operation::Detach).waiting_on(node);
    for leaving in waiting.iter().chain([volume]) {
        world.actual.remove_from_report(leaving, node);
    }
}

/// A volume that stays after all may have left the report together with others of its node.
fn keep_reported(world: &mut Inner, entry: &OnNode) {
    let key = SlotKey::new(&entry.volume, &entry.node, shareable(entry));
    if entry.confirmed && !world.slots.is_pending(&key) {
        world.actual.add_to_report(&entry.volume, &entry.node);
    }
}

/// A volume that is known only by name is taken for one that may be on several nodes.
fn shareable(entry: &OnNode) -> bool {
    entry.spec.as_ref().is_none_or(|spec| spec.shareable)
}

fn held_elsewhere(world: &Inner, volume: &UniqueName, node: &str) -> bool {
    !nodes_before(world, volume, node).is_empty()
}

/// The other nodes that come before this one: those that hold the volume and, unless something was
/// begun here too, those where it is wanted and an attach gave no clear result. There its attacher
/// tries on, so a second node could get it at the same time.
fn nodes_before(world: &Inner, volume: &UniqueName, node: &str) -> Vec<String> {
    let mut nodes = world.actual.holders(volume);
    if world.actual.state(volume, node) == AttachState::Detached {
        let begun = world.actual.of_volume(volume).into_iter().map(|entry| entry.node);
        nodes.extend(begun.filter(|other| world.desired.get(volume, other).is_some()));
    }
    nodes.retain(|other| other != node);
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Whether an operator has declared the node off.
pub(super) fn out_of_service(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == taints::OUT_OF_SERVICE)
}
