//! Reads a lease before something is done that a new leader could not undo.

use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Lease;

use super::ElectionConfig;

/// Whether the candidate holds its lease right now, as the API server sees it. Its identity must be its own.
///
/// # Errors
/// Says who holds it instead, or why that is not known.
pub async fn holds(candidate: &ElectionConfig) -> Result<(), String> {
    let key = ObjectKey::new(candidate.namespace.clone(), candidate.name.clone());
    let lease = candidate.api.get_raw::<Lease>(&key).await;
    let lease = lease.map_err(|error| format!("the lease {key} cannot be read: {error}"))?;
    match lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str()) {
        Some(holder) if holder == candidate.identity => Ok(()),
        Some(holder) if !holder.is_empty() => Err(format!("{holder} holds the lease {key}")),
        _ => Err(format!("nobody holds the lease {key}")),
    }
}
