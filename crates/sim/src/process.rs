//! The shipped controllers, built as one process would build them.

use std::time::Duration;

use longshore_apiserver::http::Service;
use longshore_cluster::limit::{Limit, limited};
use longshore_cluster::{Api, Metrics, Recorder, SharedCaches};
use longshore_controllers::{attach, attacher, bind, protect, provision, schedule};
use longshore_csi::Client;
use longshore_csi::fake::Driver;
use longshore_provisioner::ProvisionMetrics;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;
use crate::weather::Weather;
use crate::world::Tweak;
use crate::{INTENTS, wire};

/// Pause before a controller that could not start is started again.
const START_AGAIN: Duration = Duration::from_secs(1);

/// What a process finds outside.
pub(crate) struct Outside {
    pub(crate) ledger: Ledger,
    pub(crate) weather: Weather,
    pub(crate) service: Service,
    pub(crate) driver: Driver,
}

/// One life of the process. Dropping it ends everything it runs.
pub(crate) struct Process {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What all controllers share.
struct Shared {
    api: Api,
    caches: SharedCaches,
    metrics: Metrics,
    csi: Client,
    stop: CancellationToken,
}

impl Process {
    /// Starts all controllers with empty memory.
    pub(crate) fn start(outside: &Outside, tweak: Tweak) -> Self {
        let (life, heart) = outside.ledger.be_born();
        let stop = CancellationToken::new();
        let client = wire::api_client(outside, life, &heart);
        let api = Api::new(limited(client, Limit::Adaptive, None));
        let shared = Shared {
            caches: SharedCaches::new(&api, &stop),
            metrics: Metrics::new(),
            csi: outside.driver.on_node(&wire::caller(life), Default::default()).client(),
            api,
            stop: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        shared.start_binder(&mut tasks);
        shared.start_provisioner(&mut tasks, tweak);
        shared.start_attach(&mut tasks);
        shared.start_scheduler(&mut tasks);
        shared.start_protection(&mut tasks);
        Self { tasks, stop }
    }

    /// Waits until a controller ends by itself.
    pub(crate) async fn ended(&mut self) -> String {
        match self.tasks.join_next().await {
            Some(Err(error)) => format!("a controller ended: {error}"),
            _ => "a controller ended by itself".to_owned(),
        }
    }
}

impl Shared {
    fn recorder(&self, component: &str) -> Recorder {
        Recorder::start(&self.api, component, "", &self.stop).0
    }

    fn start_binder(&self, tasks: &mut JoinSet<()>) {
        let recorder = self.recorder("persistentvolume-controller");
        let parts = bind::Parts::shared(&self.api, &self.caches, recorder, self.metrics.clone());
        tasks.spawn(bind::Binder::new(parts, bind::Config::default()).run(self.stop.clone()));
    }

    fn start_provisioner(&self, tasks: &mut JoinSet<()>, tweak: Tweak) {
        let parts = provision::Parts::shared(
            &self.api,
            self.csi.clone(),
            &self.caches,
            self.recorder(crate::DRIVER),
            ProvisionMetrics::register(&self.metrics),
            self.metrics.clone(),
        );
        let mut config =
            provision::Config { leak_guard: Some(INTENTS.to_owned()), ..Default::default() };
        // As many as one claim needs: a hundred sleeping workers would only slow the world down.
        config.worker_threads = 4;
        // These worlds are without snapshots, and even without their kinds.
        config.snapshot_sweep = None;
        tweak(&mut config);
        tasks.spawn(provision::run(config, parts, self.stop.clone()));
    }

    fn start_attach(&self, tasks: &mut JoinSet<()>) {
        let controller = attach::AttachDetach {
            api: self.api.clone(),
            caches: attach::Caches::shared(&self.caches),
            recorder: self.recorder(attach::COMPONENT),
            metrics: Some(self.metrics.clone()),
            config: attach::Config::default(),
        };
        tasks.spawn(controller.run(self.stop.clone()));
        let (api, driver, stop) = (self.api.clone(), self.csi.clone(), self.stop.clone());
        let caches = attacher::Caches::shared(&self.caches);
        tasks.spawn(async move {
            // A sidecar that cannot ask its driver exits and is started again.
            loop {
                let attacher = attacher::Attacher {
                    api: api.clone(),
                    driver: driver.clone(),
                    caches: caches.clone(),
                    metrics: None,
                    config: attacher::Config::default(),
                };
                if attacher.run(stop.clone()).await.is_ok() {
                    return;
                }
                tokio::time::sleep(START_AGAIN).await;
            }
        });
    }

    fn start_scheduler(&self, tasks: &mut JoinSet<()>) {
        let scheduler = schedule::Scheduler {
            api: self.api.clone(),
            caches: schedule::Caches::shared(&self.caches),
            recorder: self.recorder(schedule::COMPONENT),
            metrics: Some(self.metrics.clone()),
            config: schedule::Config::default(),
        };
        tasks.spawn(scheduler.run(self.stop.clone()));
    }

    fn start_protection(&self, tasks: &mut JoinSet<()>) {
        let claims = protect::ClaimProtection {
            api: self.api.clone(),
            caches: protect::ClaimProtectionCaches::shared(&self.caches),
            metrics: None,
            unused_condition: true,
        };
        tasks.spawn(claims.run(self.stop.clone()));
        let volumes = protect::VolumeProtection {
            api: self.api.clone(),
            volumes: self.caches.of(),
            metrics: None,
        };
        tasks.spawn(volumes.run(self.stop.clone()));
    }
}
