//! The form of an attempt that survives a crash.

use std::{collections::BTreeMap, sync::Arc};

use crate::model::Uid;
use crate::provision::Plan;

/// The key of the plan in an intent record.
const PLAN: &str = "plan";
/// The key of the cluster that wrote the record: the UID of its namespace `kube-system`.
const CLUSTER: &str = "cluster";

/// The data of the intent record for a plan that is about to be asked for. `cluster` is absent where it cannot be
/// known.
#[must_use]
pub fn to_record(plan: &Plan, cluster: Option<&Uid>) -> BTreeMap<&'static str, String> {
    let plan = (PLAN, serde_json::to_string(plan).unwrap_or_default());
    let cluster = cluster.map(|uid| (CLUSTER, uid.to_string()));
    [plan].into_iter().chain(cluster).collect()
}

/// Checks that this cluster wrote a record.
///
/// A record may have come with a backup. Its call, repeated against the same backend, returns the volume that the
/// other cluster uses, and that volume would be deleted, for it has no claim here. Records of the first version do
/// not name a cluster and count as ours.
///
/// # Errors
/// When another cluster wrote it, or when nobody knows which cluster this one is.
pub fn check_cluster(
    data: &BTreeMap<String, String>,
    ours: Option<&Uid>,
) -> Result<(), ForeignRecord> {
    let Some(theirs) = data.get(CLUSTER) else { return Ok(()) };
    let theirs = Uid::from(theirs);
    match ours {
        Some(ours) if *ours == theirs => Ok(()),
        Some(ours) => Err(ForeignRecord::Elsewhere { theirs, ours: ours.clone() }),
        None => Err(ForeignRecord::Unknown { theirs }),
    }
}

/// A record that must not be carried out here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignRecord {
    /// It names another cluster.
    #[error(
        "the record is of another cluster (its namespace kube-system has the UID {theirs}, this one's {ours}); its \
         volume belongs there, so it is not touched. Delete the record if that cluster is gone"
    )]
    Elsewhere {
        /// The cluster in the record.
        theirs: Uid,
        /// This one.
        ours: Uid,
    },
    /// The namespace `kube-system` of this cluster cannot be read.
    #[error(
        "the record is of the cluster whose namespace kube-system has the UID {theirs}, and this provisioner may not \
         read that namespace here, so it is not touched. Grant the right as in deploy/rbac/leak-guard.yaml"
    )]
    Unknown {
        /// The cluster in the record.
        theirs: Uid,
    },
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
