//! How many volumes of a driver a node may have.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClaimFacts, Reason};
use crate::model::kinds::{CsiDriver, CsiNode};
use crate::model::{DriverName, VolumeHandle};

/// One volume as the count knows it: the driver, and the handle or a stand-in for one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeUse {
    /// The driver that counts it.
    pub driver: DriverName,
    /// The handle; for a claim without a volume something that no handle can be.
    pub handle: VolumeHandle,
}

/// What one claim adds to the count, if anything.
#[must_use]
pub fn volume_use(facts: &ClaimFacts<'_>) -> Option<VolumeUse> {
    if let Some(volume) = facts.volume {
        let csi = volume.spec.csi.as_ref()?;
        return Some(VolumeUse { driver: csi.driver.clone(), handle: csi.volume_handle.clone() });
    }
    // It will be a volume of the class's driver, whichever handle it gets.
    let class = facts.class?;
    let handle = format!("\u{0}claim-{}", facts.claim.metadata.key()).into();
    Some(VolumeUse { driver: class.provisioner.as_str().into(), handle })
}

/// What the count on one node depends on.
#[derive(Debug, Clone, Copy)]
pub struct LimitView<'a> {
    /// What the node knows of its drivers.
    pub csi_node: Option<&'a CsiNode>,
    /// Volumes of pods that are or will be on the node, and of its attachments.
    pub used: &'a BTreeSet<VolumeUse>,
    /// Volumes of the pod in question.
    pub wanted: &'a BTreeSet<VolumeUse>,
}

/// Whether the pod's volumes still fit on the node.
pub fn check_limits<'a>(
    view: &LimitView<'_>,
    driver: impl Fn(&str) -> Option<&'a CsiDriver>,
) -> Result<(), Reason> {
    let mut added: BTreeMap<&str, usize> = BTreeMap::new();
    for volume in view.wanted {
        let known = view.csi_node.and_then(|node| node.driver(&volume.driver));
        let must_be_there = driver(&volume.driver)
            .is_some_and(|driver| driver.spec.prevent_pod_scheduling_if_missing == Some(true));
        if must_be_there && known.is_none() {
            return Err(Reason::DriverMissing(volume.driver.to_string()));
        }
        if !view.used.contains(volume) {
            *added.entry(&volume.driver).or_default() += 1;
        }
    }
    for (driver, added) in added {
        let known = view.csi_node.and_then(|node| node.driver(driver));
        let limit = known.and_then(|driver| driver.allocatable).and_then(|limits| limits.count);
        let Some(limit) = limit else { continue };
        let used = view.used.iter().filter(|volume| volume.driver == driver).count();
        if used + added > usize::try_from(limit).unwrap_or(0) {
            return Err(Reason::VolumeCount);
        }
    }
    Ok(())
}
