//! Which volume belongs on which node.
//!
//! Two worlds are kept as plain values: [`Desired`] (what pods want) and [`Actual`] (what is on
//! the nodes). [`decide_attach`] and [`decide_detach`] say how to close the gap for one volume on
//! one node; [`Slots`] keeps operations on one volume apart; [`Lane`] says whose turn it is;
//! [`sidecar`] holds the rules of the program that turns a `VolumeAttachment` into calls of the
//! driver. Nothing here waits, sends
//! or reads a clock: moments are passed in, as the time since the controller started.

mod actual;
mod desired;
mod lanes;
mod notice;
mod reconcile;
pub mod resolve;
pub mod sidecar;
mod slots;
mod verdict;

pub use actual::{Actual, AttachState, OnNode, Reported};
pub use desired::{Desired, DesiredError, PodId, Waited, Wanted};
pub use lanes::{Lane, Ticket};
pub use notice::{Holder, Holding, notice};
pub use reconcile::{
    Attach, AttachView, Detach, DetachView, Forced, busy_message, decide_attach, decide_detach,
};
pub use slots::{Operation, Refused, SlotKey, Slots};
pub use verdict::{Shown, Verdict, attach_verdict, detach_verdict, timeout_message};

use crate::names::{CSI_PLUGIN, UniqueName};

/// A volume as the attach path needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachSpec {
    /// The `PersistentVolume`'s name, which is also what events call the volume.
    pub name: String,
    /// The CSI driver.
    pub driver: String,
    /// The driver's id for the volume.
    pub handle: String,
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
        format!("{CSI_PLUGIN}:{}", self.driver)
    }
}
