//! Decides how a claim's volume grows, and how it gets another VolumeAttributesClass.
//!
//! [`target`] says which size the driver is asked for next, [`modify`] which class. [`writes`] and
//! [`modify`] build the patches of the claim's status. Two rules keep data and users safe:
//!
//! * While a call has no verdict, the driver is asked for the same again, whatever the claim says
//!   meanwhile: `status.allocatedResources` and `status.modifyVolumeStatus` hold what was asked for, and
//!   are written before the call.
//! * "Done" is written to the volume first and to the claim after it, and never before the driver, or
//!   the node, has said so.

pub mod modify;
pub mod target;
pub mod writes;

#[cfg(test)]
mod modify_tests;
#[cfg(test)]
mod target_tests;

use crate::model::{
    ClaimPhase,
    keys::annotations,
    kinds::{Claim, Volume},
};
use crate::provision::migration::plugin_of;

/// Types of a claim's conditions.
pub mod conditions {
    pub const RESIZING: &str = "Resizing";
    pub const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";
    pub const CONTROLLER_RESIZE_ERROR: &str = "ControllerResizeError";
    pub const NODE_RESIZE_ERROR: &str = "NodeResizeError";
    pub const MODIFYING_VOLUME: &str = "ModifyingVolume";
    pub const MODIFY_VOLUME_ERROR: &str = "ModifyVolumeError";

    /// All that an expansion may leave on a claim.
    pub const OF_RESIZE: [&str; 4] =
        [RESIZING, FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR];
}

/// Whether the volume is this claim's. The name in the reference is not compared, as upstream.
#[must_use]
pub fn belongs_to(volume: &Volume, claim: &Claim) -> bool {
    let meta = &claim.metadata;
    volume
        .spec
        .claim_ref
        .as_ref()
        .is_some_and(|reference| reference.namespace == meta.namespace && reference.uid == meta.uid)
}

/// Whether this driver's resizer is to expand the volume of the claim. A driver that took over from an
/// in-tree plugin expands what the claim's annotation gives to it, whatever the volume's source is.
#[must_use]
pub fn expands(driver: &str, claim: &Claim, volume: &Volume) -> bool {
    let named = claim.metadata.annotation(annotations::STORAGE_RESIZER);
    let took_over = plugin_of(driver).is_some() && named == Some(driver);
    took_over || is_of(driver, volume)
}

/// Whether the volume is a CSI volume of the driver.
#[must_use]
pub fn is_of(driver: &str, volume: &Volume) -> bool {
    volume.spec.csi.as_ref().is_some_and(|csi| *csi.driver == *driver)
}

/// Whether the condition is there and `True`.
#[must_use]
pub fn holds(claim: &Claim, condition: &str) -> bool {
    claim.status.conditions.iter().any(|one| one.kind == condition && one.status == "True")
}

fn is_bound(claim: &Claim) -> bool {
    claim.status.phase == ClaimPhase::Bound && !claim.spec.volume_name.is_empty()
}
