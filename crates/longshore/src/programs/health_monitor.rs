//! `longshore health-monitor`, also as `csi-external-health-monitor-controller`.

use anyhow::Result;
use longshore_cluster::Context;
use longshore_controllers::health_monitor::{self, Abilities, HealthMonitor};
use tokio_util::sync::CancellationToken;

use super::sidecar::{self, SidecarFlags, read_gates};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, CsiFlags, Logging, UsageError};
use crate::process::unless_stopped;

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
        Ok(Self { sidecar: sidecar.config(common, csi, &gates)?, monitor })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.sidecar.logging)
    }

    async fn run(self) -> Result<()> {
        let Self { sidecar, monitor: config } = self;
        let sidecar = sidecar.begin(Self::OFFICIAL[0], config.timeout).await?;
        // Before the election: who cannot work shall not lead.
        let asked = async { Ok(Abilities::ask(&sidecar.csi).await?) };
        let abilities = unless_stopped(&sidecar.shutdown, asked).await?;
        let work = |stop: CancellationToken| {
            let context = Context::new(sidecar.api.clone(), sidecar.metrics.clone(), &stop);
            HealthMonitor::new(&context, sidecar.csi.clone(), config.clone())
                .run(abilities.clone(), stop)
        };
        sidecar.lead(&format!("external-health-monitor-leader-{}", sidecar.driver), work).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn refusals() {
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
