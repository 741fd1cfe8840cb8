//! Which VolumeAttributesClass the driver is asked for next.

use serde_json::{Value, json};

use super::{conditions, writes::dropped};
use crate::model::kinds::{Claim, Condition};

/// How far a change of the class has come: `status.modifyVolumeStatus.status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Pending,
    InProgress,
    Infeasible,
    /// A word that this version does not know.
    Other,
}

/// A claim as the decision sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<'a> {
    /// The class that the claim asks for; empty for none.
    pub wanted: &'a str,
    /// The class that the volume has.
    pub current: &'a str,
    /// What was begun, and how far it came.
    pub begun: Option<(&'a str, Stage)>,
    /// Of the last call there is no verdict, or none that could be recorded.
    pub uncertain: bool,
    /// A condition says that the volume is being modified.
    pub announced: bool,
}

impl<'a> View<'a> {
    /// The view of a claim.
    #[must_use]
    pub fn of(claim: &'a Claim, uncertain: bool) -> Self {
        let name = |class: &'a Option<String>| class.as_deref().unwrap_or_default();
        let status = &claim.status;
        let begun = status.modify_volume_status.as_ref().map(|begun| {
            let stage = match begun.status.as_str() {
                "Pending" => Stage::Pending,
                "InProgress" => Stage::InProgress,
                "Infeasible" => Stage::Infeasible,
                _ => Stage::Other,
            };
            (begun.target_volume_attributes_class_name.as_str(), stage)
        });
        let is_announcement = |kind: &str| kind == conditions::MODIFYING_VOLUME;
        Self {
            wanted: name(&claim.spec.volume_attributes_class_name),
            current: name(&status.current_volume_attributes_class_name),
            begun,
            uncertain,
            announced: status.conditions.iter().any(|one| is_announcement(&one.kind)),
        }
    }

    /// The driver has called just this change infeasible, or may have: it is repeated rarely.
    #[must_use]
    pub fn repeats(&self) -> bool {
        !self.wanted.is_empty() && self.begun.is_some_and(|(target, _)| target == self.wanted)
    }

    /// Whether the claim says that the change is infeasible.
    #[must_use]
    pub fn is_infeasible(&self) -> bool {
        self.begun.is_some_and(|(_, stage)| stage == Stage::Infeasible)
    }
}

/// What is to be done about a claim's class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modification<'a> {
    Nothing,
    /// Nothing is wanted any more: the announcement is taken back.
    Cancel,
    /// The driver is asked again for a class that it may be setting already.
    Continue(&'a str),
    /// The driver is asked for another class, when that exists.
    Begin(&'a str),
}

/// What to do about a claim.
#[must_use]
pub fn decide<'a>(view: &View<'a>) -> Modification<'a> {
    match view.begun {
        None if view.wanted == view.current => Modification::Nothing,
        Some((target, Stage::InProgress)) if view.uncertain || view.wanted.is_empty() => {
            Modification::Continue(target)
        }
        _ if view.wanted.is_empty() && view.announced => Modification::Cancel,
        _ if view.wanted.is_empty() => Modification::Nothing,
        _ => Modification::Begin(view.wanted),
    }
}

/// Whether a change of the claim is worth a look.
#[must_use]
pub fn worth_a_look(old: &Claim, new: &Claim) -> bool {
    let (before, after) = (View::of(old, false), View::of(new, false));
    before.wanted != after.wanted
        || new.status.modify_volume_status.is_none() && after.wanted != after.current
        || super::is_bound(new) && !super::is_bound(old)
}

/// Before the driver is asked for `class`.
#[must_use]
pub fn begun(claim: &Claim, class: &str, now: &str) -> Value {
    let message = format!("Modifying volume to \"{class}\" is in progress.");
    let modifying = condition(claim, conditions::MODIFYING_VOLUME, "", &message, now);
    json!({"status": {
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": class, "status": "InProgress"},
        "conditions": [modifying]}})
}

/// The class does not exist: the target stays what it was.
#[must_use]
pub fn pending(claim: &Claim) -> Value {
    let begun = claim.status.modify_volume_status.as_ref();
    let target = begun.map(|begun| begun.target_volume_attributes_class_name.as_str());
    let mut status = json!({"status": "Pending"});
    if let Some(target) = target.filter(|target| !target.is_empty()) {
        status["targetVolumeAttributesClassName"] = target.into();
    }
    json!({"status": {"modifyVolumeStatus": status}})
}

/// The volume has the class.
#[must_use]
pub fn finished(claim: &Claim, class: &str) -> Value {
    let both = [conditions::MODIFYING_VOLUME, conditions::MODIFY_VOLUME_ERROR];
    let mut status = json!({"currentVolumeAttributesClassName": class, "modifyVolumeStatus": null});
    let gone = dropped(claim, &both, "");
    if !gone.is_empty() {
        status["conditions"] = gone.into();
    }
    json!({"status": status})
}

/// Nobody asks for the change any more.
#[must_use]
pub fn cancelled(claim: &Claim) -> Value {
    json!({"status": {"conditions": dropped(claim, &[conditions::MODIFYING_VOLUME], "")}})
}

/// An answer of the driver that is not "done".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It never will.
    Infeasible,
    /// Not this time; what it was asked for is not under way any more.
    Final,
    /// It may be at it still.
    Unknown,
}

/// What the claim is told of a failed call: `code` and `text` are the driver's.
#[must_use]
pub fn refused(
    claim: &Claim,
    class: &str,
    refusal: Refusal,
    (code, text): (&str, &str),
    now: &str,
) -> Value {
    let (stage, rest) = match refusal {
        Refusal::Infeasible => ("Infeasible", "failed. Waiting for retry."),
        Refusal::Final => ("InProgress", "failed. Waiting for retry."),
        Refusal::Unknown => ("InProgress", "is still in progress."),
    };
    let message = format!("Modifying volume to \"{class}\" {rest}");
    let modifying = condition(claim, conditions::MODIFYING_VOLUME, "", &message, now);
    let error = condition(claim, conditions::MODIFY_VOLUME_ERROR, code, text, now);
    json!({"status": {
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": class, "status": stage},
        "conditions": [modifying, error]}})
}

/// A condition that keeps its transition time while it says the same.
fn condition(claim: &Claim, kind: &str, reason: &str, message: &str, now: &str) -> Value {
    let mut condition =
        json!({"type": kind, "status": "True", "message": message, "lastProbeTime": now});
    if !reason.is_empty() {
        condition["reason"] = reason.into();
    }
    let same =
        |kept: &&Condition| kept.kind == kind && kept.status == "True" && kept.reason == reason;
    if !claim.status.conditions.iter().any(|kept| same(&kept)) {
        condition["lastTransitionTime"] = now.into();
    }
    condition
}
