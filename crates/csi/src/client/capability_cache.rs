//! The capabilities that the driver advertises on its present connection.
//!
//! Another driver may answer behind the same socket after a connection was lost, older or newer than the one before.
//! So an answer counts for one connection only and is read again on the next one.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::Client;
use crate::capabilities::{
    ControllerCapabilities, GroupCapabilities, NodeCapabilities, PluginCapabilities, PluginService,
};
use crate::gate::{Gate, implemented};
use crate::{Call, CsiError, v1};

/// What is known about the driver behind one connection.
#[derive(Debug, Default)]
struct Advertised {
    /// How many connections were lost before this one.
    connection: u64,
    plugin: Option<PluginCapabilities>,
    controller: Option<ControllerCapabilities>,
    node: Option<NodeCapabilities>,
    group: Option<GroupCapabilities>,
    /// Calls that are advertised and answered with `Unimplemented` all the same.
    unimplemented: BTreeSet<Call>,
}

impl Advertised {
    /// Whether a capability answer of this connection has the gate of a call in it.
    fn has(&self, gate: Gate) -> bool {
        match gate {
            Gate::Open => false,
            Gate::Plugin(service) => self.plugin.as_ref().is_some_and(|set| set.has(service)),
            Gate::Controller(one) => self.controller.as_ref().is_some_and(|set| set.has(one)),
            Gate::Node(one) => self.node.as_ref().is_some_and(|set| set.has(one)),
            Gate::Group(one) => self.group.as_ref().is_some_and(|set| set.has(one)),
        }
    }
}

/// The last capability answers, forgotten when the connection is lost. Shared by all clones of a client.
#[derive(Debug, Default)]
pub(super) struct Current(Mutex<Advertised>);

impl Current {
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
        self.shared.current.of(self.connection(), access)
    }

    /// The answer of the present connection: the one at hand, or that of `ask`, which is kept.
    async fn advertised<T: Clone>(
        &self,
        slot: fn(&mut Advertised) -> &mut Option<T>,
        ask: impl Future<Output = Result<T, CsiError>>,
    ) -> Result<T, CsiError> {
        if let Some(known) = self.known(|known| slot(known).clone()) {
            return Ok(known);
        }
        self.fresh(slot, ask).await
    }

    /// The answer of `ask`, which is kept for the present connection.
    async fn fresh<T: Clone>(
        &self,
        slot: fn(&mut Advertised) -> &mut Option<T>,
        ask: impl Future<Output = Result<T, CsiError>>,
    ) -> Result<T, CsiError> {
        let connection = self.connection();
        let answer = ask.await?;
        // An answer that a loss overtook may be that of the driver before.
        if connection == self.connection() {
            self.known(|known| *slot(known) = Some(answer.clone()));
        }
        Ok(answer)
    }

    fn unimplemented(&self) -> BTreeSet<Call> {
        self.known(|known| known.unimplemented.clone())
    }

    /// What the plugin as a whole advertises on the present connection.
    pub async fn plugin_capabilities(&self) -> Result<PluginCapabilities, CsiError> {
        let ask = async {
            let request = v1::GetPluginCapabilitiesRequest {};
            Ok((&self.get_plugin_capabilities(request).await?).into())
        };
        self.advertised(|known| &mut known.plugin, ask).await
    }

    /// What the Controller service advertises on the present connection, without capabilities whose only call turned
    /// out to be unimplemented.
    pub async fn controller_capabilities(&self) -> Result<ControllerCapabilities, CsiError> {
        let ask = async {
            let request = v1::ControllerGetCapabilitiesRequest {};
            Ok((&self.controller_get_capabilities(request).await?).into())
        };
        let advertised = self.advertised(|known| &mut known.controller, ask).await?;
        Ok(implemented(&advertised, self.unimplemented()))
    }

    /// What the Node service advertises now, without capabilities whose only call turned out to be unimplemented.
    ///
    /// Asked for every time, as the kubelet does: node plugins may learn what they can do after they were registered.
    pub async fn node_capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        let ask = async {
            let request = v1::NodeGetCapabilitiesRequest {};
            Ok((&self.node_get_capabilities(request).await?).into())
        };
        let advertised = self.fresh(|known| &mut known.node, ask).await?;
        Ok(implemented(&advertised, self.unimplemented()))
    }

    /// What the GroupController service advertises on the present connection.
    pub async fn group_capabilities(&self) -> Result<GroupCapabilities, CsiError> {
        let ask = async {
            let request = v1::GroupControllerGetCapabilitiesRequest {};
            Ok((&self.group_controller_get_capabilities(request).await?).into())
        };
        self.advertised(|known| &mut known.group, ask).await
    }

    /// Whether the driver behind the present connection advertises a call and has not refused it as unimplemented.
    ///
    /// Costs no call once the capabilities of the connection are known, except for calls of the Node service.
    pub async fn supports(&self, call: Call) -> Result<bool, CsiError> {
        let gate = call.gate();
        if let Some(service) = gate.service()
            && !self.has_service(service).await?
        {
            return Ok(false);
        }
        let advertised = match gate {
            Gate::Open => true,
            Gate::Plugin(service) => self.has_service(service).await?,
            Gate::Controller(capability) => self.controller_capabilities().await?.has(capability),
            Gate::Node(capability) => self.node_capabilities().await?.has(capability),
            Gate::Group(capability) => self.group_capabilities().await?.has(capability),
        };
        Ok(advertised && !self.known(|known| known.unimplemented.contains(&call)))
    }

    /// Whether the plugin advertises a service or a property on the present connection.
    pub async fn has_service(&self, service: PluginService) -> Result<bool, CsiError> {
        Ok(self.plugin_capabilities().await?.has(service))
    }

    /// Remembers that an advertised call is answered with `Unimplemented`, and logs it once per connection.
    ///
    /// A call that was never advertised tells nothing: the caller did not ask first.
    pub(super) fn note_unimplemented(&self, call: Call) {
        let first = self.known(|known| known.has(call.gate()) && known.unimplemented.insert(call));
        if first {
            tracing::warn!(
                driver = self.shared.driver.get(),
                method = call.path(),
                capability = ?call.gate(),
                "the driver advertises a call that it does not implement; it is not used until the driver is \
                 connected again"
            );
        }
    }
}
