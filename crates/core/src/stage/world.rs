//! Desired and actual state of the volumes of one node, and the actions that close the gap.

use std::collections::{BTreeMap, BTreeSet};

use super::verdict::Mounted;
use crate::model::Uid;
use crate::names::UniqueName;

/// A pod on this node wants a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A controller has to attach the volume to this node first.
    pub attachable: bool,
    /// UIDs of the pods that want it.
    pub pods: BTreeSet<Uid>,
    /// How many bytes it has; 0 when that does not matter here.
    pub size: i64,
    /// SELinux label to mount with; empty for none.
    pub label: String,
}

/// What is known of a pod's mount of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodMount {
    /// Whether the mount is there.
    pub state: Mounted,
    /// It was found on disk at start and has not been confirmed since.
    pub reconstructed: bool,
    /// The driver asked for repeated publishing.
    pub remount: bool,
}

/// What is known of a volume on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// A controller attached it (or may have), so it counts as in use until it is forgotten.
    pub attachable: bool,
    /// Whether it is staged.
    pub device: Mounted,
    /// It was found on disk at start and has not been confirmed since.
    pub reconstructed: bool,
    /// Mounts of pods, by UID.
    pub pods: BTreeMap<Uid, PodMount>,
    /// How many bytes its users see, as far as known; otherwise 0.
    pub size: i64,
    /// The driver said that it cannot grow as long as it is attached.
    pub no_expand: bool,
    /// Growing waits for news of the claim.
    pub hold_size: bool,
    /// The driver refused to grow it, for good and not just for now.
    pub refused_size: bool,
    /// SELinux label that it is mounted with; empty for none.
    pub context: String,
}

/// What the node object says; read from our own watch of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLists {
    /// `status.volumesAttached`.
    pub attached: BTreeSet<UniqueName>,
    /// `status.volumesInUse` as the API server last confirmed it.
    pub in_use: BTreeSet<UniqueName>,
}

/// A unit of work that must not overlap with itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub volume: UniqueName,
    /// Pod UID for the work on one pod's mount; `None` for work on the whole volume.
    pub pod: Option<Uid>,
}

impl Slot {
    /// Work on the whole volume.
    pub fn volume(volume: impl Into<UniqueName>) -> Self {
        Self { volume: volume.into(), pod: None }
    }

    /// Work on one pod's mount.
    pub fn pod(volume: impl Into<UniqueName>, pod: impl Into<Uid>) -> Self {
        Self { volume: volume.into(), pod: Some(pod.into()) }
    }
}

/// All that the decision may depend on.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// By unique volume name.
    pub desired: BTreeMap<UniqueName, Wanted>,
    /// By unique volume name.
    pub actual: BTreeMap<UniqueName, Known>,
    /// The node object.
    pub node: NodeLists,
    /// The first pass over all pods is done and reconstruction has finished: only now is
    /// "not wanted" known to be true.
    pub ready_to_unmount: bool,
    /// Pods that may still run although what they want is not (or not yet) known: their mounts
    /// are left alone.
    pub unresolved: BTreeSet<Uid>,
    /// Work in flight.
    pub busy: BTreeSet<Slot>,
    /// Actions that failed and wait for their back-off. Another action on the same volume does not
    /// wait for them.
    pub backing_off: BTreeSet<Action>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Take the mount away from a pod.
    Unpublish { volume: UniqueName, pod: Uid },
    /// Stage if needed, then publish to the pod.
    Mount { volume: UniqueName, pod: Uid },
    /// Let a pod see the volume's new size.
    Expand { volume: UniqueName, pod: Uid },
    /// Undo the staging.
    Unstage { volume: UniqueName },
    /// Nothing is left on this node: stop counting the volume as in use.
    Forget { volume: UniqueName },
}

impl Action {
    /// The volume that it is about.
    #[must_use]
    pub fn volume(&self) -> &UniqueName {
        match self {
            Self::Unpublish { volume, .. }
            | Self::Mount { volume, .. }
            | Self::Expand { volume, .. }
            | Self::Unstage { volume }
            | Self::Forget { volume } => volume,
        }
    }

    /// The UID of the pod that it is about, if it is about one.
    #[must_use]
    pub fn pod(&self) -> Option<&Uid> {
        match self {
            Self::Unpublish { pod, .. } | Self::Mount { pod, .. } | Self::Expand { pod, .. } => {
                Some(pod)
            }
            Self::Unstage { .. } | Self::Forget { .. } => None,
        }
    }

    /// Its word in log lines.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unpublish { .. } => "unpublish",
            Self::Mount { .. } => "mount",
            Self::Expand { .. } => "expand",
            Self::Unstage { .. } => "unstage",
            Self::Forget { .. } => "forget",
        }
    }

    /// What the step occupies.
    #[must_use]
    pub fn slot(&self) -> Slot {
        match self {
            Self::Unpublish { volume, pod } => Slot::pod(volume, pod),
            Self::Mount { volume, .. }
            | Self::Expand { volume, .. }
            | Self::Unstage { volume }
            | Self::Forget { volume } => Slot::volume(volume),
        }
    }

    /// Whether its success ends the back-off of a `failed` action: of itself, and of those that it
    /// may have been in the way of. A volume that one pod gave up can be mounted for the next, and
    /// unstaged.
    #[must_use]
    pub fn ends_backoff_of(&self, failed: &Self) -> bool {
        if self.volume() != failed.volume() {
            return false;
        }
        match (self, failed) {
            (Self::Unpublish { .. }, Self::Mount { .. } | Self::Unstage { .. })
            | (Self::Unstage { .. }, Self::Mount { .. })
            | (Self::Forget { .. }, _) => true,
            (one, failed) => one == failed,
        }
    }
}

/// Why a wanted mount does not happen now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// `volumesInUse` does not list it yet: the controller could detach under our feet.
    NotReportedInUse,
    /// The controller has not attached it yet.
    NotAttached,
}

/// Whether a volume may be mounted now, as far as attaching goes.
///
/// # Errors
/// What it waits for.
pub fn attach_gate(world: &World, volume: &UniqueName) -> Result<(), Waiting> {
    let attachable = world.desired.get(volume).is_some_and(|wanted| wanted.attachable);
    if !attachable {
        return Ok(());
    }
    if !world.node.in_use.contains(volume) {
        return Err(Waiting::NotReportedInUse);
    }
    if !world.node.attached.contains(volume) {
        return Err(Waiting::NotAttached);
    }
    Ok(())
}

/// Returns the steps to start now: unmounts first, then mounts, then unstaging.
///
/// No two steps of one answer collide, and none collides with work in flight.
#[must_use]
pub fn decide(world: &World) -> Vec<Action> {
    let mut plan = Plan { world, taken: world.busy.clone(), actions: Vec::new() };
    if world.ready_to_unmount {
        plan.unpublish_unwanted();
    }
    plan.mount_wanted();
    if world.ready_to_unmount {
        plan.release_unused();
    }
    plan.actions
}

struct Plan<'a> {
    world: &'a World,
    taken: BTreeSet<Slot>,
    actions: Vec<Action>,
}

impl Plan<'_> {
    fn unpublish_unwanted(&mut self) {
        for (volume, known) in &self.world.actual {
            for pod in known.pods.keys() {
                if !self.world.wants(volume, pod) && !self.world.unresolved.contains(pod) {
                    self.take(Action::Unpublish { volume: volume.clone(), pod: pod.clone() });
                }
            }
        }
    }

    fn mount_wanted(&mut self) {
        for (volume, wanted) in &self.world.desired {
            let mismatch = self.world.context_differs(volume);
            if attach_gate(self.world, volume).is_err() || mismatch {
                continue;
            }
            for pod in &wanted.pods {
                if self.world.needs_mount(volume, pod) {
                    self.take(Action::Mount { volume: volume.clone(), pod: pod.clone() });
                }
            }
            if let Some(pod) = self.world.pod_to_expand(volume) {
                self.take(Action::Expand { volume: volume.clone(), pod: pod.to_owned() });
            }
        }
    }

    fn release_unused(&mut self) {
        for (volume, known) in &self.world.actual {
            let wanted = self.world.desired.contains_key(volume);
            if !known.pods.is_empty() || (wanted && !self.world.context_differs(volume)) {
                continue;
            }
            match known.device {
                Mounted::Yes | Mounted::Unknown => {
                    self.take(Action::Unstage { volume: volume.clone() })
                }
                Mounted::No => self.take(Action::Forget { volume: volume.clone() }),
            }
        }
    }

    fn take(&mut self, action: Action) {
        if self.world.backing_off.contains(&action) {
            return;
        }
        let slot = action.slot();
        let collides = self.taken.iter().any(|other| {
            other.volume == slot.volume
                && (other.pod.is_none() || slot.pod.is_none() || other.pod == slot.pod)
        });
        if !collides {
            self.taken.insert(slot);
            self.actions.push(action);
        }
    }
}

impl World {
    /// Whether a pod wants a volume.
    #[must_use]
    pub fn wants(&self, volume: &UniqueName, pod: &Uid) -> bool {
        self.desired.get(volume).is_some_and(|wanted| wanted.pods.contains(pod))
    }

    /// Whether a wanted mount is missing, uncertain or due again.
    #[must_use]
    pub fn needs_mount(&self, volume: &UniqueName, pod: &Uid) -> bool {
        let mount = self.actual.get(volume).and_then(|known| known.pods.get(pod));
        mount.is_none_or(|mount| mount.state != Mounted::Yes || mount.remount)
    }

    /// Whether the volume is there with another SELinux label than is wanted: then it must go first.
    #[must_use]
    pub fn context_differs(&self, volume: &UniqueName) -> bool {
        let (wanted, known) = (self.desired.get(volume), self.actual.get(volume));
        wanted.zip(known).is_some_and(|(wanted, known)| {
            wanted.label != known.context && known.device != Mounted::No
        })
    }

    /// A pod through which the volume can be grown, if it has to be.
    #[must_use]
    pub fn pod_to_expand(&self, volume: &UniqueName) -> Option<&Uid> {
        let (wanted, known) = (self.desired.get(volume)?, self.actual.get(volume)?);
        let due = known.size > 0 && wanted.size > known.size;
        if !due || known.no_expand || known.hold_size {
            return None;
        }
        let mounted = |pod: &&Uid| {
            let mount = known.pods.get(*pod);
            mount.is_some_and(|mount| mount.state == Mounted::Yes && !mount.remount)
        };
        wanted.pods.iter().find(mounted)
    }

    /// Whether another pod has, or may have, the volume: a single-pod volume is then refused.
    #[must_use]
    pub fn used_by_other_pod(&self, volume: &UniqueName, pod: &Uid) -> bool {
        self.actual.get(volume).is_some_and(|known| {
            known.pods.iter().any(|(uid, mount)| uid != pod && mount.state != Mounted::No)
        })
    }

    /// Whether anything of a pod is, or may be, mounted.
    #[must_use]
    pub fn has_mounts_of(&self, pod: &Uid) -> bool {
        self.actual.values().any(|known| known.pods.contains_key(pod))
    }

    /// The list for `status.volumesInUse`: sorted, without repeats. `None` before reconstruction
    /// has finished, when an empty list would be a lie.
    ///
    /// With `staged` it has, besides what a controller attaches, what is staged without that: whoever
    /// deletes a volume can see that a node is not done with it.
    #[must_use]
    pub fn volumes_in_use(&self, staged: bool) -> Option<Vec<UniqueName>> {
        if !self.ready_to_unmount {
            return None;
        }
        let wanted =
            self.desired.iter().filter(|(_, wanted)| wanted.attachable).map(|(name, _)| name);
        let counts = |name: &UniqueName, known: &Known| {
            known.attachable || (staged && known.device != Mounted::No && name.is_csi())
        };
        let known = self.actual.iter().filter(|(name, known)| counts(name, known));
        let known = known.map(|(name, _)| name);
        Some(wanted.chain(known).cloned().collect::<BTreeSet<_>>().into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
