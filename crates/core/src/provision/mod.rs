//! What to create for a claim, where, and under which name; and when to delete it again.
//!
//! [`choose()`] says whether a claim is this provisioner's to answer, [`plan()`] what a CSI driver is
//! asked for ([`source`] what it is filled from), and [`Plan::volume`] what the PersistentVolume looks like once the driver has
//! answered; [`attempt`] is the state in between, and [`refusal_is_conclusive`] says what a refusal proves. [`is_ours`], [`finalizers_after`] and [`wants_deletion`] decide over the other end of a
//! volume's life. The loops are in `longshore_provisioner` and `longshore_controllers::provision`.

pub mod attempt;
pub mod capacity;
mod choose;
mod compact;
pub mod contest;
mod made;
pub mod migration;
pub mod name;
pub mod params;
mod plan;
mod reclaim;
pub mod source;
pub mod topology;
mod uncertain;

pub use choose::{Choice, ChoiceView, choose};
pub use made::{Created, Useless};
pub use plan::{
    Access, Capability, ClaimId, DriverCapabilities, NotPlanned, Plan, PlanSettings, PlanView,
    SecretRefs, attributes_class, check, plan,
};
pub use reclaim::{DeletionSecret, deletion_secret, finalizers_after, is_ours, wants_deletion};
pub use uncertain::{RefusalView, refusal_is_conclusive};
