//! Which volume answers which claim, and what becomes of a volume whose claim is gone.
//!
//! [`decide_claim`] and [`decide_volume`] see one object and what it depends on, and return the
//! steps to take; the loop that carries them out is `longshore_controllers::bind`. [`edit`] turns a
//! step into a change of the object's JSON.
//!
//! Two orderings keep data safe. The volume is written before the claim, so that a crash in between
//! leaves a volume that knows its claim and a later look completes the bind; never a claim that
//! believes in a volume somebody else may take. And a volume is released only after its claim was
//! looked for in the API itself, so that a late cache cannot give data away.

mod action;
mod claim;
pub mod edit;
mod matching;
mod migration;
mod volume;

pub use action::{About, Action, Note, Write};
pub use claim::{ClaimView, HostPathPlugin, Options, decide_claim};
pub use matching::{MatchError, Search, find, is_for, mismatch, smallest};
pub use volume::{VolumeView, decide_volume, is_released};

#[cfg(test)]
pub(crate) mod fixtures;
