//! From the provisioner's configuration to its loop.

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Context};
use longshore_controllers::{self as controllers, provision};
use longshore_core::provision::{
    capacity::{MANAGER, manager_on},
    topology::Term,
};
use longshore_csi::{Client, v1::NodeGetInfoRequest};
use tokio_util::sync::CancellationToken;

use super::Config;
use crate::cli::Program as _;
use crate::flags::{KubeAccess, Throttle};
use crate::process::unless_stopped;
use crate::programs::sidecar::{Sidecar, client_config, has_attributes_classes};

/// `longshore provisioner`.
pub(super) async fn run(config: Config) -> Result<()> {
    let Config {
        sidecar,
        provision: mut config,
        leak_guard,
        ask_for_attributes_classes,
        capacity,
        deployment,
    } = config;
    let capacity_access = KubeAccess {
        throttle: capacity.as_ref().map_or(Throttle::Adaptive, |capacity| capacity.throttle),
        ..sidecar.kube.clone()
    };
    let namespace = sidecar.election.as_ref().and_then(|election| election.namespace.clone());
    let namespace = namespace.unwrap_or_else(longshore_cluster::election::default_namespace);
    let sidecar = sidecar.begin(Config::OFFICIAL[0], config.timeout).await?;
    if ask_for_attributes_classes {
        let asked = async { Ok(has_attributes_classes(&sidecar.api).await) };
        config.plan.attributes_classes = unless_stopped(&sidecar.shutdown, asked).await?;
    }
    config.leak_guard = leak_guard.then_some(namespace);
    if let Some(mut deployment) = deployment {
        let place = place_of(&sidecar.csi);
        deployment.segments = unless_stopped(&sidecar.shutdown, place).await?;
        config.deployment = Some(deployment);
    }
    config.spare_watches = true;
    let driver = sidecar.driver.clone();
    let capacity = match capacity {
        Some(asked) => {
            let parts = self::capacity(&sidecar, asked, capacity_access, &config);
            Some(unless_stopped(&sidecar.shutdown, parts).await?)
        }
        None => None,
    };
    let work = |stop: CancellationToken| {
        // Caches of their own for each leadership: what was known before a loss is not trusted after.
        let context = Context::new(sidecar.api.clone(), sidecar.metrics.clone(), &stop);
        let mut parts = provision::Parts::new(&context, sidecar.csi.clone(), &sidecar.component());
        parts.capacity.clone_from(&capacity);
        provision::run(config.clone(), parts, stop)
    };
    sidecar.lead(&driver, work).await
}

/// Asks the driver where it is. It stays there, so once is enough.
pub(crate) async fn place_of(csi: &Client) -> Result<Term> {
    let info = csi.node_get_info(NodeGetInfoRequest {}).await;
    let info = info.context("cannot ask the driver on which node it is")?;
    Ok(info.accessible_topology.map(|place| place.segments).unwrap_or_default())
}

/// What publishing capacity needs: a client with limits of its own, and an owner for the objects.
async fn capacity(
    sidecar: &Sidecar,
    asked: controllers::capacity::Asked,
    access: KubeAccess,
    config: &provision::Config,
) -> Result<provision::CapacityParts> {
    let client = client_config(access, "csi-provisioner", &sidecar.metrics).client().await?;
    let api = Api::new(client);
    let owner = match &asked.owner {
        Some((pod, level)) => {
            let found = controllers::capacity::owner(&api, &asked.namespace, pod, *level).await;
            Some(found.context("look up owner(s) of pod")?)
        }
        None => None,
    };
    let node = config.deployment.as_ref().map(|deployment| &deployment.node);
    let manager = node.map_or_else(|| MANAGER.to_owned(), |node| manager_on(MANAGER, node));
    let config = controllers::capacity::Config {
        owner,
        for_immediate: asked.for_immediate,
        poll: asked.poll,
        threads: asked.threads.get() as usize,
        retry_interval_start: config.retry_interval_start,
        retry_interval_max: config.retry_interval_max,
        timeout: config.timeout,
        ..controllers::capacity::Config::new(asked.namespace, manager)
    };
    Ok(provision::CapacityParts { config, api, place: None })
}
