//! The names of the remote calls.

use std::fmt;

macro_rules! calls {
    ($($service:literal { $($name:ident),* $(,)? })*) => {
        /// Every remote procedure of CSI 1.13.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Call { $($(
            #[doc = concat!("`/csi.v1.", $service, "/", stringify!($name), "`")]
            $name,
        )*)* }

        impl Call {
            /// All calls, in the order of the protocol file.
            pub const ALL: &'static [Call] = &[$($(Call::$name,)*)*];

            /// The method name alone, for example `CreateVolume`.
            pub const fn name(self) -> &'static str {
                match self { $($(Call::$name => stringify!($name),)*)* }
            }

            /// The service that holds the method, for example `Controller`.
            pub const fn service(self) -> &'static str {
                match self { $($(Call::$name => $service,)*)* }
            }

            /// The gRPC path, for example `/csi.v1.Controller/CreateVolume`.
            pub const fn path(self) -> &'static str {
                match self { $($(
                    Call::$name => concat!("/csi.v1.", $service, "/", stringify!($name)),
                )*)* }
            }
        }
    };
}

calls! {
    "Identity" { GetPluginInfo, GetPluginCapabilities, Probe }
    "Controller" {
        CreateVolume, DeleteVolume, ControllerPublishVolume, ControllerUnpublishVolume,
        ValidateVolumeCapabilities, ListVolumes, GetCapacity, ControllerGetCapabilities,
        CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot, ControllerExpandVolume,
        ControllerGetVolume, ControllerListVolumeHealth, ControllerGetVolumeHealth,
        ControllerModifyVolume,
    }
    "GroupController" {
        GroupControllerGetCapabilities, CreateVolumeGroupSnapshot, DeleteVolumeGroupSnapshot,
        GetVolumeGroupSnapshot,
    }
    "SnapshotMetadata" { GetMetadataAllocated, GetMetadataDelta }
    "Node" {
        NodeStageVolume, NodeUnstageVolume, NodePublishVolume, NodeUnpublishVolume,
        NodeGetVolumeStats, NodeExpandVolume, NodeGetCapabilities, NodeGetInfo,
        NodeGetVolumeHealth, NodeGetStorageHealth,
    }
}

impl Call {
    /// Whether the call may undo what somebody else has done since: it takes something away, or sets what was set before.
    pub const fn undoes(self) -> bool {
        matches!(
            self,
            Self::DeleteVolume
                | Self::ControllerUnpublishVolume
                | Self::DeleteSnapshot
                | Self::DeleteVolumeGroupSnapshot
                | Self::ControllerModifyVolume
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
