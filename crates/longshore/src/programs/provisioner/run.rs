//! From the provisioner's configuration to its loop.

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Context, cache::Needs};
use longshore_controllers::{self as controllers, provision};
use longshore_core::model::kinds::{Claim, StorageClass, Volume};
use longshore_core::provision::{
    capacity::{MANAGER, manager_on},
    topology::Term,
};
use longshore_csi::{Client, v1::NodeGetInfoRequest};

use super::Config;
use crate::flags::KubeAccess;
use crate::programs::sidecar::{Reached, Ready, client_config, has_attributes_classes};

/// Asks all that the loop must know before it leads.
pub(super) async fn prepare(given: &Config, reached: &Reached) -> Result<Ready> {
    let mut config = given.provision.clone();
    if given.ask_for_attributes_classes {
        config.plan.attributes_classes = has_attributes_classes(&reached.api).await;
    }
    config.leak_guard = given.leak_guard.then(|| reached.namespace.clone());
    if let Some(mut deployment) = given.deployment.clone() {
        deployment.segments = place_of(&reached.csi).await?;
        config.deployment = Some(deployment);
    }
    config.spare_watches = true;
    let capacity = match &given.capacity {
        Some(asked) => {
            let kube = given.sidecar.kube.clone();
            let access = KubeAccess { throttle: asked.throttle, ..kube };
            Some(self::capacity(reached, asked.clone(), access, &config).await?)
        }
        None => None,
    };
    let needs = |context: &Context| {
        Needs::of::<Claim>(context).and::<Volume>(context).and::<StorageClass>(context)
    };
    let (csi, component) = (reached.csi.clone(), reached.component.clone());
    Ok(Ready::new(needs, move |context, stop| {
        let mut parts = provision::Parts::new(context, csi.clone(), &component);
        parts.capacity.clone_from(&capacity);
        provision::run(config.clone(), parts, stop)
    }))
}

/// Asks the driver where it is. It stays there, so once is enough.
pub(crate) async fn place_of(csi: &Client) -> Result<Term> {
    let info = csi.node_get_info(NodeGetInfoRequest {}).await;
    let info = info.context("cannot ask the driver on which node it is")?;
    Ok(info.accessible_topology.map(|place| place.segments).unwrap_or_default())
}

/// What publishing capacity needs: a client with limits of its own, and an owner for the objects.
async fn capacity(
    reached: &Reached,
    asked: controllers::capacity::Asked,
    access: KubeAccess,
    config: &provision::Config,
) -> Result<provision::CapacityParts> {
    let client = client_config(access, "csi-provisioner", &reached.metrics).client().await?;
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
