//! The shipped controllers, built as one process would build them.

use std::time::Duration;

use longshore_apiserver::http::Service;
use longshore_cluster::limit::{Limit, limited};
use longshore_cluster::{Api, Context, Metrics};
use longshore_controllers::{attach, attacher, bind, protect, provision, schedule};
use longshore_csi::Client;
use longshore_csi::fake::Driver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::checks::Checks;
use crate::ledger::Ledger;
use crate::weather::Weather;
use crate::world::Tweak;
use crate::{INTENTS, wire};

/// Pause before a controller that could not start is started again.
const START_AGAIN: Duration = Duration::from_secs(1);

/// How often finalizers are taken off snapshots that nobody restores: sooner than in earnest, so that
/// a world is over sooner.
const SWEEP: Duration = Duration::from_secs(60);

/// What a process finds outside.
pub(crate) struct Outside {
    pub(crate) ledger: Ledger,
    pub(crate) weather: Weather,
    pub(crate) service: Service,
    pub(crate) driver: Driver,
    /// Looks at what the binder writes, where there is more than one claim.
    pub(crate) checks: Option<Checks>,
    pub(crate) snapshots: bool,
}

/// Which controllers one process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of them, as on one machine.
    All,
    /// What stands for the controller manager and the scheduler.
    Controllers,
    /// What stands beside the driver.
    Sidecars,
}

/// The settings of all controllers, for tests of the net itself to change.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Of the provisioner.
    pub provision: provision::Config,
    /// Of the binder.
    pub bind: bind::Config,
    /// Of the attach-detach controller.
    pub attach: attach::Config,
    /// Of the attacher.
    pub attacher: attacher::Config,
}

impl Settings {
    fn of(outside: &Outside, tweak: Tweak) -> Self {
        let mut all = Self::default();
        all.provision.leak_guard = Some(INTENTS.to_owned());
        // As many as one claim needs: a hundred sleeping workers would only slow the world down.
        all.provision.worker_threads = 4;
        // Most worlds are without snapshots, and even without their kinds.
        all.provision.snapshot_sweep = outside.snapshots.then_some(SWEEP);
        // As on one machine: a node that is only cut off keeps what it has.
        all.attach.disable_force_detach_on_timeout = true;
        tweak(&mut all);
        all
    }
}

/// One life of the process. Dropping it ends everything it runs.
pub(crate) struct Process {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    heart: CancellationToken,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What all controllers share.
struct Shared {
    context: Context,
    csi: Client,
    stop: CancellationToken,
}

impl Process {
    /// Starts all controllers with empty memory.
    pub(crate) fn start(outside: &Outside, part: Part, tweak: Tweak) -> Self {
        let (life, heart) = outside.ledger.be_born();
        let stop = CancellationToken::new();
        let client = wire::api_client(outside, life, &heart);
        let api = Api::new(limited(client, Limit::Adaptive, None));
        let shared = Shared {
            csi: outside.driver.on_node(&wire::caller(life), Default::default()).client(),
            context: Context::new(api, Metrics::new(), &stop),
            stop: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        let settings = Settings::of(outside, tweak);
        if part != Part::Sidecars {
            shared.start_binder(&mut tasks, settings.bind);
            shared.start_attach_detach(&mut tasks, settings.attach);
            shared.start_scheduler(&mut tasks);
            shared.start_protection(&mut tasks);
        }
        if part != Part::Controllers {
            shared.start_provisioner(&mut tasks, settings.provision);
            shared.start_attacher(&mut tasks, settings.attacher);
        }
        Self { tasks, stop, heart }
    }

    /// Waits until the process crashes.
    pub(crate) fn crash(&self) -> impl Future<Output = ()> + use<> {
        self.heart.clone().cancelled_owned()
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
    fn start_binder(&self, tasks: &mut JoinSet<()>, config: bind::Config) {
        tasks.spawn(bind::Binder::new(&self.context, config, None).run(self.stop.clone()));
    }

    fn start_provisioner(&self, tasks: &mut JoinSet<()>, config: provision::Config) {
        let parts = provision::Parts::new(&self.context, self.csi.clone(), crate::DRIVER);
        tasks.spawn(provision::run(config, parts, self.stop.clone()));
    }

    fn start_attach_detach(&self, tasks: &mut JoinSet<()>, config: attach::Config) {
        let controller = attach::AttachDetach::new(&self.context, config);
        tasks.spawn(controller.run(self.stop.clone()));
    }

    fn start_attacher(&self, tasks: &mut JoinSet<()>, config: attacher::Config) {
        let (context, driver, stop) = (self.context.clone(), self.csi.clone(), self.stop.clone());
        tasks.spawn(async move {
            // A sidecar that cannot ask its driver exits and is started again.
            loop {
                let attacher = attacher::Attacher::new(&context, driver.clone(), config.clone());
                if attacher.run(stop.clone()).await.is_ok() {
                    return;
                }
                tokio::time::sleep(START_AGAIN).await;
            }
        });
    }

    fn start_scheduler(&self, tasks: &mut JoinSet<()>) {
        let scheduler = schedule::Scheduler::new(&self.context, schedule::Config::default());
        tasks.spawn(scheduler.run(self.stop.clone()));
    }

    fn start_protection(&self, tasks: &mut JoinSet<()>) {
        let claims = protect::ClaimProtection::new(&self.context, true);
        tasks.spawn(claims.run(self.stop.clone()));
        tasks.spawn(protect::VolumeProtection::new(&self.context).run(self.stop.clone()));
    }
}
