//! Which capability a driver must advertise before a call may be sent to it.

use std::fmt;

use crate::Call;
use crate::capabilities::{
    CapabilitySet, ControllerCapability, GroupCapability, NodeCapability, PluginService,
};

/// What a driver has to advertise for a call. CSI has no version handshake, so that capabilities are all there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Every driver that serves the service has the call.
    Open,
    /// A service, or a property of the plugin as a whole.
    Plugin(PluginService),
    /// A capability of the Controller service.
    Controller(ControllerCapability),
    /// A capability of the Node service.
    Node(NodeCapability),
    /// A capability of the GroupController service.
    Group(GroupCapability),
}

/// CSI's name of the capability.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "none",
            Self::Plugin(service) => service.as_str_name(),
            Self::Controller(capability) => capability.as_str_name(),
            Self::Node(capability) => capability.as_str_name(),
            Self::Group(capability) => capability.as_str_name(),
        })
    }
}

impl Requirement {
    /// The service that must be there before the capabilities of this requirement can be read.
    pub const fn service(self) -> Option<PluginService> {
        match self {
            Self::Open | Self::Plugin(_) | Self::Node(_) => None,
            Self::Controller(_) => Some(PluginService::ControllerService),
            Self::Group(_) => Some(PluginService::GroupControllerService),
        }
    }

    /// True when the capability stands for this one call alone.
    ///
    /// Other capabilities stand for a call and its undoing. A driver that lacks one half must not lose the other
    /// half with it: what was published has to be unpublished.
    fn is_for_one_call(self) -> bool {
        Call::ALL.iter().filter(|call| call.requirement() == self).count() == 1
    }
}

impl Call {
    /// What a driver has to advertise for this call.
    pub const fn requirement(self) -> Requirement {
        use {ControllerCapability as C, NodeCapability as N, PluginService as P};
        match self {
            Call::GetPluginInfo
            | Call::GetPluginCapabilities
            | Call::Probe
            | Call::NodePublishVolume
            | Call::NodeUnpublishVolume
            | Call::NodeGetCapabilities
            | Call::NodeGetInfo => Requirement::Open,
            Call::ControllerGetCapabilities | Call::ValidateVolumeCapabilities => {
                Requirement::Plugin(P::ControllerService)
            }
            Call::GroupControllerGetCapabilities => Requirement::Plugin(P::GroupControllerService),
            Call::GetMetadataAllocated | Call::GetMetadataDelta => {
                Requirement::Plugin(P::SnapshotMetadataService)
            }
            Call::CreateVolume | Call::DeleteVolume => {
                Requirement::Controller(C::CreateDeleteVolume)
            }
            Call::ControllerPublishVolume | Call::ControllerUnpublishVolume => {
                Requirement::Controller(C::PublishUnpublishVolume)
            }
            Call::ListVolumes => Requirement::Controller(C::ListVolumes),
            Call::GetCapacity => Requirement::Controller(C::GetCapacity),
            Call::CreateSnapshot | Call::DeleteSnapshot => {
                Requirement::Controller(C::CreateDeleteSnapshot)
            }
            Call::ListSnapshots => Requirement::Controller(C::ListSnapshots),
            Call::GetSnapshot => Requirement::Controller(C::GetSnapshot),
            Call::ControllerExpandVolume => Requirement::Controller(C::ExpandVolume),
            Call::ControllerGetVolume => Requirement::Controller(C::GetVolume),
            Call::ControllerListVolumeHealth => Requirement::Controller(C::ListVolumeHealth),
            Call::ControllerGetVolumeHealth => Requirement::Controller(C::GetVolumeHealth),
            Call::ControllerModifyVolume => Requirement::Controller(C::ModifyVolume),
            Call::CreateVolumeGroupSnapshot
            | Call::DeleteVolumeGroupSnapshot
            | Call::GetVolumeGroupSnapshot => {
                Requirement::Group(GroupCapability::CreateDeleteGetVolumeGroupSnapshot)
            }
            Call::NodeStageVolume | Call::NodeUnstageVolume => {
                Requirement::Node(N::StageUnstageVolume)
            }
            Call::NodeGetVolumeStats => Requirement::Node(N::GetVolumeStats),
            Call::NodeExpandVolume => Requirement::Node(N::ExpandVolume),
            Call::NodeGetVolumeHealth => Requirement::Node(N::GetVolumeHealth),
            Call::NodeGetStorageHealth => Requirement::Node(N::GetStorageHealth),
        }
    }
}

/// A kind of capability that a [`Requirement`] can require.
pub(crate) trait Gated: Into<i32> + Sized {
    /// The capability that is required, if it is of this kind.
    fn of(requirement: Requirement) -> Option<Self>;
}

macro_rules! gated {
    ($($kind:ident: $arm:ident;)*) => { $(
        impl Gated for $kind {
            fn of(requirement: Requirement) -> Option<Self> {
                match requirement {
                    Requirement::$arm(capability) => Some(capability),
                    _ => None,
                }
            }
        }
    )* };
}

gated! {
    PluginService: Plugin;
    ControllerCapability: Controller;
    NodeCapability: Node;
    GroupCapability: Group;
}

/// The advertised set without the capabilities whose only call failed with `Unimplemented`.
pub(crate) fn implemented<T: Gated>(
    advertised: &CapabilitySet<T>,
    unimplemented: impl IntoIterator<Item = Call>,
) -> CapabilitySet<T> {
    let mut set = advertised.clone();
    let requirements = unimplemented.into_iter().map(Call::requirement);
    for capability in
        requirements.filter(|requirement| requirement.is_for_one_call()).filter_map(T::of)
    {
        set.remove(capability);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::{ControllerCapabilities, NodeCapabilities};

    #[test]
    fn every_capability_that_stands_for_a_call_gates_one() {
        let requirements: Vec<Requirement> =
            Call::ALL.iter().map(|call| call.requirement()).collect();
        // Capabilities that say how a call behaves, and not that it is there.
        let behaviour = [
            ControllerCapability::Unknown,
            ControllerCapability::CloneVolume,
            ControllerCapability::PublishReadonly,
            ControllerCapability::ListVolumesPublishedNodes,
            ControllerCapability::VolumeCondition,
            ControllerCapability::SingleNodeMultiWriter,
        ];
        for number in 0..=17 {
            let capability = ControllerCapability::try_from(number).expect("known");
            let requirement = Requirement::Controller(capability);
            assert_eq!(
                requirements.contains(&requirement),
                !behaviour.contains(&capability),
                "{capability:?}"
            );
        }
        let behaviour = [
            NodeCapability::Unknown,
            NodeCapability::VolumeCondition,
            NodeCapability::SingleNodeMultiWriter,
            NodeCapability::VolumeMountGroup,
        ];
        for number in 0..=8 {
            let capability = NodeCapability::try_from(number).expect("known");
            let requirement = Requirement::Node(capability);
            assert_eq!(
                requirements.contains(&requirement),
                !behaviour.contains(&capability),
                "{capability:?}"
            );
        }
    }

    #[test]
    fn an_unimplemented_call_hides_its_capability_only_if_it_is_the_only_call() {
        use ControllerCapability as C;
        let advertised =
            ControllerCapabilities::from([C::PublishUnpublishVolume, C::ListVolumes, C::GetVolume]);
        let table = [
            (vec![], advertised.clone()),
            (vec![Call::ListVolumes], [C::PublishUnpublishVolume, C::GetVolume].into()),
            (vec![Call::ControllerPublishVolume], advertised.clone()),
            (vec![Call::NodeGetVolumeStats, Call::GetSnapshot], advertised.clone()),
        ];
        for (unimplemented, expected) in table {
            assert_eq!(
                implemented(&advertised, unimplemented.clone()),
                expected,
                "{unimplemented:?}"
            );
        }
        let node = NodeCapabilities::from([NodeCapability::StageUnstageVolume]);
        assert_eq!(implemented(&node, [Call::NodeUnstageVolume]), node);
    }
}
