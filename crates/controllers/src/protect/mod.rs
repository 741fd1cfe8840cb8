//! Protection: claims, volumes and volume attributes classes stay while someone uses them; and the
//! claims of ephemeral volumes are made for the pods that own them.
//!
//! [`longshore_core::protect`] decides. Four loops carry out: [`ClaimProtection`],
//! [`VolumeProtection`], [`ClassProtection`] and [`EphemeralClaims`].

mod claims;
mod classes;
mod ephemeral;
mod live;
#[cfg(test)]
mod tests;
mod volumes;

use longshore_cluster::{Api, ApiError, Outcome, Patch};
use longshore_core::{
    attach::sidecar::{add_finalizer_patch, remove_finalizer_patch},
    model::{Kind, Meta},
    protect::Finalizer,
};
use serde_json::{Value, json};

pub use self::{
    claims::{ClaimProtection, ClaimProtectionCaches},
    classes::{ClassProtection, ClassProtectionCaches},
    ephemeral::{EphemeralClaims, EphemeralMetrics},
    volumes::VolumeProtection,
};

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
        Err(error) => Err(error),
    }
}

fn outcome(result: Result<(), ApiError>) -> Outcome {
    result.map_or_else(Outcome::retry, |()| Outcome::Done)
}
