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

use longshore_cluster::{
    Api, ApiError, Cache, Cacheable, Change, OptionalExt as _, Outcome, Patch,
};
use longshore_core::{
    attach::sidecar::{add_finalizer_patch, remove_finalizer_patch},
    model::{HasMeta, Kind, Meta, ObjectKey},
    protect::{Finalizer, needs_attention},
};
use serde_json::json;

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
    let meta = change.applied()?.meta();
    needs_attention(meta, finalizer).then(|| meta.key())
}

/// Carries a decision about a finalizer out.
async fn apply<T: Cacheable>(
    api: &Api,
    cache: &Cache<T>,
    meta: &Meta,
    finalizer: &str,
    step: Finalizer,
) -> Result<(), ApiError> {
    let patch = match step {
        Finalizer::Leave => None,
        Finalizer::Add => Some(add_finalizer_patch(&meta.finalizers, finalizer)),
        Finalizer::Remove => remove_finalizer_patch(&meta.finalizers, finalizer),
    };
    let Some(mut patch) = patch else { return Ok(()) };
    // The object may have been made anew under its name, and then this is not about it.
    if let Some(steps) = patch.as_array_mut() {
        steps.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": meta.uid}));
    }
    match api.patch::<T>(&meta.key(), Patch::Json(&patch)).await.optional() {
        Ok(Some(written)) if step == Finalizer::Add => cache.assume(&written),
        Ok(_) => {}
        Err(ApiError::Invalid { at, message }) if moved_on::<T>(api, meta).await? => {
            return Err(ApiError::Conflict { at, message });
        }
        Err(error) => return Err(error),
    }
    Ok(())
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
        Err(error) if error.is_conflict() => Outcome::After(CATCH_UP),
        other => other.into(),
    }
}
