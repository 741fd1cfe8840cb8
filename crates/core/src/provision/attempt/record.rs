//! The form of an attempt that survives a crash.

use std::{collections::BTreeMap, sync::Arc};

use crate::provision::Plan;

/// The key of the plan in an intent record.
const PLAN: &str = "plan";

/// The data of the intent record for a plan that is about to be asked for.
#[must_use]
pub fn to_record(plan: &Plan) -> BTreeMap<&'static str, String> {
    BTreeMap::from([(PLAN, serde_json::to_string(plan).unwrap_or_default())])
}

/// The plan in an intent record; it is taken up by `Event::Recovered`.
///
/// # Errors
/// When the record cannot be read. It is then left for a person to look at.
pub fn from_record(data: &BTreeMap<String, String>) -> Result<Arc<Plan>, RecordError> {
    let text = data.get(PLAN).ok_or(RecordError::NoPlan)?;
    Ok(Arc::new(serde_json::from_str(text)?))
}

/// Why an intent record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not a record of ours.
    #[error("there is no {PLAN:?} in it")]
    NoPlan,
    /// It was changed by hand, or is of a later version.
    #[error(transparent)]
    Unreadable(#[from] serde_json::Error),
}
