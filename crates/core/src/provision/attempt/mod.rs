//! The state of one claim's provisioning, from the first plan to the saved volume.
//!
//! [`Attempt::after`] is the whole table (`table.rs`). A state says what may exist in the backend and what is owed
//! for it ([`Attempt::owes`]). Two rules keep storage from leaking, and a test walks all that can
//! happen to show that the table obeys them:
//!
//! * Whenever a volume may exist, the state owes a repeat, a save or a delete.
//! * A new plan is made only when no volume of an earlier plan may exist.
//!
//! With the leak guard on, the plan is in an intent record from before the first call until the
//! attempt is settled. The record is the attempt in the form that survives a crash ([`to_record`],
//! [`from_record`]): what it says is uncertain, because nobody knows whether the call was sent.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{plan::Plan, topology::Term};
use crate::model::{
    NodeName, Uid,
    kinds::{Claim, StorageClass},
};

mod record;
mod table;
#[cfg(test)]
mod tests;

pub use record::{ForeignRecord, RecordError, check_cluster, from_record, to_record};

/// What was seen of a claim's surroundings before its volume was planned. It is kept over failed
/// plans, so that a node that goes away in between does not change the request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// Topology as it was seen for the claim.
    pub observed: Option<Observed>,
    /// How often this node's provisioner has tried to become the claim's owner.
    pub contests: u32,
}

/// What a topology requirement was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The selected node; for another one all of this is void.
    pub node: Option<NodeName>,
    /// The driver's topology keys.
    pub keys: Option<Vec<String>>,
    /// The labels of the selected node.
    pub labels: Option<BTreeMap<String, String>>,
    /// The topology of every node.
    pub terms: Option<Vec<Term>>,
}

/// The claim and class of a call without a verdict: either may be deleted before it has one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asker {
    /// The claim as it was last seen.
    pub claim: Arc<Claim>,
    pub class: Arc<StorageClass>,
}

/// What the backend was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Whatever the provisioner makes of the claim's request. It keeps no record, so its word counts.
    Request,
    /// CreateVolume, as planned.
    CreateVolume(Arc<Plan>),
}

/// How long an infeasible claim is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    /// UID of the class: one made anew ends the rest, as it may say something else.
    pub class_uid: Uid,
    /// When the claim turned out to be infeasible.
    pub since: Instant,
}

impl Rest {
    /// What is left of the rest, if anything.
    #[must_use]
    pub fn left(&self, class_uid: &Uid, pause: Duration, now: Instant) -> Option<Duration> {
        let left = pause.saturating_sub(now.saturating_duration_since(self.since));
        (*class_uid == self.class_uid && !left.is_zero()).then_some(left)
    }
}

/// Where the provisioning of one claim stands. A variant holds what is true in it and nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// No volume exists and there is no record. Nothing is owed.
    Idle(Draft),
    /// As idle, but the driver called the claim infeasible, so the next plan waits.
    Resting(Rest),
    /// The plan is recorded, and CreateVolume may be in flight for the first time. A repeat is owed.
    Asked {
        /// What is asked.
        plan: Arc<Plan>,
    },
    /// A call has had no verdict: a volume may exist. The same call is owed again.
    Uncertain {
        /// What was asked.
        call: Call,
        /// Refusals in a row since the last call without a verdict.
        refusals: u32,
        /// The claim whose reconciles repeat the call even after its deletion. Without it the call is
        /// repeated while the claim waits, and by the resolver of intents afterwards.
        asker: Option<Asker>,
    },
    /// A volume may exist, and no claim wants it: the claim is gone, is bound to another volume, or
    /// was moved to another node. The call is owed again, and a delete of what it returns.
    Abandoned {
        /// What was asked.
        plan: Arc<Plan>,
        /// Refusals in a row since the last call without a verdict.
        refusals: u32,
    },
    /// The volume exists and its PersistentVolume is not saved. A save is owed.
    Made {
        /// What was asked.
        call: Call,
        /// The PersistentVolume.
        volume: Arc<Value>,
        /// The claim.
        asker: Asker,
    },
    /// The PersistentVolume is saved, or no volume exists. Only the deletion of the record is owed.
    Settled {
        /// How long the claim rests afterwards.
        rest: Option<Rest>,
    },
}

impl Default for Attempt {
    fn default() -> Self {
        Self::Idle(Draft::default())
    }
}

/// A refusal of CreateVolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The driver said that the request can never succeed.
    pub infeasible: bool,
    /// A claim still waits for the volume.
    pub claim_waits: bool,
    /// There is an intent record.
    pub guarded: bool,
}

/// What happened to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The plan is written down, where records are kept; the call goes out next.
    Recorded(Arc<Plan>),
    /// A record of an earlier process was read.
    Recovered(Arc<Plan>),
    /// The claim's reconcile repeats the earlier call.
    Resumed,
    /// No claim wants the volume any more.
    Abandoned,
    /// A call ended without a verdict, or the volume that it returned could not be deleted.
    NoVerdict,
    /// The driver refused.
    Refused(Refusal),
    /// No volume exists: it was deleted, or the driver's response names none.
    Absent,
    /// The provisioner answered "in background": its calls go on even when the claim is deleted.
    Kept(Asker),
    /// The reconciles of a deleted claim stop: after a final error, when they are given up, or because
    /// a volume of that name is there.
    LetGo,
    /// The volume exists and is to be saved.
    Made(Arc<Value>, Asker),
    /// The PersistentVolume is in the API.
    Saved,
    /// Saving was given up and the volume could not be deleted either; an event asks for help.
    NotSaved,
    /// The record is gone.
    RecordDropped,
    /// The claim is infeasible.
    Rest(Rest),
    /// The rest is over.
    Rested,
}

/// An event that the state does not allow: a bug of ours, not trouble outside.
#[derive(Debug, thiserror::Error)]
#[error("the attempt is {state:?}: {event:?} cannot happen to it")]
pub struct Misplaced {
    /// The state, which stays.
    pub state: Attempt,
    pub event: Event,
}

/// What an attempt owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debt {
    /// Nothing.
    Nothing,
    /// The same call again.
    Repeat,
    /// The same call again, and a delete of what it returns.
    Delete,
    /// The PersistentVolume.
    Save,
    /// The deletion of the record.
    DropRecord,
}

/// What the claim's next reconcile has to do about its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing of an earlier plan may exist: make a new one.
    Plan,
    /// Call again exactly as planned before.
    Repeat(Arc<Plan>),
    /// The scheduler chose another node: settle the earlier plan first.
    Abandon(Arc<Plan>),
    /// Delete the record first.
    DropRecord,
    /// Nothing: the claim rests, or its volume is being saved.
    Wait,
}

impl Attempt {
    /// What is owed.
    #[must_use]
    pub fn owes(&self) -> Debt {
        match self {
            Self::Idle(_) | Self::Resting(_) => Debt::Nothing,
            Self::Asked { .. } | Self::Uncertain { .. } => Debt::Repeat,
            Self::Abandoned { .. } => Debt::Delete,
            Self::Made { .. } => Debt::Save,
            Self::Settled { .. } => Debt::DropRecord,
        }
    }

    /// What a reconcile of the claim does, now that the scheduler has chosen this node.
    #[must_use]
    pub fn next(&self, node: Option<&NodeName>) -> Next {
        match self {
            Self::Idle(_) | Self::Uncertain { call: Call::Request, .. } => Next::Plan,
            Self::Asked { plan }
            | Self::Uncertain { call: Call::CreateVolume(plan), .. }
            | Self::Abandoned { plan, .. } => match plan.selected_node.as_ref() == node {
                true => Next::Repeat(plan.clone()),
                false => Next::Abandon(plan.clone()),
            },
            Self::Settled { .. } => Next::DropRecord,
            Self::Resting(_) | Self::Made { .. } => Next::Wait,
        }
    }

    /// The claim whose reconciles go on even though it may be deleted.
    #[must_use]
    pub fn asker(&self) -> Option<&Asker> {
        match self {
            Self::Uncertain { asker, .. } => asker.as_ref(),
            Self::Idle(_)
            | Self::Resting(_)
            | Self::Asked { .. }
            | Self::Abandoned { .. }
            | Self::Made { .. }
            | Self::Settled { .. } => None,
        }
    }

    /// The PersistentVolume that is to be saved, and the claim that it is for.
    #[must_use]
    pub fn unsaved(&self) -> Option<(Arc<Value>, Arc<Claim>)> {
        match self {
            Self::Made { volume, asker, .. } => Some((volume.clone(), asker.claim.clone())),
            Self::Idle(_)
            | Self::Resting(_)
            | Self::Asked { .. }
            | Self::Uncertain { .. }
            | Self::Abandoned { .. }
            | Self::Settled { .. } => None,
        }
    }

    /// Whether the claim queue settles the attempt whatever becomes of the claim, so that the resolver
    /// of intents has nothing to do.
    #[must_use]
    pub fn is_owned_by_claim_queue(&self) -> bool {
        self.asker().is_some() || self.owes() == Debt::Save
    }

    /// The claim's rest.
    #[must_use]
    pub fn resting(&self) -> Option<&Rest> {
        match self {
            Self::Resting(rest) | Self::Settled { rest: Some(rest) } => Some(rest),
            Self::Idle(_)
            | Self::Asked { .. }
            | Self::Uncertain { .. }
            | Self::Abandoned { .. }
            | Self::Made { .. }
            | Self::Settled { rest: None } => None,
        }
    }

    /// How often the driver has refused in a row what it may have made before.
    #[must_use]
    pub fn refusals(&self) -> u32 {
        match self {
            Self::Uncertain { refusals, .. } | Self::Abandoned { refusals, .. } => *refusals,
            Self::Idle(_)
            | Self::Resting(_)
            | Self::Asked { .. }
            | Self::Made { .. }
            | Self::Settled { .. } => 0,
        }
    }

    /// What was seen before a plan was made; absent once there is one.
    pub fn draft(&mut self) -> Option<&mut Draft> {
        match self {
            Self::Idle(draft) => Some(draft),
            Self::Resting(_)
            | Self::Asked { .. }
            | Self::Uncertain { .. }
            | Self::Abandoned { .. }
            | Self::Made { .. }
            | Self::Settled { .. } => None,
        }
    }
}
