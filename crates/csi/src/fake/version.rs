//! Drivers built against an older version of the protocol.

use super::Driver;
use crate::Call;
use crate::capabilities::{
    ControllerCapability as C, GroupCapability, NodeCapability as N, PluginService as P,
};

/// A version of CSI. A driver has none to give out: it shows in the capabilities and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The oldest one in use.
    V1_5,
    /// Group snapshots.
    V1_8,
    /// ControllerModifyVolume.
    V1_9,
    /// GetSnapshot; the last one with the volume condition.
    V1_12,
    /// Volume health and the topology of snapshots.
    V1_13,
}

impl Version {
    /// All versions, the oldest one first.
    pub const ALL: [Version; 5] =
        [Version::V1_5, Version::V1_8, Version::V1_9, Version::V1_12, Version::V1_13];

    /// Whether a driver of this version has the call.
    pub(super) fn knows(self, call: Call) -> bool {
        self >= since(call)
    }
}

/// The first version here that has the call.
fn since(call: Call) -> Version {
    match call {
        Call::GroupControllerGetCapabilities
        | Call::CreateVolumeGroupSnapshot
        | Call::DeleteVolumeGroupSnapshot
        | Call::GetVolumeGroupSnapshot => Version::V1_8,
        Call::ControllerModifyVolume => Version::V1_9,
        // The SnapshotMetadata service came with 1.10.
        Call::GetMetadataAllocated | Call::GetMetadataDelta | Call::GetSnapshot => Version::V1_12,
        Call::ControllerListVolumeHealth
        | Call::ControllerGetVolumeHealth
        | Call::NodeGetVolumeHealth
        | Call::NodeGetStorageHealth => Version::V1_13,
        Call::GetPluginInfo
        | Call::GetPluginCapabilities
        | Call::Probe
        | Call::CreateVolume
        | Call::DeleteVolume
        | Call::ControllerPublishVolume
        | Call::ControllerUnpublishVolume
        | Call::ValidateVolumeCapabilities
        | Call::ListVolumes
        | Call::GetCapacity
        | Call::ControllerGetCapabilities
        | Call::CreateSnapshot
        | Call::DeleteSnapshot
        | Call::ListSnapshots
        | Call::ControllerExpandVolume
        | Call::ControllerGetVolume
        | Call::NodeStageVolume
        | Call::NodeUnstageVolume
        | Call::NodePublishVolume
        | Call::NodeUnpublishVolume
        | Call::NodeGetVolumeStats
        | Call::NodeExpandVolume
        | Call::NodeGetCapabilities
        | Call::NodeGetInfo => Version::V1_5,
    }
}

impl Driver {
    /// Becomes a driver of this version that advertises all that the version has and the fake can do.
    ///
    /// What exists stays, as it does when a driver is replaced behind its socket; [`Driver::sever`] lets callers notice.
    pub fn speak(&self, version: Version) -> &Self {
        let from = |since: Version| version >= since;
        let health = from(Version::V1_13);
        self.configure(|config| {
            config.version = version;
            let topology = config.topology();
            config.plugin.services = [P::ControllerService].into();
            set(&mut config.plugin.services, topology, [P::VolumeAccessibilityConstraints]);
            set(&mut config.plugin.services, from(Version::V1_8), [P::GroupControllerService]);
            set(&mut config.plugin.services, health, [P::SnapshotAccessibilityConstraints]);
            config.group = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot].into();
            config.controller = (1..=13).collect();
            set(&mut config.controller, from(Version::V1_9), [C::ModifyVolume]);
            set(&mut config.controller, from(Version::V1_12), [C::GetSnapshot]);
            set(&mut config.controller, health, [C::GetVolumeHealth, C::ListVolumeHealth]);
            config.node = (1..=6).collect();
            set(&mut config.node, health, [N::GetVolumeHealth, N::GetStorageHealth]);
            if health {
                config.controller.remove(C::VolumeCondition);
                config.node.remove(N::VolumeCondition);
            }
        })
    }
}

fn set<T: Into<i32>, const COUNT: usize>(
    into: &mut crate::capabilities::CapabilitySet<T>,
    there: bool,
    capabilities: [T; COUNT],
) {
    for capability in capabilities.into_iter().filter(|_| there) {
        into.insert(capability);
    }
}
