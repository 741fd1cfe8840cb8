//! One simulated cluster: built from a run, played to its end, and checked.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use longshore_apiserver::auth::{Identity, MASTERS};
use longshore_apiserver::http::Service;
use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{Api, ApiError};
use longshore_core::model::kinds::CsiDriver;
use longshore_csi::capabilities::ControllerCapability;
use longshore_csi::fake::Driver;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;

use crate::checks::Checks;
use crate::latency::Latency;
use crate::ledger::Ledger;
use crate::node::SimNode;
use crate::power::Power;
use crate::process::{Environment, Part, Process, Settings};
use crate::truth::Truth;
use crate::user::{User, UserError};
use crate::workload::Workload;
use crate::{
    DRIVER, Fault, NODES, Report, Scenario, TOPOLOGY_KEY, changes, snapshot_life, snapshots, wire,
};

/// How long a crashed process is away.
const AWAY: Duration = Duration::from_secs(2);

/// Changes the settings of the controllers, for tests of the simulator itself.
pub type Tweak = fn(&mut Settings);

/// One run of the simulator. The same run gives the same calls.
#[derive(Debug, Clone)]
pub struct Run {
    pub scenario: Scenario,
    /// Uids, names, and the moods of a hasty user.
    pub seed: u64,
    /// Which calls go wrong, by number, and how.
    pub faults: Vec<(u64, Fault)>,
    /// The user does not always wait.
    pub hasty: bool,
    /// The user deletes everything as soon as the first fault strikes.
    pub gives_up: bool,
    /// The driver is slow now and then, and watches are late.
    pub slow: bool,
    /// The sidecars are a process of their own.
    pub apart: bool,
    pub tweak: Tweak,
}

impl Run {
    /// A run in which nothing goes wrong.
    #[must_use]
    pub fn calm(scenario: Scenario) -> Self {
        Self {
            scenario,
            seed: 1,
            faults: Vec::new(),
            hasty: false,
            gives_up: false,
            slow: false,
            apart: false,
            tweak: |_| {},
        }
    }

    /// Plays the run on this thread.
    #[must_use]
    pub fn play(&self) -> Report {
        // Jitter in backoffs comes from the thread's generator.
        fastrand::seed(self.seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without any device");
        runtime.block_on(self.play_here())
    }

    async fn play_here(&self) -> Report {
        let world = World::new(self).await.expect("the first objects of an empty API");
        let failure = failure_of(world.play(self)).await;
        world.driver.clear_hook();
        let mut report = Report {
            run: self.clone(),
            lines: world.ledger.lines(),
            notes: world.ledger.notes(),
            took: world.ledger.elapsed(),
            processes: world.ledger.processes(),
            failure: None,
        };
        let mut problems: Vec<String> = world.ledger.breaches();
        problems.extend(world.driver.violations());
        problems.extend(failure);
        if !problems.is_empty() {
            report.failure = Some(problems.join("; "));
        }
        world.server.shutdown().await;
        report
    }
}

/// Why a run failed, if it did. A panic is a failure of its run: it must not end the whole sweep
/// without saying which run it was.
async fn failure_of(run: impl Future<Output = Option<UserError>>) -> Option<String> {
    match AssertUnwindSafe(run).catch_unwind().await {
        Ok(failure) => failure.map(|failure| failure.to_string()),
        Err(panic) => Some(format!("the run panicked: {}", panic_text(panic.as_ref()))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

/// As the example `replay` takes it.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, faults, .. } = self;
        write!(f, "{scenario} seed={seed}")?;
        let moods = [
            (self.hasty, "hasty"),
            (self.gives_up, "gives-up"),
            (self.slow, "slow"),
            (self.apart, "apart"),
        ];
        for (_, mood) in moods.iter().filter(|(is, _)| *is) {
            write!(f, " {mood}")?;
        }
        for (number, fault) in faults {
            write!(f, " {number}:{fault}")?;
        }
        Ok(())
    }
}

pub(crate) struct World {
    server: ApiServer,
    service: Service,
    pub(crate) driver: Driver,
    pub(crate) truth: Truth,
    pub(crate) ledger: Ledger,
    latency: Latency,
    pub(crate) api: Api,
    pub(crate) power: Power,
    checks: Checks,
}

impl World {
    async fn new(run: &Run) -> Result<Self, ApiError> {
        let snapshot_kinds = run.scenario.takes_snapshots();
        let config = Config { snapshot_kinds, ..Config::deterministic(run.seed) };
        let server = ApiServer::open(config).await.expect("a server in memory opens");
        let driver = make_driver(run);
        let truth = Truth::new(&server, &driver, run.scenario.takes_snapshots());
        let ledger = Ledger::new(run.faults.iter().copied());
        let power = Power::default();
        let latency = Latency::new(run.scenario.create_delay(), run.slow.then_some(run.seed));
        let checks = Checks {
            truth: truth.clone(),
            ledger: ledger.clone(),
            latency: latency.clone(),
            power: power.clone(),
            changes: run.scenario.changes().then(changes::Memory::default),
        };
        wire::hook_driver(&driver, &ledger, checks.clone());
        let api = Api::new(server.client());
        let object = json!({
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": run.scenario.attaches()},
        });
        api.create::<CsiDriver>(&object).await?;
        if run.scenario.has_snapshots() {
            snapshots::define(&api).await?;
        }
        if run.scenario.changes() {
            changes::define(&api).await?;
        }
        let service = server.service_as(Identity::new("controllers", [MASTERS]));
        Ok(Self { server, service, driver, truth, ledger, latency, api, power, checks })
    }

    async fn play(&self, run: &Run) -> Option<UserError> {
        let mut others = JoinSet::new();
        for name in NODES {
            let node = SimNode::new(name, self);
            node.register().await.expect("a node makes itself known");
            others.spawn(node.run());
        }
        let parts: &[Part] = match run.apart {
            true => &[Part::Controllers, Part::Sidecars],
            false => &[Part::All],
        };
        let is_checked = run.scenario.has_many_claims()
            || run.scenario.changes()
            || run.scenario.takes_snapshots();
        for part in parts {
            let environment = Environment {
                ledger: self.ledger.clone(),
                latency: self.latency.clone(),
                service: self.service.clone(),
                driver: self.driver.clone(),
                checks: is_checked.then(|| self.checks.clone()),
                snapshots: run.scenario.has_snapshots() || run.scenario.takes_snapshots(),
                takes_snapshots: run.scenario.takes_snapshots(),
                changes: run.scenario.changes(),
            };
            others.spawn(keep_alive(environment, *part, run.tweak));
        }
        let haste = run.hasty.then(|| Mutex::new(fastrand::Rng::with_seed(run.seed)));
        let user = User {
            api: self.api.clone(),
            truth: self.truth.clone(),
            ledger: self.ledger.clone(),
            haste,
            gives_up: run.gives_up,
        };
        if run.scenario == Scenario::Workload {
            return Workload::new(user, self.power.clone(), run).live().await.err();
        }
        run.scenario.play(&user, run.seed).await.err()
    }
}

/// Runs some of the controllers; starts them again after a crash.
async fn keep_alive(environment: Environment, part: Part, tweak: Tweak) {
    let ledger = &environment.ledger;
    loop {
        let mut process = Process::start(&environment, part, tweak);
        let crash = process.crash();
        tokio::select! {
            biased;
            () = crash => {}
            how = process.ended() => {
                // None may end before the process is killed.
                ledger.breach(how);
                process.crash().await;
            }
        }
        drop(process);
        ledger.note(format!("the process has crashed: {part:?}"));
        tokio::time::sleep(AWAY).await;
    }
}

fn make_driver(run: &Run) -> Driver {
    let scenario = run.scenario;
    let segments = |name: &str| [(TOPOLOGY_KEY.to_owned(), name.to_owned())].into();
    let driver = Driver::with_node(DRIVER, NODES[0], Default::default());
    if scenario.has_topology(run.seed) {
        driver.with_pools(NODES.map(|name| (segments(name), None)));
    }
    driver.configure(|config| {
        if scenario.changes() {
            changes::configure(config, run.seed);
        }
        if scenario.takes_snapshots() {
            snapshot_life::configure(config, run.seed);
        }
        if !scenario.attaches() {
            config.controller.remove(ControllerCapability::PublishUnpublishVolume);
        }
    });
    driver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_failure_of_its_run() {
        let failure = failure_of(async { panic!("on {}", "purpose") }).now_or_never().flatten();
        assert_eq!(failure.as_deref(), Some("the run panicked: on purpose"));
        assert_eq!(failure_of(async { None }).now_or_never().flatten(), None);
    }
}
