//! Reads a lease before something is done that a new leader could not undo.

use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Lease;

use super::ElectionConfig;
use crate::ApiError;

/// Why a candidate must not act as the leader.
#[derive(Debug, thiserror::Error)]
pub enum NotHeld {
    #[error("the lease {key} cannot be read: {source}")]
    Unreadable { key: ObjectKey, source: ApiError },
    #[error("{holder} holds the lease {key}")]
    ByAnother { key: ObjectKey, holder: String },
    #[error("nobody holds the lease {key}")]
    Free { key: ObjectKey },
}

/// Whether the candidate holds its lease right now, as the API server sees it. Its identity must be its own.
///
/// # Errors
/// Says who holds it instead, or why that is not known.
pub async fn holds(candidate: &ElectionConfig) -> Result<(), NotHeld> {
    let key = ObjectKey::new(candidate.namespace.clone(), candidate.name.clone());
    let lease = match candidate.api.get_raw::<Lease>(&key).await {
        Ok(lease) => lease,
        Err(source) => return Err(NotHeld::Unreadable { key, source }),
    };
    match lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str()) {
        Some(holder) if holder == candidate.identity => Ok(()),
        Some(holder) if !holder.is_empty() => {
            Err(NotHeld::ByAnother { key, holder: holder.to_owned() })
        }
        _ => Err(NotHeld::Free { key }),
    }
}
