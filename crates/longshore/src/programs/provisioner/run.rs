//! From the provisioner's configuration to its loop.

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Recorder, SharedCaches};
use longshore_controllers::{self as controllers, capacity::CapacityMetrics, provision};
use longshore_core::{
    model::{Kind as _, kinds::VolumeAttributesClass},
    provision::{
        PlanSettings,
        capacity::{MANAGER, manager_on},
        topology::Term,
    },
};
use longshore_csi::{Client, v1::NodeGetInfoRequest};
use longshore_provisioner::ProvisionMetrics;
use tokio_util::sync::CancellationToken;

use super::{Config, per_node};
use crate::flags::{KubeAccess, Throttle};
use crate::programs::sidecar::{Sidecar, Start, client_config};

/// `longshore provisioner`.
pub(super) async fn run(config: Config) -> Result<()> {
    let Config {
        logging: _,
        socket,
        call_timeout,
        kube,
        naming,
        backoff,
        workers,
        strict_topology,
        immediate_topology,
        extra_create_metadata,
        default_fstype,
        controller_publish_readonly,
        prevent_volume_mode_conversion,
        cloning_protection_threads,
        snapshot_sweep,
        leak_guard,
        attributes_classes,
        cross_namespace,
        topology,
        release_lease_on_exit,
        election,
        diagnostics,
        capacity,
        deployment,
    } = config;
    let capacity_access = KubeAccess {
        throttle: capacity.as_ref().map_or(Throttle::Adaptive, |capacity| capacity.throttle),
        ..kube.clone()
    };
    let start = Start {
        program: "csi-provisioner",
        socket,
        call_timeout,
        log_limit: None,
        kube,
        diagnostics,
    };
    let sidecar = start.begin().await?;
    let namespace = election.as_ref().and_then(|election| election.namespace.clone());
    let namespace = namespace.unwrap_or_else(longshore_cluster::election::default_namespace);
    let config = provision::Config {
        plan: PlanSettings {
            name_prefix: naming.prefix,
            name_uuid_length: naming.uid_length,
            default_fs_type: default_fstype.unwrap_or_default(),
            extra_create_metadata,
            publish_read_only: controller_publish_readonly,
            attributes_classes: match attributes_classes {
                Some(set) => set,
                None => has_attributes_classes(&sidecar.api).await,
            },
            guard_volume_mode: prevent_volume_mode_conversion,
        },
        timeout: call_timeout,
        retry_interval_start: backoff.start,
        retry_interval_max: backoff.max,
        worker_threads: workers.get() as usize,
        topology,
        strict_topology,
        immediate_topology,
        cross_namespace,
        clone_threads: cloning_protection_threads as usize,
        snapshot_sweep,
        leak_guard: leak_guard.then_some(namespace),
        deployment: match deployment {
            Some(deployment) => Some(self::deployment(&sidecar, deployment).await?),
            None => None,
        },
        spare_watches: true,
        ..provision::Config::default()
    };
    let recorder = sidecar.recorder();
    let metrics = ProvisionMetrics::register(&sidecar.metrics);
    let driver = sidecar.driver.clone();
    let capacity = match capacity {
        Some(asked) => Some(self::capacity(&sidecar, asked, capacity_access, &config).await?),
        None => None,
    };
    let work = |stop: CancellationToken| {
        let mut parts = provisioner_parts(&sidecar, &recorder, &metrics, &stop);
        parts.capacity.clone_from(&capacity);
        provision::run(config.clone(), parts, stop)
    };
    sidecar.lead(election, &driver, release_lease_on_exit, work).await
}

/// Whether the API server has VolumeAttributesClasses. As upstream, one that cannot be asked counts
/// as having them.
async fn has_attributes_classes(api: &Api) -> bool {
    match api.client().list_api_group_resources("storage.k8s.io/v1").await {
        Ok(list) => list.resources.iter().any(|one| one.kind == VolumeAttributesClass::KIND),
        Err(error) => {
            tracing::warn!(%error, "cannot ask for the kinds of storage.k8s.io/v1");
            true
        }
    }
}

/// Asks the driver where it is. It stays there, so once is enough.
async fn deployment(
    sidecar: &Sidecar,
    asked: per_node::NodeDeployment,
) -> Result<provision::NodeDeployment> {
    let per_node::NodeDeployment { node, immediate_binding, base_delay, max_delay } = asked;
    let segments = place_of(&sidecar.csi).await?;
    Ok(provision::NodeDeployment { node, segments, immediate_binding, base_delay, max_delay })
}

pub(crate) async fn place_of(csi: &Client) -> Result<Term> {
    let info = csi.node_get_info(NodeGetInfoRequest {}).await;
    let info = info.context("cannot ask the driver on which node it is")?;
    Ok(info.accessible_topology.map(|place| place.segments).unwrap_or_default())
}

/// What publishing capacity needs: a client with limits of its own, and an owner for the objects.
async fn capacity(
    sidecar: &Sidecar,
    asked: per_node::Capacity,
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
    let node = config.deployment.as_ref().map(|deployment| deployment.node.as_str());
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
    let counts = CapacityMetrics::register(&sidecar.metrics);
    Ok(provision::CapacityParts { config, api, counts, place: None })
}

/// Caches of their own for each leadership: what was known before a loss is not trusted after it.
fn provisioner_parts(
    sidecar: &Sidecar,
    recorder: &Recorder,
    metrics: &ProvisionMetrics,
    stop: &CancellationToken,
) -> provision::Parts {
    let caches = SharedCaches::new(&sidecar.api, stop);
    provision::Parts::shared(
        &sidecar.api,
        sidecar.csi.clone(),
        &caches,
        recorder.clone(),
        metrics.clone(),
        sidecar.metrics.clone(),
    )
}
