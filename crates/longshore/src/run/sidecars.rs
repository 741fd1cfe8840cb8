//! `longshore provisioner` and `longshore attacher`, and the same loops for the embedded mode.

use std::num::NonZeroUsize;

use anyhow::Result;
use longshore_cluster::{Recorder, SharedCaches};
use longshore_controllers::{attacher, provision};
use longshore_core::provision::PlanSettings;
use longshore_csi::Client;
use longshore_provisioner::ProvisionMetrics;
use tokio_util::sync::CancellationToken;

use super::{
    loops::Shared,
    sidecar::{Sidecar, Start},
};
use crate::cli;

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
        leak_guard,
        topology,
        release_lease_on_exit,
        election,
        diagnostics,
    } = config;
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
        },
        timeout: call_timeout,
        retry_interval_start: backoff.start,
        retry_interval_max: backoff.max,
        worker_threads: workers.get() as usize,
        topology,
        strict_topology,
        immediate_topology,
        leak_guard: leak_guard.then_some(namespace),
        spare_watches: true,
        ..provision::Config::default()
    };
    let recorder = sidecar.recorder();
    let metrics = ProvisionMetrics::register(&sidecar.metrics);
    let driver = sidecar.driver.clone();
    let work = |stop: CancellationToken| {
        let parts = provisioner_parts(&sidecar, &recorder, &metrics, &stop);
        provision::run(config.clone(), parts, stop)
    };
    sidecar.lead(election, &driver, release_lease_on_exit, work).await
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
        worker_threads: workers,
        max_entries,
        default_fstype: default_fstype.unwrap_or_default(),
        reconcile_sync: reconcile_period,
        error_codes: attach_error_codes,
    };
    let lock = format!("external-attacher-leader-{}", sidecar.driver);
    let work = |stop: CancellationToken| {
        let caches = SharedCaches::new(&sidecar.api, &stop);
        let attacher = attacher::Attacher {
            api: sidecar.api.clone(),
            driver: sidecar.csi.clone(),
            caches: attacher::Caches::shared(&caches),
            metrics: Some(sidecar.metrics.clone()),
            config: config.clone(),
        };
        async move {
            if let Err(error) = attacher.run(stop).await {
                tracing::error!(%error, "the attacher did not start");
            }
        }
    };
    sidecar.lead(election, &lock, release_lease_on_exit, work).await
}

/// The provisioner of one driver in the embedded mode, leak guard on. With a scope it answers only
/// for the claims of one node.
pub async fn provision(
    shared: &Shared,
    csi: Client,
    metrics: ProvisionMetrics,
    scope: Option<provision::NodeScope>,
    stop: CancellationToken,
) {
    let driver = csi.driver_name().await.unwrap_or_default();
    let parts = provision::Parts::shared(
        &shared.api,
        csi,
        &shared.caches,
        shared.recorder(&driver),
        metrics,
        shared.metrics.clone(),
    );
    let config = provision::Config {
        leak_guard: Some(EMBEDDED_NAMESPACE.to_owned()),
        node: scope,
        ..provision::Config::default()
    };
    provision::run(config, parts, stop).await;
}
