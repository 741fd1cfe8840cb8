//! The cluster's loops, each built from the process's one client and one set of caches.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use longshore_cluster::{
    Api, Metrics, Recorder, SharedCaches,
    election::{self, ElectionConfig, OnLoss},
    shutdown,
};
use longshore_controllers::{attach, bind, expand, protect, schedule};
use longshore_core::bind::{HostPathPlugin, Options};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Config, Controller, Settings};
use crate::programs::sidecar::{client_config, serve};

/// What all loops of a process share.
#[derive(Clone)]
pub(crate) struct Shared {
    /// The API.
    pub api: Api,
    /// One cache per kind.
    pub caches: SharedCaches,
    /// Where everything is counted.
    pub metrics: Metrics,
    /// Ends the recorders.
    pub shutdown: CancellationToken,
    /// How the controllers behave.
    settings: Settings,
    bind_counted: bind::BindMetrics,
    ephemeral_counted: protect::EphemeralMetrics,
}

impl Shared {
    /// For the embedded mode.
    pub(crate) fn new(api: Api, metrics: Metrics, shutdown: &CancellationToken) -> Self {
        Self::with(api, metrics, Settings::default(), shutdown)
    }

    fn with(api: Api, metrics: Metrics, settings: Settings, shutdown: &CancellationToken) -> Self {
        let caches = SharedCaches::new(&api, shutdown);
        let bind_counted = bind::BindMetrics::register(&metrics);
        let ephemeral_counted = protect::EphemeralMetrics::register(&metrics);
        let shutdown = shutdown.clone();
        Self { api, caches, metrics, shutdown, settings, bind_counted, ephemeral_counted }
    }

    /// A recorder for one component's events.
    pub(crate) fn recorder(&self, component: &str) -> Recorder {
        Recorder::start(&self.api, component, "", &self.shutdown).0
    }

    /// Runs one controller until `stop`.
    pub(crate) async fn run(&self, controller: Controller, stop: CancellationToken) {
        match controller {
            Controller::Binder => self.binder().run(stop).await,
            Controller::AttachDetach => self.attach_detach().run(stop).await,
            Controller::Ephemeral => self.ephemeral().run(stop).await,
            Controller::ClaimProtection => self.claim_protection().run(stop).await,
            Controller::VolumeProtection => self.volume_protection().run(stop).await,
            Controller::ClassProtection => self.class_protection().run(stop).await,
            Controller::Expander => self.expander().run(stop).await,
            Controller::Scheduler => self.scheduler().run(stop).await,
        }
    }

    fn binder(&self) -> bind::Binder {
        let parts = bind::Parts {
            api: self.api.clone(),
            claims: self.caches.of(),
            volumes: self.caches.of(),
            classes: self.caches.of(),
            pods: self.caches.of(),
            recorder: self.recorder("persistentvolume-controller"),
            metrics: self.metrics.clone(),
            counted: self.bind_counted.clone(),
            inside: (self.settings.host_path != HostPathPlugin::Off)
                .then(|| Arc::new(bind::HostPath::default()) as Arc<dyn bind::Inside>),
        };
        let config = bind::Config {
            options: Options {
                dynamic_provisioning: self.settings.dynamic_provisioning,
                host_path: self.settings.host_path,
                ..Options::default()
            },
            resync: self.settings.binder_resync,
            ..bind::Config::default()
        };
        bind::Binder::new(parts, config)
    }

    fn attach_detach(&self) -> attach::AttachDetach {
        attach::AttachDetach {
            api: self.api.clone(),
            caches: attach::Caches::shared(&self.caches),
            recorder: self.recorder("attachdetach-controller"),
            metrics: Some(self.metrics.clone()),
            config: attach::Config {
                verify_period: self.settings.attach_verify,
                disable_force_detach_on_timeout: self.settings.no_force_detach,
                holder_notice: self.settings.holder_notice,
                lane_places: self.settings.attach_requests,
                ..attach::Config::default()
            },
        }
    }

    fn ephemeral(&self) -> protect::EphemeralClaims {
        protect::EphemeralClaims {
            api: self.api.clone(),
            pods: self.caches.of(),
            claims: self.caches.of(),
            recorder: self.recorder("ephemeral_volume"),
            metrics: Some(self.metrics.clone()),
            counted: self.ephemeral_counted.clone(),
            workers: self.settings.ephemeral_workers,
        }
    }

    fn claim_protection(&self) -> protect::ClaimProtection {
        protect::ClaimProtection {
            api: self.api.clone(),
            caches: protect::ClaimProtectionCaches::shared(&self.caches),
            metrics: Some(self.metrics.clone()),
            unused_condition: self.settings.unused_condition,
        }
    }

    fn volume_protection(&self) -> protect::VolumeProtection {
        protect::VolumeProtection {
            api: self.api.clone(),
            volumes: self.caches.of(),
            metrics: Some(self.metrics.clone()),
        }
    }

    fn class_protection(&self) -> protect::ClassProtection {
        protect::ClassProtection {
            api: self.api.clone(),
            caches: protect::ClassProtectionCaches::shared(&self.caches),
            metrics: Some(self.metrics.clone()),
        }
    }

    fn expander(&self) -> expand::Expander {
        expand::Expander {
            api: self.api.clone(),
            claims: self.caches.of(),
            volumes: self.caches.of(),
            recorder: self.recorder("volume_expand"),
            metrics: Some(self.metrics.clone()),
        }
    }

    fn scheduler(&self) -> schedule::Scheduler {
        schedule::Scheduler {
            api: self.api.clone(),
            caches: schedule::Caches::shared(&self.caches),
            recorder: self.recorder("default-scheduler"),
            metrics: Some(self.metrics.clone()),
            config: schedule::Config::default(),
        }
    }
}

/// `longshore controllers`.
pub(super) async fn run(config: Config) -> Result<()> {
    let Config { logging: _, kube, controllers, settings, election, diagnostics } = config;
    let shutdown = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new();
    let client = client_config(kube, "longshore-controllers", &metrics);
    let api = Api::new(client.client().await?);
    let shared = Shared::with(api, metrics, settings, &shutdown);
    let status = election::Status::default();
    if let Some(diagnostics) = &diagnostics {
        serve(diagnostics, &shared.metrics, &status, &shutdown).await?;
    }
    let chosen: Vec<Controller> = controllers.into_iter().collect();
    let Some((name, asked)) = election else {
        run_all(&shared, &chosen, shutdown).await;
        return Ok(());
    };
    let namespace = asked.namespace.unwrap_or_else(election::default_namespace);
    let lease = ElectionConfig {
        lease_duration: asked.times.lease_duration,
        renew_deadline: asked.times.renew_deadline,
        retry_period: asked.times.retry_period,
        on_loss: OnLoss::Exit,
        metrics: Some(shared.metrics.clone()),
        status,
        ..ElectionConfig::new(Api::new(client.lease_client().await?), namespace, name)
    };
    election::run(lease, &shutdown, |stop| {
        let (shared, chosen) = (shared.clone(), chosen.clone());
        async move { run_all(&shared, &chosen, stop).await }
    })
    .await
    .map_err(Into::into)
}

async fn run_all(shared: &Shared, chosen: &[Controller], stop: CancellationToken) {
    let mut tasks = JoinSet::new();
    for controller in chosen.iter().copied() {
        let (shared, stop) = (shared.clone(), stop.clone());
        tasks.spawn(async move { shared.run(controller, stop).await });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended abnormally; the others go on");
        }
    }
}
