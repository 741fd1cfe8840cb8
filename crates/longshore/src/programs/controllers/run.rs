//! The cluster's loops, each built from the process's one client and one set of caches.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use longshore_cluster::{
    Api, Context, Metrics,
    election::{self, ElectionConfig, OnLoss},
    shutdown,
};
use longshore_controllers::{attach, bind, expand, protect, schedule};
use longshore_core::bind::HostPathPlugin;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Config, Controller, Settings, beside};
use crate::flags::log_other_kubeconfig;
use crate::process::unless_stopped;
use crate::programs::sidecar::{client_config, serve};

/// How often kube-controller-manager renews its lease, unless told otherwise.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// What all loops of a process share.
#[derive(Clone)]
pub(crate) struct Shared {
    /// What each loop works with.
    pub context: Context,
    /// How the controllers behave.
    settings: Settings,
}

impl Shared {
    /// For the embedded mode.
    pub(crate) fn new(api: Api, metrics: Metrics, shutdown: &CancellationToken) -> Self {
        Self::with(api, metrics, Settings::default(), shutdown)
    }

    fn with(api: Api, metrics: Metrics, settings: Settings, shutdown: &CancellationToken) -> Self {
        Self { context: Context::new(api, metrics, shutdown), settings }
    }

    /// Runs one controller until `stop`.
    pub(crate) async fn run(&self, controller: Controller, stop: CancellationToken) {
        let (context, settings) = (&self.context, &self.settings);
        match controller {
            Controller::Binder => self.binder().run(stop).await,
            Controller::AttachDetach => {
                let config = settings.attach.clone();
                attach::AttachDetach::new(context, config).run(stop).await;
            }
            Controller::Ephemeral => {
                let workers = settings.protect.concurrent_ephemeralvolume_syncs.get() as usize;
                protect::EphemeralClaims::new(context, workers).run(stop).await;
            }
            Controller::ClaimProtection => {
                protect::ClaimProtection::new(context, settings.protect.unused_condition)
                    .run(stop)
                    .await;
            }
            Controller::VolumeProtection => protect::VolumeProtection::new(context).run(stop).await,
            Controller::ClassProtection => protect::ClassProtection::new(context).run(stop).await,
            Controller::Expander => expand::Expander::new(context).run(stop).await,
            Controller::Scheduler => {
                let config = schedule::Config::default();
                schedule::Scheduler::new(context, config).run(stop).await;
            }
        }
    }

    fn binder(&self) -> bind::Binder {
        let config = self.settings.bind.clone();
        let plugin = (config.options.host_path != HostPathPlugin::Off)
            .then(|| Arc::new(bind::HostPath::default()) as Arc<dyn bind::InTreePlugin>);
        bind::Binder::new(&self.context, config, plugin)
    }
}

/// `longshore controllers`.
pub(super) async fn run(config: Config) -> Result<()> {
    let Config { logging: _, kube, controllers, allow_beside, settings, election, diagnostics } =
        config;
    let shutdown = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new();
    log_other_kubeconfig(kube.kubeconfig.as_deref());
    let client = client_config(kube, "longshore-controllers", &metrics);
    let api = Api::new(client.client().await?);
    let shared = Shared::with(api, metrics, settings, &shutdown);
    let status = election::Status::default();
    if let Some(diagnostics) = &diagnostics {
        serve(diagnostics, &shared.context.metrics, &status, &shutdown).await?;
    }
    let chosen: Vec<Controller> = controllers.into_iter().collect();
    let lease = election.as_ref();
    let turns =
        lease.is_some_and(|(name, asked)| beside::is_its_lease(asked.namespace.as_deref(), name));
    if !allow_beside && !turns {
        let period = lease.map_or(RETRY_PERIOD, |(_, asked)| asked.times.retry_period);
        let looked = beside::refuse(&shared.context.api, &chosen, period);
        unless_stopped(&shutdown, looked).await?;
    }
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
        metrics: Some(shared.context.metrics.clone()),
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
