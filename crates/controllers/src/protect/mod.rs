//! Protection: claims, volumes and volume attributes classes stay while someone uses them; and the
//! claims of ephemeral volumes are made for the pods that own them.
//!
//! [`longshore_core::protect`] decides. Four loops carry out: [`ClaimProtection`],
//! [`VolumeProtection`], [`ClassProtection`] and [`EphemeralClaims`].

mod claims;
mod classes;
mod config;
mod ephemeral;
mod live;
#[cfg(test)]
mod tests;
mod volumes;

use std::time::Duration;

use longshore_cluster::{Api, ApiError, Change, Outcome, Patch};
use longshore_core::{
    attach::sidecar::{add_finalizer_patch, remove_finalizer_patch},
    model::{HasMeta, Kind, Meta, ObjectKey},
    protect::{Finalizer, needs_attention},
};
use serde_json::{Value, json};

pub use self::{
    claims::ClaimProtection,
    classes::ClassProtection,
    config::{Config, GATES},
    ephemeral::EphemeralClaims,
    volumes::VolumeProtection,
};

/// How long the cache is given to learn what another one wrote.
const CATCH_UP: Duration = Duration::from_millis(100);

/// The key of an object whose finalizer may have to be added or removed.
fn in_need<T: HasMeta>(change: &Change<T>, finalizer: &str) -> Option<ObjectKey> {
    match change {
        Change::Applied { new, .. } => {
            needs_attention(new.meta(), finalizer).then(|| new.meta().key())
        }
        Change::Deleted { .. } => None,
    }
}

/// Carries a decision about a finalizer out; the written object, if something was written.
async fn apply<T: Kind>(
    api: &Api,
    meta: &Meta,
    finalizer: &str,
    step: Finalizer,
) -> Result<Option<Value>, ApiError> {
    let patch = match step {
        Finalizer::Leave => None,
        Finalizer::Add => Some(add_finalizer_patch(&meta.finalizers, finalizer)),
        Finalizer::Remove => remove_finalizer_patch(&meta.finalizers, finalizer),
    };
    let Some(mut patch) = patch else { return Ok(None) };
    // The object may have been made anew under its name, and then this is not about it.
    if let Some(steps) = patch.as_array_mut() {
        steps.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": meta.uid}));
    }
    match api.patch::<T>(&meta.key(), Patch::Json(&patch)).await {
        Ok(written) => Ok(Some(written)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(ApiError::Invalid { at, message }) => Err(if moved_on::<T>(api, meta).await? {
            ApiError::Conflict { at, message }
        } else {
            ApiError::Invalid { at, message }
        }),
        Err(error) => Err(error),
    }
}

/// Whether the object is another one by now than the one that was looked at. A patch whose tests
/// fail is refused as invalid, just as one that can never succeed.
async fn moved_on<T: Kind>(api: &Api, seen: &Meta) -> Result<bool, ApiError> {
    let now = api.get_raw::<T>(&seen.key()).await?;
    Ok(now.is_none_or(|now| now["metadata"]["resourceVersion"] != *seen.resource_version))
}

/// A conflict is no failure: others take their finalizers off the same object. The cache tells of
/// it in a moment.
fn outcome(result: Result<(), ApiError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error) if error.is_conflict() => Outcome::After(CATCH_UP),
        Err(error) => Outcome::retry(error),
    }
}
