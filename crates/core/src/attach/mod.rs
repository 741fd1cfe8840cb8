//! The rules of attach and detach: which volume belongs on which node.
//!
//! Two states are kept as plain values: [`Desired`] (what pods want) and [`Actual`] (what is on
//! the nodes). [`decide_attach`] and [`decide_detach`] say how to close the gap for one volume on
//! one node; [`PendingOperations`] keeps operations on one volume apart; [`FairQueue`] says which starts next;
//! [`sidecar`] holds the rules of the program that turns a `VolumeAttachment` into calls of the
//! driver. Nothing here waits, sends
//! or reads a clock: moments are passed in, as the time since the controller started.

mod actual;
mod desired;
mod fair_queue;
mod notice;
mod pending;
mod reconcile;
pub mod resolve;
pub mod sidecar;
mod verdict;

pub use actual::{Actual, AttachState, OnNode, Reported};
pub use desired::{Desired, DesiredError, PodId, Waited, Wanted};
pub use fair_queue::{FairQueue, Permit};
pub use notice::{Holder, Holding, notice};
pub use pending::{Operation, OperationKey, PendingOperations, Refused};
pub use reconcile::{
    Attach, AttachView, Detach, DetachView, Forced, busy_message, decide_attach, decide_detach,
};
pub use verdict::{
    Shown, Verdict, attach_verdict, detach_verdict, is_final_attach_error, timeout_message,
};

use crate::model::{DriverName, VolumeHandle};
use crate::names::{UniqueName, metrics_plugin};

/// A volume as the attach path needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachSpec {
    /// The `PersistentVolume`'s name, which is also what events call the volume.
    pub name: String,
    pub driver: DriverName,
    pub handle: VolumeHandle,
    /// It may be on several nodes at once.
    pub shareable: bool,
    /// The API knows it by an in-tree source.
    pub migrated: bool,
    /// What the attachment says of a volume that stands in a pod and has no object of its own.
    pub inline: Option<Box<serde_json::Value>>,
}

impl AttachSpec {
    /// The name under which nodes report the volume.
    #[must_use]
    pub fn unique_name(&self) -> UniqueName {
        UniqueName::new(&self.driver, &self.handle)
    }

    /// What metrics call the plugin that serves the volume.
    #[must_use]
    pub fn plugin(&self) -> String {
        metrics_plugin(&self.driver)
    }
}
