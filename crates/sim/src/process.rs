//! The shipped controllers, built as one process would build them.

use std::{num::NonZeroU32, time::Duration};

use longshore_apiserver::http::Service;
use longshore_cluster::limit::{Limit, limited};
use longshore_cluster::{Api, Context, Metrics};
use longshore_controllers::{
    Driver as Known, attach, attacher, bind, protect, provision,
    resize::{self, Abilities, Resizer, fault::Faults},
    schedule,
    snapshot_controller::{self, SnapshotController},
    snapshotter::{self, Snapshotter},
};
use longshore_csi::Client;
use longshore_csi::fake::Driver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::checks::Checks;
use crate::latency::Latency;
use crate::ledger::Ledger;
use crate::world::Tweak;
use crate::{INTENTS, wire};

/// Pause before a controller that could not start is started again.
const START_AGAIN: Duration = Duration::from_secs(1);

/// Deadline of the calls that ask the driver who it is and what it can do.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a snapshotter waits for the driver: less than in a program, so that a run ends sooner.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// As many workers as one user's objects need.
const FEW: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);

/// Period after which finalizers are removed from snapshots that no claim restores: shorter than
/// the shipped default, so that a run ends sooner.
const SWEEP: Duration = Duration::from_secs(60);

/// What a process of controllers is connected to.
pub(crate) struct Environment {
    pub(crate) ledger: Ledger,
    pub(crate) latency: Latency,
    pub(crate) service: Service,
    pub(crate) driver: Driver,
    /// Checks what the binder writes, where there is more than one claim.
    pub(crate) checks: Option<Checks>,
    pub(crate) snapshots: bool,
    /// The programs for snapshots run.
    pub(crate) takes_snapshots: bool,
    /// Claims grow and change their class.
    pub(crate) changes: bool,
}

/// Which controllers one process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of them, as on one machine.
    All,
    /// Those of the controller manager and the scheduler.
    Controllers,
    /// Those of the sidecars beside the driver.
    Sidecars,
}

/// The settings of all controllers. Tests of the simulator change them to plant defects.
#[derive(Debug, Clone)]
pub struct Settings {
    pub provision: provision::Config,
    pub bind: bind::Config,
    pub attach: attach::Config,
    pub attacher: attacher::Config,
    pub resize: resize::Config,
    pub resize_faults: Faults,
    pub snapshotter: snapshotter::Config,
    pub snapshot_controller: snapshot_controller::Config,
}

impl Settings {
    fn of(environment: &Environment, tweak: Tweak) -> Self {
        let mut all = Self {
            provision: provision::Config::default(),
            bind: bind::Config::default(),
            attach: attach::Config::default(),
            attacher: attacher::Config::default(),
            resize: resize::Config::default(),
            resize_faults: Faults::NONE,
            snapshotter: snapshotter::Config {
                leak_guard: true,
                timeout: CALL_TIMEOUT,
                worker_threads: FEW,
                ..snapshotter::Config::default()
            },
            snapshot_controller: snapshot_controller::Config {
                worker_threads: FEW,
                ..snapshot_controller::Config::default()
            },
        };
        all.provision.leak_guard = Some(INTENTS.to_owned());
        all.provision.check_volumes_in_use = true;
        // As many as one claim needs: a hundred sleeping workers would only slow the run down.
        all.provision.worker_threads = 4;
        // Most runs have neither snapshots nor their kinds.
        all.provision.snapshot_sweep = environment.snapshots.then_some(SWEEP);
        // As on one machine: a node that is only cut off keeps what it has.
        all.attach.disable_force_detach_on_timeout = true;
        all.attach.await_verdict = true;
        tweak(&mut all);
        all
    }
}

/// One process of controllers, from its start to its crash. Dropping it ends everything it runs.
pub(crate) struct Process {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    killed: CancellationToken,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Shared {
    context: Context,
    csi: Client,
    stop: CancellationToken,
}

impl Process {
    /// Starts all controllers with empty memory.
    pub(crate) fn start(environment: &Environment, part: Part, tweak: Tweak) -> Self {
        let (number, killed) = environment.ledger.start_process();
        let stop = CancellationToken::new();
        let client = wire::api_client(environment, number, &killed);
        let api = Api::new(limited(client, Limit::Adaptive, None));
        let shared = Shared {
            csi: environment.driver.on_node(&wire::caller(number), Default::default()).client(),
            context: Context::new(api, Metrics::new(), &stop),
            stop: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        let settings = Settings::of(environment, tweak);
        if part != Part::Sidecars {
            shared.start_binder(&mut tasks, settings.bind);
            shared.start_attach_detach(&mut tasks, settings.attach);
            shared.start_scheduler(&mut tasks);
            shared.start_protection(&mut tasks);
            if environment.takes_snapshots {
                let controller =
                    SnapshotController::new(&shared.context, settings.snapshot_controller);
                tasks.spawn(controller.run(shared.stop.clone()));
            }
        }
        if part != Part::Controllers {
            shared.start_provisioner(&mut tasks, settings.provision);
            shared.start_attacher(&mut tasks, settings.attacher);
            if environment.changes {
                shared.start_resizer(&mut tasks, settings.resize, settings.resize_faults);
            }
            if environment.takes_snapshots {
                let csi = shared.csi.clone();
                let snapshotter = Snapshotter::new(&shared.context, csi, settings.snapshotter);
                tasks.spawn(snapshotter.run_with_retries(shared.stop.clone()));
            }
        }
        Self { tasks, stop, killed }
    }

    /// Waits until the process crashes.
    pub(crate) fn crash(&self) -> impl Future<Output = ()> + use<> {
        self.killed.clone().cancelled_owned()
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
                if let Ok(known) = Known::describe(&driver, IDENTITY_TIMEOUT).await {
                    let attacher = attacher::Attacher::new(&context, driver, config);
                    return attacher.run(known, stop).await;
                }
                tokio::time::sleep(START_AGAIN).await;
            }
        });
    }

    fn start_resizer(&self, tasks: &mut JoinSet<()>, config: resize::Config, faults: Faults) {
        let (context, driver, stop) = (self.context.clone(), self.csi.clone(), self.stop.clone());
        tasks.spawn(async move {
            loop {
                if let Ok(able) = Abilities::ask(&driver, IDENTITY_TIMEOUT).await {
                    let resizer = Resizer::new(&context, driver, config, able).with_faults(faults);
                    return resizer.run(stop).await;
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
