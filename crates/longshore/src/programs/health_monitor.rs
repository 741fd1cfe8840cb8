//! `longshore health-monitor`, also as `csi-external-health-monitor-controller`.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use longshore_cluster::Context;
use longshore_cluster::cache::Needs;
use longshore_controllers::health_monitor::{self, Abilities, AbilitiesError, HealthMonitor};
use longshore_core::model::kinds::{Claim, Volume};
use longshore_core::provision::DriverCapabilities;

use super::sidecar::{
    self, Controller, Reached, Ready, Right, SidecarFlags, Unable, alone, read_gates,
};
use super::sidecars::{Included, Member};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, CsiFlags, Gate, Logging, Throttle, UsageError};

/// Flags that csi-external-health-monitor-controller once had, and what replaced them.
const REMOVED: &[(&str, &str)] = &[sidecar::NO_CONNECTION_TIMEOUT, sidecar::NO_ELECTION_TYPE];

/// Flags of `longshore health-monitor`, named as csi-external-health-monitor-controller names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    #[command(flatten)]
    monitor: health_monitor::Config,
    #[command(flatten)]
    pub(super) sidecar: SidecarFlags,
}

/// What the health monitor runs on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    sidecar: sidecar::Config,
    monitor: health_monitor::Config,
}

impl Program for Config {
    const NAME: &'static str = "health-monitor";
    const OFFICIAL: &'static [&'static str] = &["csi-external-health-monitor-controller"];
    const SUMMARY: &'static str = "Say on claims what a CSI driver reports of their volumes (as csi-external-health-monitor-controller)";
    const EXAMPLES: &'static str =
        "longshore health-monitor --csi-address=/run/csi/socket --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] =
        &["rbac/health-monitor.yaml", "rbac/leader-election.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, csi, monitor, sidecar } = flags;
        // The original has no flag for gates.
        let gates = read_gates(&[], &[])?;
        let monitor = monitor.with(&sidecar.environment)?;
        let sidecar = sidecar.config(common, csi, &gates)?;
        if monitor.node.is_some() && sidecar.election.is_some() {
            return Err(UsageError::Together(sidecar::no_lease_per_node(Self::NAME)));
        }
        Ok(Self { sidecar, monitor })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.sidecar.logging)
    }

    async fn run(self) -> Result<()> {
        alone(self.sidecar.clone(), Self::OFFICIAL[0], self, Unable::into).await
    }
}

/// What saying on claims what the driver reports needs.
const RIGHTS: &[Right] = &[
    Right::new("", "persistentvolumes", &["list", "watch"]),
    Right::new("", "persistentvolumeclaims", &["list", "watch"]),
    Right::new("", "events", &["create"]),
];

impl Controller for Config {
    fn timeout(&self) -> Duration {
        self.monitor.timeout
    }

    fn throttle(&self) -> Throttle {
        self.sidecar.kube.throttle
    }

    fn lock(&self, driver: &str) -> String {
        format!("external-health-monitor-leader-{driver}")
    }

    fn rights(&self, _can: &DriverCapabilities) -> &'static [Right] {
        RIGHTS
    }

    fn prepare<'a>(&'a self, reached: &'a Reached) -> BoxFuture<'a, Result<Ready, Unable>> {
        async {
            let (csi, config) = (reached.csi.clone(), self.monitor.clone());
            let abilities = Abilities::ask(&csi).await.map_err(unable)?;
            let needs = |context: &Context| Needs::of::<Volume>(context).and::<Claim>(context);
            Ok(Ready::new(needs, move |context, stop| {
                let monitor = HealthMonitor::new(context, csi.clone(), config.clone());
                monitor.run(abilities.clone(), stop)
            }))
        }
        .boxed()
    }
}

/// Beside a driver that reports no conditions the program ends, as its original does, and is idle among others.
fn unable(error: AbilitiesError) -> Unable {
    match error {
        AbilitiesError::NoController(_)
        | AbilitiesError::NoCondition(_)
        | AbilitiesError::NoCall(_) => Unable::Idle(error.to_string()),
        AbilitiesError::Name(_) | AbilitiesError::Call(_) => Unable::Failed(error.into()),
    }
}

impl Included for Config {
    // The original has no flag for gates.
    const GATES: &'static [&'static [Gate]] = &[];

    fn member(self) -> Result<Member, UsageError> {
        Ok(Member::Controller(Box::new(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        Config::from_flags(flags(line, REMOVED)?).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_loop() {
        assert_eq!(config("").unwrap().monitor, health_monitor::Config::default());
    }

    #[test]
    fn values_arrive() {
        let line = "--timeout=3s --resync=1m --monitor-interval 2m -list-volumes-interval=30s \
             --volume-list-add-interval=40s --node-list-add-interval=50s --worker-threads=3 --enable-node-watcher \
             --leader-election --http-endpoint=:8080";
        let Config { sidecar, monitor } = config(line).unwrap();
        let seconds = |time: Duration| time.as_secs();
        assert_eq!((seconds(monitor.timeout), seconds(monitor.resync)), (3, 60));
        assert_eq!(seconds(monitor.monitor_interval), 120);
        assert_eq!(seconds(monitor.list_volumes_interval), 30);
        assert_eq!(seconds(monitor.volume_list_add_interval), 40);
        assert_eq!(seconds(monitor.node_list_add_interval), 50);
        assert!(monitor.worker_threads.get() == 3 && monitor.enable_node_watcher);
        assert!(sidecar.election.is_some());
    }

    #[test]
    fn a_monitor_on_each_node_needs_a_node_and_no_lease() {
        let with_node = |line: &str, node: Option<&str>| {
            let mut flags: Flags = flags(line, REMOVED)?;
            flags.sidecar.environment.node_name = node.map(str::to_owned);
            Config::from_flags(flags).map_err(|error| error.to_string())
        };
        let monitor = with_node("--node-deployment", Some("n1")).unwrap().monitor;
        assert_eq!(monitor.node, Some("n1".into()));
        assert_eq!(with_node("", Some("n1")).unwrap().monitor.node, None);
        for (line, node, part) in [
            ("--node-deployment", None, "NODE_NAME environment variable must be set"),
            ("--node-deployment --leader-election", Some("n1"), "--leader-election cannot be used"),
            ("--node-deployment --enable-node-watcher", Some("n1"), "--enable-node-watcher cannot"),
        ] {
            let sentence = with_node(line, node).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("--worker-threads=0", "it must be at least 1"),
            ("--feature-gates=ReleaseLeaderElectionOnExit=true", "unknown flag --feature-gates"),
            ("--connection-timeout=1s", "use --timeout"),
            ("--monitor-interval=0", "--monitor-interval"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
