//! The provisioners of an embedded instance.

use anyhow::Result;
use longshore_controllers::{self as controllers, provision};
use longshore_core::{
    model::keys::embedded,
    provision::capacity::{MANAGER, manager_on},
};
use longshore_csi::Client;
use tokio_util::sync::CancellationToken;

use crate::programs::{controllers::Shared, provisioner::place_of};

/// Namespace of the intent records in the embedded mode.
const NAMESPACE: &str = "kube-system";

/// The room in the pools of the local driver. Where every node has a driver of its own, each
/// publishes its own.
async fn embedded_capacity(
    shared: &Shared,
    csi: &Client,
    scope: Option<&provision::NodeScope>,
) -> Result<provision::CapacityParts> {
    let (place, manager) = match scope {
        Some(scope) => (Some(place_of(csi).await?), manager_on(MANAGER, &scope.node)),
        None => (None, MANAGER.to_owned()),
    };
    let config = controllers::capacity::Config::new(NAMESPACE, manager);
    Ok(provision::CapacityParts { config, api: shared.context.api.clone(), place })
}

/// The provisioner of one driver in the embedded mode, leak guard on. With a scope it answers only
/// for the claims of one node.
pub(super) async fn run(
    shared: &Shared,
    csi: Client,
    scope: Option<provision::NodeScope>,
    stop: CancellationToken,
) {
    let driver = match csi.driver_name().await {
        Ok(driver) => driver,
        // The caller starts it again.
        Err(error) => return tracing::warn!(%error, "cannot learn the driver's name"),
    };
    let mut parts = provision::Parts::new(&shared.context, csi.clone(), &driver);
    if driver == embedded::LOCAL_DRIVER {
        match embedded_capacity(shared, &csi, scope.as_ref()).await {
            Ok(capacity) => parts.capacity = Some(capacity),
            // The caller starts it again.
            Err(error) => return tracing::warn!(%error, "the local driver is not ready"),
        }
    }
    provision::run(config(scope), parts, stop).await;
}

fn config(scope: Option<provision::NodeScope>) -> provision::Config {
    provision::Config {
        leak_guard: Some(NAMESPACE.to_owned()),
        // Our nodes list what they have staged, attached or not.
        check_volumes_in_use: true,
        node: scope,
        ..provision::Config::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_apiserver::ApiServer;
    use longshore_cluster::{Api, Metrics};
    use longshore_csi::{
        Call,
        fake::{Driver, Fault},
    };

    use super::*;

    #[tokio::test]
    async fn a_driver_that_cannot_say_its_name_ends_the_run_and_nothing_is_made_under_no_name() {
        let server = ApiServer::open(longshore_apiserver::Config::memory()).await.unwrap();
        let stop = CancellationToken::new();
        let shared = Shared::new(Api::new(server.client()), Metrics::new(), &stop);
        let driver = Driver::new("test.csi.longshore.dev");
        driver.script(Call::GetPluginInfo, [Fault::before(tonic::Code::Unavailable)]);
        let running = run(&shared, driver.client(), None, stop.clone());
        let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
        assert!(ended.is_ok(), "it goes on without the driver's name");
        stop.cancel();
    }

    #[test]
    fn volumes_are_guarded_and_kept_while_a_node_uses_them() {
        let config = config(None);
        assert!(config.check_volumes_in_use && config.leak_guard.is_some());
    }
}
