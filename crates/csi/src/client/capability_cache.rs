//! The client caches the capabilities that a driver advertises, for as long as the connection lasts.
//!
//! Another driver may serve the same socket after a reconnect, older or newer than the one before. So a response counts
//! for one connection only and is requested again on the next one.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::Client;
use crate::capabilities::{
    ControllerCapabilities, GroupCapabilities, NodeCapabilities, PluginCapabilities, PluginService,
};
use crate::requirement::{Requirement, implemented};
use crate::{Call, CsiError, v1};

/// The capability responses of one connection.
#[derive(Debug, Default)]
struct Advertised {
    /// How many connections were lost before this one.
    connection: u64,
    plugin: Option<PluginCapabilities>,
    controller: Option<ControllerCapabilities>,
    node: Option<NodeCapabilities>,
    group: Option<GroupCapabilities>,
    /// Calls that the driver advertises and yet fails with `Unimplemented`.
    unimplemented: BTreeSet<Call>,
}

impl Advertised {
    /// Whether a capability response of this connection contains the requirement of a call.
    fn has(&self, requirement: Requirement) -> bool {
        match requirement {
            Requirement::Open => false,
            Requirement::Plugin(service) => {
                self.plugin.as_ref().is_some_and(|set| set.has(service))
            }
            Requirement::Controller(one) => {
                self.controller.as_ref().is_some_and(|set| set.has(one))
            }
            Requirement::Node(one) => self.node.as_ref().is_some_and(|set| set.has(one)),
            Requirement::Group(one) => self.group.as_ref().is_some_and(|set| set.has(one)),
        }
    }
}

/// The last capability responses, dropped when the connection is lost. All clones of a client share them.
#[derive(Debug, Default)]
pub(super) struct CapabilityCache(Mutex<Advertised>);

impl CapabilityCache {
    /// Gives access to what is known of a connection; what was known of an earlier one is dropped.
    fn of<T>(&self, connection: u64, access: impl FnOnce(&mut Advertised) -> T) -> T {
        let mut known = self.0.lock();
        if known.connection != connection {
            *known = Advertised { connection, ..Advertised::default() };
        }
        access(&mut known)
    }
}

impl Client {
    /// The present connection, as the number of those lost before it.
    fn connection(&self) -> u64 {
        *self.shared.losses.borrow()
    }

    fn known<T>(&self, access: impl FnOnce(&mut Advertised) -> T) -> T {
        self.shared.capabilities.of(self.connection(), access)
    }

    /// Returns the cached response of the present connection, or sends `request` and caches its response.
    async fn advertised<T: Clone>(
        &self,
        slot: fn(&mut Advertised) -> &mut Option<T>,
        request: impl Future<Output = Result<T, CsiError>>,
    ) -> Result<T, CsiError> {
        if let Some(known) = self.known(|known| slot(known).clone()) {
            return Ok(known);
        }
        self.fresh(slot, request).await
    }

    /// Sends `request` and caches its response for the present connection.
    async fn fresh<T: Clone>(
        &self,
        slot: fn(&mut Advertised) -> &mut Option<T>,
        request: impl Future<Output = Result<T, CsiError>>,
    ) -> Result<T, CsiError> {
        let connection = self.connection();
        let response = request.await?;
        // The connection was lost meanwhile: the response may be that of the previous driver.
        if connection == self.connection() {
            self.known(|known| *slot(known) = Some(response.clone()));
        }
        Ok(response)
    }

    fn unimplemented(&self) -> BTreeSet<Call> {
        self.known(|known| known.unimplemented.clone())
    }

    /// What the plugin as a whole advertises on the present connection.
    pub async fn plugin_capabilities(&self) -> Result<PluginCapabilities, CsiError> {
        let request = async {
            let request = v1::GetPluginCapabilitiesRequest {};
            Ok((&self.get_plugin_capabilities(request).await?).into())
        };
        self.advertised(|known| &mut known.plugin, request).await
    }

    /// What the Controller service advertises on the present connection, without capabilities whose only call turned
    /// out to be unimplemented.
    pub async fn controller_capabilities(&self) -> Result<ControllerCapabilities, CsiError> {
        let request = async {
            let request = v1::ControllerGetCapabilitiesRequest {};
            Ok((&self.controller_get_capabilities(request).await?).into())
        };
        let advertised = self.advertised(|known| &mut known.controller, request).await?;
        Ok(implemented(&advertised, self.unimplemented()))
    }

    /// What the Node service advertises now, without capabilities whose only call turned out to be unimplemented.
    ///
    /// Requested every time, as by the kubelet: a node plugin may gain capabilities after its registration.
    pub async fn node_capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        let request = async {
            let request = v1::NodeGetCapabilitiesRequest {};
            Ok((&self.node_get_capabilities(request).await?).into())
        };
        let advertised = self.fresh(|known| &mut known.node, request).await?;
        Ok(implemented(&advertised, self.unimplemented()))
    }

    /// What the GroupController service advertises on the present connection.
    pub async fn group_capabilities(&self) -> Result<GroupCapabilities, CsiError> {
        let request = async {
            let request = v1::GroupControllerGetCapabilitiesRequest {};
            Ok((&self.group_controller_get_capabilities(request).await?).into())
        };
        self.advertised(|known| &mut known.group, request).await
    }

    /// Whether the driver behind the present connection advertises a call and has not refused it as unimplemented.
    ///
    /// Costs no call once the capabilities of the connection are known, except for calls of the Node service.
    pub async fn supports(&self, call: Call) -> Result<bool, CsiError> {
        let requirement = call.requirement();
        if let Some(service) = requirement.service()
            && !self.has_service(service).await?
        {
            return Ok(false);
        }
        let advertised = match requirement {
            Requirement::Open => true,
            Requirement::Plugin(service) => self.has_service(service).await?,
            Requirement::Controller(capability) => {
                self.controller_capabilities().await?.has(capability)
            }
            Requirement::Node(capability) => self.node_capabilities().await?.has(capability),
            Requirement::Group(capability) => self.group_capabilities().await?.has(capability),
        };
        Ok(advertised && !self.known(|known| known.unimplemented.contains(&call)))
    }

    /// Whether the plugin advertises a service or a property on the present connection.
    pub async fn has_service(&self, service: PluginService) -> Result<bool, CsiError> {
        Ok(self.plugin_capabilities().await?.has(service))
    }

    /// Records that an advertised call failed with `Unimplemented`, and logs it once per connection.
    ///
    /// A call that the driver does not advertise is not recorded: its caller did not check first.
    pub(super) fn note_unimplemented(&self, call: Call) {
        let first =
            self.known(|known| known.has(call.requirement()) && known.unimplemented.insert(call));
        if first {
            tracing::warn!(
                driver = self.driver(),
                method = call.path(),
                capability = %call.requirement(),
                "the driver advertises a call that it does not implement; it is not used until the driver is \
                 connected again"
            );
        }
    }
}
