//! What a driver can do, as small typed sets.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use crate::v1;

pub use v1::controller_service_capability::rpc::Type as ControllerCapability;
pub use v1::group_controller_service_capability::rpc::Type as GroupCapability;
pub use v1::node_service_capability::rpc::Type as NodeCapability;
pub use v1::plugin_capability::service::Type as PluginService;
pub use v1::plugin_capability::volume_expansion::Type as VolumeExpansion;

/// A set of capabilities of one kind. Numbers this version does not know are kept and do no harm.
pub struct CapabilitySet<T> {
    numbers: BTreeSet<i32>,
    kind: PhantomData<fn(T)>,
}

impl<T: Into<i32>> CapabilitySet<T> {
    /// True when the driver has the capability.
    pub fn has(&self, capability: T) -> bool {
        self.numbers.contains(&capability.into())
    }

    /// The raw numbers, also those without a name.
    pub fn numbers(&self) -> impl Iterator<Item = i32> + '_ {
        self.numbers.iter().copied()
    }

    pub fn insert(&mut self, capability: T) {
        self.numbers.insert(capability.into());
    }

    pub fn remove(&mut self, capability: T) {
        self.numbers.remove(&capability.into());
    }

    /// True when the driver has none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}

impl<T> FromIterator<i32> for CapabilitySet<T> {
    fn from_iter<I: IntoIterator<Item = i32>>(numbers: I) -> Self {
        Self { numbers: numbers.into_iter().collect(), kind: PhantomData }
    }
}

impl<T: Into<i32>, const N: usize> From<[T; N]> for CapabilitySet<T> {
    fn from(capabilities: [T; N]) -> Self {
        capabilities.into_iter().map(Into::into).collect()
    }
}

impl<T> Default for CapabilitySet<T> {
    fn default() -> Self {
        Self { numbers: BTreeSet::new(), kind: PhantomData }
    }
}

impl<T> Clone for CapabilitySet<T> {
    fn clone(&self) -> Self {
        Self { numbers: self.numbers.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for CapabilitySet<T> {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

impl<T> Eq for CapabilitySet<T> {}

impl<T: TryFrom<i32> + fmt::Debug> fmt::Debug for CapabilitySet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        for &number in &self.numbers {
            match T::try_from(number) {
                Ok(known) => set.entry(&known),
                Err(_) => set.entry(&number),
            };
        }
        set.finish()
    }
}

/// Capabilities of the Controller service.
pub type ControllerCapabilities = CapabilitySet<ControllerCapability>;
/// Capabilities of the Node service.
pub type NodeCapabilities = CapabilitySet<NodeCapability>;
/// Capabilities of the GroupController service.
pub type GroupCapabilities = CapabilitySet<GroupCapability>;

/// Capabilities of the plugin as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginCapabilities {
    /// Which services there are and whether volumes have a topology.
    pub services: CapabilitySet<PluginService>,
    /// When volumes may grow.
    pub expansion: CapabilitySet<VolumeExpansion>,
}

impl PluginCapabilities {
    /// True when the plugin has the service.
    pub fn has(&self, service: PluginService) -> bool {
        self.services.has(service)
    }
}

macro_rules! rpc_set {
    ($response:ident, $module:ident, $set:ident) => {
        impl From<&v1::$response> for $set {
            fn from(response: &v1::$response) -> Self {
                let entries =
                    response.capabilities.iter().filter_map(|entry| entry.r#type.as_ref());
                entries
                    .map(|entry| match entry {
                        v1::$module::Type::Rpc(rpc) => rpc.r#type,
                    })
                    .collect()
            }
        }

        impl From<&$set> for v1::$response {
            fn from(set: &$set) -> Self {
                let entry = |number| v1::$module::Type::Rpc(v1::$module::Rpc { r#type: number });
                let capabilities = set.numbers().map(|number| entry(number).into());
                Self { capabilities: capabilities.collect() }
            }
        }
    };
}

macro_rules! wrap {
    ($message:ident, $module:ident) => {
        impl From<v1::$module::Type> for v1::$message {
            fn from(entry: v1::$module::Type) -> Self {
                Self { r#type: Some(entry) }
            }
        }
    };
}

wrap!(PluginCapability, plugin_capability);
wrap!(ControllerServiceCapability, controller_service_capability);
wrap!(NodeServiceCapability, node_service_capability);
wrap!(GroupControllerServiceCapability, group_controller_service_capability);

rpc_set!(ControllerGetCapabilitiesResponse, controller_service_capability, ControllerCapabilities);
rpc_set!(NodeGetCapabilitiesResponse, node_service_capability, NodeCapabilities);
rpc_set!(
    GroupControllerGetCapabilitiesResponse,
    group_controller_service_capability,
    GroupCapabilities
);

impl From<&v1::GetPluginCapabilitiesResponse> for PluginCapabilities {
    fn from(response: &v1::GetPluginCapabilitiesResponse) -> Self {
        use v1::plugin_capability::Type;
        let mut found = Self::default();
        for entry in response.capabilities.iter().filter_map(|entry| entry.r#type.as_ref()) {
            match entry {
                Type::Service(service) => found.services.numbers.insert(service.r#type),
                Type::VolumeExpansion(when) => found.expansion.numbers.insert(when.r#type),
            };
        }
        found
    }
}

impl From<&PluginCapabilities> for v1::GetPluginCapabilitiesResponse {
    fn from(set: &PluginCapabilities) -> Self {
        use v1::plugin_capability::{Service, Type, VolumeExpansion};
        let services =
            set.services.numbers().map(|number| Type::Service(Service { r#type: number }));
        let expansion = set
            .expansion
            .numbers()
            .map(|number| Type::VolumeExpansion(VolumeExpansion { r#type: number }));
        Self { capabilities: services.chain(expansion).map(Into::into).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(entries: Vec<Option<i32>>) -> v1::ControllerGetCapabilitiesResponse {
        use v1::controller_service_capability::{Rpc, Type};
        let entry = |number: Option<i32>| v1::ControllerServiceCapability {
            r#type: number.map(|number| Type::Rpc(Rpc { r#type: number })),
        };
        v1::ControllerGetCapabilitiesResponse {
            capabilities: entries.into_iter().map(entry).collect(),
        }
    }

    /// case: csi-protocol/14.3
    #[test]
    fn empty_entries_are_skipped() {
        let set = ControllerCapabilities::from(&controller(vec![None, Some(1), None]));
        assert_eq!(set, ControllerCapabilities::from([ControllerCapability::CreateDeleteVolume]));
        let plugin = v1::GetPluginCapabilitiesResponse {
            capabilities: vec![v1::PluginCapability { r#type: None }],
        };
        assert_eq!(PluginCapabilities::from(&plugin), PluginCapabilities::default());
    }

    /// case: csi-protocol/14.4
    #[test]
    fn unknown_numbers_are_kept_and_do_no_harm() {
        let set = ControllerCapabilities::from(&controller(vec![Some(99), Some(9)]));
        assert!(set.has(ControllerCapability::ExpandVolume));
        assert!(!set.has(ControllerCapability::CreateDeleteVolume));
        assert_eq!(set.numbers().collect::<Vec<_>>(), [9, 99]);
        assert_eq!(format!("{set:?}"), "{ExpandVolume, 99}");
    }

    /// case: csi-1.13/C4, case: csi-1.13/C5
    #[test]
    fn capabilities_of_both_versions_are_kept_together() {
        use {ControllerCapability as C, NodeCapability as N};
        let numbers = [3, 11, 16, 17, 99];
        let set = ControllerCapabilities::from(&controller(numbers.map(Some).into()));
        assert_eq!(set.numbers().collect::<Vec<_>>(), numbers);
        for known in [C::ListVolumes, C::VolumeCondition, C::GetVolumeHealth, C::ListVolumeHealth] {
            assert!(set.has(known), "{known:?}");
        }
        let numbers = [1, 2, 3, 4, 7, 8];
        let node: NodeCapabilities = numbers.into_iter().collect();
        let read = NodeCapabilities::from(&v1::NodeGetCapabilitiesResponse::from(&node));
        assert_eq!(read.numbers().collect::<Vec<_>>(), numbers);
        for known in [N::VolumeCondition, N::GetVolumeHealth, N::GetStorageHealth] {
            assert!(read.has(known), "{known:?}");
        }
    }

    #[test]
    fn sets_survive_the_wire() {
        let plugin = PluginCapabilities {
            services: [PluginService::ControllerService].into(),
            expansion: [VolumeExpansion::Online].into(),
        };
        let sent = v1::GetPluginCapabilitiesResponse::from(&plugin);
        assert_eq!(PluginCapabilities::from(&sent), plugin);
        let node = NodeCapabilities::from([NodeCapability::StageUnstageVolume]);
        assert_eq!(NodeCapabilities::from(&v1::NodeGetCapabilitiesResponse::from(&node)), node);
    }
}
