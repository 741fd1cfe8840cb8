//! Which node a pod goes to, as far as its volumes and requests have a say in it.
//!
//! `sort_claims` looks at the pod's claims once; `check_node` says for one node whether the
//! pod fits and, if so, which volumes have to be bound or made there ([`NodePlan`]);
//! [`pick_node`] chooses among the nodes that fit; [`binding_progress`] says how far the plan has
//! come. Nothing is written here, and no plan is a promise: the API may have moved on, and then
//! the pod is looked at again.

mod binding;
mod capacity;
mod claims;
mod limits;
mod node;
mod pick;
mod resources;
mod score;
#[cfg(test)]
mod tests;
mod volumes;

pub use binding::{BindingView, Progress, ProvisionedClaim, StaticClaim, binding_progress};
pub use claims::{ClaimFacts, Classified, NotReady, PodClaims, classify, fully_bound, sort_claims};
pub use limits::{LimitView, VolumeUse, check_limits, volume_use};
pub use node::{check_basics, not_considered};
pub use pick::{Candidate, Unfit, no_fit_message, pick_node, refused_message};
pub use resources::{Amounts, add, check_resources, requests_of};
pub use score::volume_score;
pub use volumes::{Cluster, NodePlan, check_volumes};

/// Why a node does not fit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Reason {
    /// The node does not report itself ready.
    #[error("node(s) were not ready")]
    NotReady,
    /// The node is cordoned.
    #[error("node(s) were unschedulable")]
    Unschedulable,
    /// A taint keeps the pod away.
    #[error("node(s) had untolerated taint(s)")]
    Taint,
    /// Labels do not match.
    #[error("node(s) didn't match Pod's node affinity/selector")]
    Affinity,
    /// The node has not enough of a resource, for instance `cpu`.
    #[error("Insufficient {0}")]
    Insufficient(String),
    /// A claim for one pod only is in use.
    #[error(
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
    )]
    OncePod,
    /// Too many volumes.
    #[error("node(s) exceed max volume count")]
    VolumeCount,
    /// The driver says pods need it, and it is not on the node.
    #[error("{0} CSI driver is not installed on the node")]
    DriverMissing(String),
    /// A bound claim's volume is gone.
    #[error("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")]
    VolumeMissing,
    /// A bound claim's volume is out of the node's reach.
    #[error("node(s) didn't match PersistentVolume's node affinity")]
    VolumeAffinity,
    /// No volume can be found or made for a claim on this node.
    #[error("node(s) didn't find available persistent volumes to bind")]
    BindConflict,
    /// The driver has no room here.
    #[error("node(s) did not have enough free storage")]
    NoCapacity,
    /// The volume lives in another zone.
    #[error("node(s) had no available volume zone")]
    Zone,
}
