//! `longshore provisioner` and `longshore attacher`, and the same loops for the embedded mode.

use std::num::NonZeroUsize;

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Context, Recorder, SharedCaches};
use longshore_controllers::{self as controllers, attacher, capacity::CapacityMetrics, provision};
use longshore_core::{
    model::{Kind as _, keys::embedded, kinds::VolumeAttributesClass},
    provision::{
        PlanSettings,
        capacity::{MANAGER, manager_on},
        topology::Term,
    },
};
use longshore_csi::{Client, v1::NodeGetInfoRequest};
use longshore_provisioner::ProvisionMetrics;
use tokio_util::sync::CancellationToken;

use super::{
    loops::Shared,
    sidecar::{Sidecar, Start, client_config},
};
use crate::{
    cli,
    flags::{KubeAccess, Throttle},
};

/// Namespace of the intent records in the embedded mode.
const EMBEDDED_NAMESPACE: &str = "kube-system";

/// `longshore provisioner`.
pub async fn provisioner(config: cli::provisioner::Config) -> Result<()> {
    let cli::provisioner::Config {
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
    asked: cli::per_node::NodeDeployment,
) -> Result<provision::NodeDeployment> {
    let cli::per_node::NodeDeployment { node, immediate_binding, base_delay, max_delay } = asked;
    let segments = place_of(&sidecar.csi).await?;
    Ok(provision::NodeDeployment { node, segments, immediate_binding, base_delay, max_delay })
}

async fn place_of(csi: &Client) -> Result<Term> {
    let info = csi.node_get_info(NodeGetInfoRequest {}).await;
    let info = info.context("cannot ask the driver on which node it is")?;
    Ok(info.accessible_topology.map(|place| place.segments).unwrap_or_default())
}

/// What publishing capacity needs: a client with limits of its own, and an owner for the objects.
async fn capacity(
    sidecar: &Sidecar,
    asked: cli::per_node::Capacity,
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

/// `longshore attacher`.
pub async fn attacher(config: cli::attacher::Config) -> Result<()> {
    let cli::attacher::Config {
        logging: _,
        socket,
        call_timeout,
        kube,
        resync,
        backoff,
        workers,
        max_entries,
        default_fstype,
        reconcile_period,
        log_limit,
        attach_error_codes,
        release_lease_on_exit,
        election,
        diagnostics,
    } = config;
    let start =
        Start { program: "csi-attacher", socket, call_timeout, log_limit, kube, diagnostics };
    let sidecar = start.begin().await?;
    let workers = NonZeroUsize::new(workers.get() as usize).unwrap_or(NonZeroUsize::MIN);
    let config = attacher::Config {
        timeout: call_timeout,
        retry_interval_start: backoff.start,
        retry_interval_max: backoff.max,
        resync,
        worker_threads: workers,
        max_entries,
        default_fstype: default_fstype.unwrap_or_default(),
        reconcile_sync: reconcile_period,
        error_codes: attach_error_codes,
    };
    let lock = format!("external-attacher-leader-{}", sidecar.driver);
    let work = |stop: CancellationToken| {
        let context = Context::new(sidecar.api.clone(), sidecar.metrics.clone(), &stop);
        let attacher = attacher::Attacher::new(&context, sidecar.csi.clone(), config.clone());
        async move {
            if let Err(error) = attacher.run(stop).await {
                tracing::error!(%error, "the attacher did not start");
            }
        }
    };
    sidecar.lead(election, &lock, release_lease_on_exit, work).await
}

/// What the provisioners of an embedded instance count, all together.
#[derive(Clone)]
pub struct Counted {
    provision: ProvisionMetrics,
    capacity: CapacityMetrics,
}

impl Counted {
    /// Registers the counts.
    pub fn register(metrics: &longshore_cluster::Metrics) -> Self {
        let (provision, capacity) =
            (ProvisionMetrics::register(metrics), CapacityMetrics::register(metrics));
        Self { provision, capacity }
    }
}

/// The room in the pools of the local driver. Where every node has a driver of its own, each
/// publishes its own.
async fn embedded_capacity(
    shared: &Shared,
    csi: &Client,
    counts: CapacityMetrics,
    scope: Option<&provision::NodeScope>,
) -> Result<provision::CapacityParts> {
    let (place, manager) = match scope {
        Some(scope) => (Some(place_of(csi).await?), manager_on(MANAGER, &scope.node)),
        None => (None, MANAGER.to_owned()),
    };
    let config = controllers::capacity::Config::new(EMBEDDED_NAMESPACE, manager);
    Ok(provision::CapacityParts { config, api: shared.context.api.clone(), counts, place })
}

/// The provisioner of one driver in the embedded mode, leak guard on. With a scope it answers only
/// for the claims of one node.
pub async fn provision(
    shared: &Shared,
    csi: Client,
    counted: Counted,
    scope: Option<provision::NodeScope>,
    stop: CancellationToken,
) {
    let driver = csi.driver_name().await.unwrap_or_default();
    let mut parts = provision::Parts::shared(
        &shared.context.api,
        csi.clone(),
        &shared.context.caches,
        shared.context.recorder(&driver),
        counted.provision,
        shared.context.metrics.clone(),
    );
    if driver == embedded::LOCAL_DRIVER {
        match embedded_capacity(shared, &csi, counted.capacity, scope.as_ref()).await {
            Ok(capacity) => parts.capacity = Some(capacity),
            // Whoever runs this starts it anew.
            Err(error) => return tracing::warn!(%error, "the local driver is not ready"),
        }
    }
    let config = provision::Config {
        leak_guard: Some(EMBEDDED_NAMESPACE.to_owned()),
        node: scope,
        ..provision::Config::default()
    };
    provision::run(config, parts, stop).await;
}
