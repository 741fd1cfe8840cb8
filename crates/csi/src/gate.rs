//! Which capability a driver must advertise before a call may be sent to it.

use crate::Call;
use crate::capabilities::{
    CapabilitySet, ControllerCapability, GroupCapability, NodeCapability, PluginService,
};

/// What a driver has to advertise for a call. CSI has no version handshake: only capabilities tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
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

impl Gate {
    /// The service that must be there before the capabilities of this gate can be read.
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
        Call::ALL.iter().filter(|call| call.gate() == self).count() == 1
    }
}

impl Call {
    /// What a driver has to advertise for this call.
    pub const fn gate(self) -> Gate {
        use {ControllerCapability as C, NodeCapability as N, PluginService as P};
        match self {
            Call::GetPluginInfo
            | Call::GetPluginCapabilities
            | Call::Probe
            | Call::NodePublishVolume
            | Call::NodeUnpublishVolume
            | Call::NodeGetCapabilities
            | Call::NodeGetInfo => Gate::Open,
            Call::ControllerGetCapabilities | Call::ValidateVolumeCapabilities => {
                Gate::Plugin(P::ControllerService)
            }
            Call::GroupControllerGetCapabilities => Gate::Plugin(P::GroupControllerService),
            Call::GetMetadataAllocated | Call::GetMetadataDelta => {
                Gate::Plugin(P::SnapshotMetadataService)
            }
            Call::CreateVolume | Call::DeleteVolume => Gate::Controller(C::CreateDeleteVolume),
            Call::ControllerPublishVolume | Call::ControllerUnpublishVolume => {
                Gate::Controller(C::PublishUnpublishVolume)
            }
            Call::ListVolumes => Gate::Controller(C::ListVolumes),
            Call::GetCapacity => Gate::Controller(C::GetCapacity),
            Call::CreateSnapshot | Call::DeleteSnapshot => {
                Gate::Controller(C::CreateDeleteSnapshot)
            }
            Call::ListSnapshots => Gate::Controller(C::ListSnapshots),
            Call::GetSnapshot => Gate::Controller(C::GetSnapshot),
            Call::ControllerExpandVolume => Gate::Controller(C::ExpandVolume),
            Call::ControllerGetVolume => Gate::Controller(C::GetVolume),
            Call::ControllerListVolumeHealth => Gate::Controller(C::ListVolumeHealth),
            Call::ControllerGetVolumeHealth => Gate::Controller(C::GetVolumeHealth),
            Call::ControllerModifyVolume => Gate::Controller(C::ModifyVolume),
            Call::CreateVolumeGroupSnapshot
            | Call::DeleteVolumeGroupSnapshot
            | Call::GetVolumeGroupSnapshot => {
                Gate::Group(GroupCapability::CreateDeleteGetVolumeGroupSnapshot)
            }
            Call::NodeStageVolume | Call::NodeUnstageVolume => Gate::Node(N::StageUnstageVolume),
            Call::NodeGetVolumeStats => Gate::Node(N::GetVolumeStats),
            Call::NodeExpandVolume => Gate::Node(N::ExpandVolume),
            Call::NodeGetVolumeHealth => Gate::Node(N::GetVolumeHealth),
            Call::NodeGetStorageHealth => Gate::Node(N::GetStorageHealth),
        }
    }
}

/// A kind of capability that a [`Gate`] can require.
pub(crate) trait Gated: Into<i32> + Sized {
    /// The capability that the gate requires, if it is of this kind.
    fn of(gate: Gate) -> Option<Self>;
}

macro_rules! gated {
    ($($kind:ident: $arm:ident;)*) => { $(
        impl Gated for $kind {
            fn of(gate: Gate) -> Option<Self> {
                match gate {
                    Gate::$arm(capability) => Some(capability),
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
    let gates = unimplemented.into_iter().map(Call::gate);
    for capability in gates.filter(|gate| gate.is_for_one_call()).filter_map(T::of) {
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
        let gates: Vec<Gate> = Call::ALL.iter().map(|call| call.gate()).collect();
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
            let gate = Gate::Controller(capability);
            assert_eq!(gates.contains(&gate), !behaviour.contains(&capability), "{capability:?}");
        }
        let behaviour = [
            NodeCapability::Unknown,
            NodeCapability::VolumeCondition,
            NodeCapability::SingleNodeMultiWriter,
            NodeCapability::VolumeMountGroup,
        ];
        for number in 0..=8 {
            let capability = NodeCapability::try_from(number).expect("known");
            let gate = Gate::Node(capability);
            assert_eq!(gates.contains(&gate), !behaviour.contains(&capability), "{capability:?}");
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
