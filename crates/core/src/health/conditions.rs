//! What a claim's status says of its volume, from what a driver of CSI 1.13 reports.
//!
//! A report takes the place of what the claim says; it is never added to it. An error is no report and no recovery:
//! after it all stays as it is. A volume that a list leaves out is healthy only after a second look ([`absent`]). What
//! the API would refuse is made acceptable first ([`sanitise`]), so that one bad word of a driver hides nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

pub use crate::model::{StorageHealthType as StorageStatus, VolumeHealthType as Status};
use crate::model::{Uid, kinds::VolumeHealthCondition};

/// Longer lists are refused by the API, as are longer reasons and messages.
pub const MAX_CONDITIONS: usize = 16;
pub const MAX_REASON_BYTES: usize = 256;
pub const MAX_MESSAGE_BYTES: usize = 1024;
/// Stands for a reason that the API would refuse.
pub const UNSPECIFIED: &str = "Unspecified";

impl Status {
    /// Reads the number that a driver sends; none for one that this version does not know.
    #[must_use]
    pub fn of_wire(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::Degraded),
            2 => Some(Self::Inaccessible),
            3 => Some(Self::DataLoss),
            _ => None,
        }
    }
}

impl StorageStatus {
    /// Reads the number that a driver sends; none for one that this version does not know.
    #[must_use]
    pub fn of_wire(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::StorageDegraded),
            2 => Some(Self::StorageUnreachable),
            _ => None,
        }
    }
}

/// An entry as the driver sent it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub status: i32,
    pub reason: String,
    pub message: String,
}

/// What a driver reports of one volume, fit for the API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// The worst first, and no two of one status and reason.
    pub conditions: Vec<VolumeHealthCondition>,
    /// Entries whose status has no word in the API. They cannot be written, and yet the volume is not healthy.
    pub unknown: Vec<Entry>,
}

impl HealthReport {
    /// Whether the driver says that nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.conditions.is_empty() && self.unknown.is_empty()
    }
}

/// Makes of a driver's entries what the API accepts.
#[must_use]
pub fn sanitise(entries: impl IntoIterator<Item = Entry>) -> HealthReport {
    let (mut known, mut unknown) = (Conditions::new(), BTreeMap::new());
    for entry in entries {
        let (reason, message) = acceptable(&entry.reason, &entry.message);
        // Of two with the same key the first counts.
        match Status::of_wire(entry.status) {
            Some(status) => _ = known.entry((status, reason)).or_insert(message),
            None => _ = unknown.entry((entry.status, reason)).or_insert(message),
        }
    }
    let unknown = unknown.into_iter().take(MAX_CONDITIONS);
    let entry = |((status, reason), message)| Entry { status, reason, message };
    HealthReport { conditions: limited(known), unknown: unknown.map(entry).collect() }
}

type Conditions = BTreeMap<(Status, String), String>;

/// The worst ones, as many as the API takes. How many are left out stands in the last message.
fn limited(all: Conditions) -> Vec<VolumeHealthCondition> {
    let left_out = all.len().saturating_sub(MAX_CONDITIONS);
    let condition = |((status, reason), message)| VolumeHealthCondition { status, reason, message };
    let mut kept: Vec<_> = all.into_iter().take(MAX_CONDITIONS).map(condition).collect();
    if left_out > 0
        && let Some(last) = kept.last_mut()
    {
        let count = format!(" (and {left_out} more)");
        let room = MAX_MESSAGE_BYTES - count.len();
        last.message = format!("{}{count}", start(&last.message, room)).trim_start().to_owned();
    }
    kept
}

/// Reason and message of an entry as the API takes them. A reason that is no word goes in front of the message.
fn acceptable(reason: &str, message: &str) -> (String, String) {
    let (reason, message) = match (is_reason(reason), reason.trim(), message) {
        (true, ..) => (start(reason, MAX_REASON_BYTES), message.to_owned()),
        (false, "", message) => (UNSPECIFIED, message.to_owned()),
        (false, reason, "") => (UNSPECIFIED, reason.to_owned()),
        (false, reason, message) => (UNSPECIFIED, format!("{reason}: {message}")),
    };
    // A cut may have left a separator at the end.
    let reason = reason.trim_end_matches([',', ':']).to_owned();
    (reason, start(&message, MAX_MESSAGE_BYTES).to_owned())
}

/// Whether the API takes a text as a reason: a letter, then letters, digits and `_,:`, of which the last two cannot
/// stand at the end.
#[must_use]
pub fn is_reason(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"_,:".contains(byte);
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.iter().all(inner)
        && bytes.last().is_some_and(|byte| !b",:".contains(byte))
}

/// The start of a text, at most so many bytes of it and no half character.
fn start(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// What one cycle has learned of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed<'a> {
    /// The driver reported all that is wrong with it.
    Reported(&'a HealthReport),
    /// It was in a list that failed later: there may be more.
    Partly(&'a HealthReport),
    /// A complete list left it out.
    Absent {
        /// How many complete lists in a row had left it out before.
        before: u32,
        /// Whether the driver can be asked about this volume alone.
        confirm: bool,
    },
    /// The call failed, or the list before it came to this volume.
    Failed,
}

/// What becomes of the conditions of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// They stay.
    Keep,
    /// They stay until the driver was asked about this volume alone.
    Confirm,
    /// These take their place; there is at least one.
    Replace(Vec<VolumeHealthCondition>),
    /// The volume is healthy again.
    Clear,
}

/// Decides from the conditions that stand and from what was learned of the volume.
#[must_use]
pub fn decide(standing: &[VolumeHealthCondition], observed: Observed<'_>) -> Decision {
    match observed {
        Observed::Failed => Decision::Keep,
        Observed::Absent { .. } if standing.is_empty() => Decision::Keep,
        Observed::Absent { before, confirm } => absent(before, confirm),
        Observed::Reported(report) if report.is_healthy() => match standing {
            [] => Decision::Keep,
            _ => Decision::Clear,
        },
        // Something is wrong with it, though nothing that has a word: what was known is not taken back.
        Observed::Reported(report) if report.conditions.is_empty() => Decision::Keep,
        Observed::Reported(report) => replace(standing, report.conditions.clone()),
        Observed::Partly(report) => {
            let mut all = Conditions::new();
            for one in report.conditions.iter().chain(standing).cloned() {
                all.entry((one.status, one.reason)).or_insert(one.message);
            }
            match report.conditions.as_slice() {
                [] => Decision::Keep,
                _ => replace(standing, limited(all)),
            }
        }
    }
}

/// A message that changed alone is not worth a write: many drivers put numbers into it.
fn replace(standing: &[VolumeHealthCondition], now: Vec<VolumeHealthCondition>) -> Decision {
    if same(standing, &now) { Decision::Keep } else { Decision::Replace(now) }
}

/// What it means that a complete list leaves out a volume with conditions. Paging may lose an entry, so it takes two
/// lists in a row; a driver that can be asked about the volume alone decides by its response and by nothing else.
#[must_use]
pub fn absent(before: u32, confirm: bool) -> Decision {
    match (confirm, before) {
        (true, _) => Decision::Confirm,
        (false, 0) => Decision::Keep,
        (false, _) => Decision::Clear,
    }
}

type Key<'a> = (&'a Status, &'a str);

fn key(condition: &VolumeHealthCondition) -> Key<'_> {
    (&condition.status, &condition.reason)
}

/// Whether both are the same set of statuses and reasons.
#[must_use]
pub fn same(some: &[VolumeHealthCondition], others: &[VolumeHealthCondition]) -> bool {
    keys(some) == keys(others)
}

fn keys(all: &[VolumeHealthCondition]) -> BTreeSet<Key<'_>> {
    all.iter().map(key).collect()
}

/// The conditions that were not there before: each is an event on the claim.
pub fn begun<'a>(
    before: &'a [VolumeHealthCondition],
    now: &'a [VolumeHealthCondition],
) -> impl Iterator<Item = &'a VolumeHealthCondition> {
    now.iter().filter(|one| !before.iter().any(|old| key(old) == key(one)))
}

/// The text of the event about a condition.
#[must_use]
pub fn event_text(status: &str, reason: &str, message: &str) -> String {
    if message.is_empty() {
        return format!("{status}/{reason}");
    }
    format!("{status}/{reason}: {message}")
}

/// A JSON merge patch of the status of the claim with this UID. A strategic one would merge the list by status alone
/// and lose one of two reasons.
#[must_use]
pub fn patch(uid: &Uid, conditions: &[VolumeHealthCondition], now: &str) -> Value {
    let health = match conditions {
        [] => Value::Null,
        _ => json!({"healthConditions": conditions, "lastTransitionTime": now}),
    };
    json!({"metadata": {"uid": uid}, "status": {"healthStatus": health}})
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
