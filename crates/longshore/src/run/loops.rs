//! The cluster's loops, each built from the process's one client and one set of caches.

use anyhow::{Context as _, Result};
use longshore_cluster::{
    Api, Metrics, Recorder, SharedCaches,
    config::ClientConfig,
    election::{self, ElectionConfig, OnLoss},
    shutdown,
};
use longshore_controllers::{attach, bind, protect, schedule};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::controllers::{Config, Controller};

/// What all loops of a process share.
#[derive(Clone)]
pub struct Shared {
    /// The API.
    pub api: Api,
    /// One cache per kind.
    pub caches: SharedCaches,
    /// Where everything is counted.
    pub metrics: Metrics,
    /// Ends the recorders.
    pub shutdown: CancellationToken,
}

impl Shared {
    pub fn new(api: Api, metrics: Metrics, shutdown: &CancellationToken) -> Self {
        let caches = SharedCaches::new(&api, shutdown);
        Self { api, caches, metrics, shutdown: shutdown.clone() }
    }

    /// A recorder for one component's events.
    pub fn recorder(&self, component: &str) -> Recorder {
        Recorder::start(&self.api, component, "", &self.shutdown).0
    }

    /// Runs one controller until `stop`.
    pub async fn run(&self, controller: Controller, stop: CancellationToken) {
        match controller {
            Controller::Binder => self.binder().run(stop).await,
            Controller::AttachDetach => self.attach_detach().run(stop).await,
            Controller::Ephemeral => self.ephemeral().run(stop).await,
            Controller::ClaimProtection => self.claim_protection().run(stop).await,
            Controller::VolumeProtection => self.volume_protection().run(stop).await,
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
        };
        bind::Binder::new(parts, bind::Config::default())
    }

    fn attach_detach(&self) -> attach::AttachDetach {
        attach::AttachDetach {
            api: self.api.clone(),
            caches: attach::Caches::shared(&self.caches),
            recorder: self.recorder("attachdetach-controller"),
            metrics: Some(self.metrics.clone()),
            config: attach::Config::default(),
        }
    }

    fn ephemeral(&self) -> protect::EphemeralClaims {
        protect::EphemeralClaims {
            api: self.api.clone(),
            pods: self.caches.of(),
            claims: self.caches.of(),
            recorder: self.recorder("ephemeral_volume"),
            metrics: Some(self.metrics.clone()),
        }
    }

    fn claim_protection(&self) -> protect::ClaimProtection {
        protect::ClaimProtection {
            api: self.api.clone(),
            caches: protect::ClaimProtectionCaches::shared(&self.caches),
            metrics: Some(self.metrics.clone()),
            unused_condition: true,
        }
    }

    fn volume_protection(&self) -> protect::VolumeProtection {
        protect::VolumeProtection {
            api: self.api.clone(),
            volumes: self.caches.of(),
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
pub async fn run(config: Config) -> Result<()> {
    let shutdown = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new();
    let client = ClientConfig {
        user_agent: Some(format!("longshore-controllers/{}", env!("CARGO_PKG_VERSION"))),
        metrics: Some(metrics.clone()),
        ..ClientConfig::from_kubeconfig(&config.kubeconfig)
    };
    let shared = Shared::new(Api::new(client.client().await?), metrics, &shutdown);
    let chosen: Vec<Controller> = config.controllers.into_iter().collect();
    if !config.leader_elect {
        run_all(&shared, &chosen, shutdown).await;
        return Ok(());
    }
    let lease = ElectionConfig {
        on_loss: OnLoss::Exit,
        metrics: Some(shared.metrics.clone()),
        // Not kube-controller-manager's lease: it goes on running the controllers that are not ours.
        ..ElectionConfig::new(
            Api::new(client.lease_client().await?),
            "kube-system",
            "longshore-controllers",
        )
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
