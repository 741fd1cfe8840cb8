//! `longshore snapshot-controller`, also as `snapshot-controller`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use longshore_cluster::{
    Api, Context, Metrics,
    election::{self, ElectionConfig, OnLoss},
    shutdown,
};
use longshore_controllers::snapshot_controller::{self, SnapshotController};
use longshore_core::backoff::Backoff;
use longshore_core::model::Kind;
use longshore_core::model::kinds::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::sidecar::{self, client_config, read_gates, serve};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, Diagnostics, DiagnosticsFlags, Election, ElectionFlags, Environment, KlogFlags,
    KubeAccess, KubeFlags, Logging, UsageError, gates_help, log_other_kubeconfig, values,
};
use crate::process::unless_stopped;

/// The lease that the official program takes, too.
const LEASE: &str = "snapshot-controller-leader";

/// Flags that snapshot-controller once had, and what replaced them.
const REMOVED: &[(&str, &str)] = &[GROUPS_BY_FLAG];

/// The flag by which the snapshot programs once took group snapshots on.
pub(super) const GROUPS_BY_FLAG: (&str, &str) =
    ("enable-volume-group-snapshots", "use --feature-gates=CSIVolumeGroupSnapshot=false or =true");

/// The kinds without which there is nothing to do.
const KINDS: [&str; 3] =
    [VolumeSnapshot::KIND, VolumeSnapshotClass::KIND, VolumeSnapshotContent::KIND];

/// How long the kinds are waited for at least.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Pauses between questions for the kinds.
const ASK_AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));

/// Flags of `longshore snapshot-controller`, named as snapshot-controller names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    controller: snapshot_controller::Config,
    /// How long to wait for the snapshot kinds to be defined before the program ends; at least 1s.
    #[arg(long, default_value = "30s", value_parser = values::duration)]
    retry_crd_interval_max: Duration,
    #[arg(long, value_name = "GATES", help = gates_help(&[snapshot_controller::GATES, sidecar::GATES]))]
    feature_gates: Vec<String>,
    #[command(flatten)]
    kube: KubeFlags,
    #[command(flatten)]
    election: ElectionFlags,
    #[command(flatten)]
    diagnostics: DiagnosticsFlags,
    #[command(flatten)]
    klog: KlogFlags,
    #[arg(skip = Environment::of_process())]
    pub(super) environment: Environment,
}

/// What the controller runs on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    logging: Logging,
    kube: KubeAccess,
    controller: snapshot_controller::Config,
    wait_for_kinds: Duration,
    election: Option<Election>,
    release_lease_on_exit: bool,
    diagnostics: Option<Diagnostics>,
}

impl Program for Config {
    const NAME: &'static str = "snapshot-controller";
    const OFFICIAL: &'static [&'static str] = &["snapshot-controller"];
    const SUMMARY: &'static str =
        "Bind snapshots to what drivers have taken (as snapshot-controller)";
    const EXAMPLES: &'static str = "longshore snapshot-controller --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] =
        &["rbac/snapshot-controller.yaml", "rbac/leader-election.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            controller,
            retry_crd_interval_max,
            feature_gates,
            kube,
            election,
            diagnostics,
            klog,
            environment,
        } = flags;
        let gates = read_gates(snapshot_controller::GATES, &feature_gates)?;
        let mut logging = Logging::try_from(common)?.with(klog)?;
        logging.notes.extend_from_slice(gates.notes());
        let election = election.election(&environment)?;
        let elects = election.is_some();
        Ok(Self {
            logging,
            kube: kube.access(None),
            controller: controller.with(&gates)?,
            wait_for_kinds: retry_crd_interval_max.max(SHORTEST_WAIT),
            election,
            release_lease_on_exit: gates.on(sidecar::RELEASE_ON_EXIT),
            diagnostics: diagnostics.endpoint()?.map(|one| one.with_election(elects)),
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> Result<()> {
        let Self { kube, controller, wait_for_kinds, election, release_lease_on_exit, .. } = self;
        let shutdown = shutdown::on_signals().context("cannot listen for signals")?;
        let metrics = Metrics::new();
        log_other_kubeconfig(kube.kubeconfig.as_deref());
        let client = client_config(kube, Self::OFFICIAL[0], &metrics);
        let api = Api::new(client.client().await?);
        unless_stopped(&shutdown, find_kinds(&api, wait_for_kinds)).await?;
        let status = election::Status::default();
        if let Some(diagnostics) = &self.diagnostics {
            serve(diagnostics, &metrics, &status, &shutdown).await?;
        }
        crate::process::memory::keep_small(shutdown.clone());
        let work = |stop: CancellationToken| {
            let context = Context::new(api.clone(), metrics.clone(), &stop);
            SnapshotController::new(&context, controller.clone()).run(stop)
        };
        let Some(asked) = election else {
            work(shutdown).await;
            return Ok(());
        };
        let namespace = asked.namespace.unwrap_or_else(election::default_namespace);
        let config = ElectionConfig {
            lease_duration: asked.times.lease_duration,
            renew_deadline: asked.times.renew_deadline,
            retry_period: asked.times.retry_period,
            labels: asked.labels,
            identity: election::host_identity(),
            on_loss: OnLoss::Exit,
            release_on_exit: release_lease_on_exit,
            metrics: Some(metrics.clone()),
            status,
            ..ElectionConfig::new(Api::new(client.lease_client().await?), namespace, LEASE)
        };
        election::run(config, &shutdown, work).await.map_err(Into::into)
    }
}

/// Waits until the API server has the snapshot kinds.
async fn find_kinds(api: &Api, longest: Duration) -> Result<()> {
    let group = VolumeSnapshot::api_version();
    let until = Instant::now() + longest;
    let mut pauses = ASK_AGAIN.series();
    loop {
        let missing = match api.client().list_api_group_resources(&group).await {
            Ok(list) => {
                let there: BTreeSet<&str> =
                    list.resources.iter().map(|one| one.kind.as_str()).collect();
                let missing: Vec<&str> =
                    KINDS.into_iter().filter(|kind| !there.contains(kind)).collect();
                if missing.is_empty() {
                    return Ok(());
                }
                format!("{} not defined", missing.join(", "))
            }
            Err(error) => error.to_string(),
        };
        let pause = pauses.pause();
        if Instant::now() + pause > until {
            bail!(
                "the API server does not have the kinds of {group} ({missing}): apply deploy/crds, then start again"
            );
        }
        tracing::info!(missing, "waiting for the snapshot kinds");
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        flags.environment = Environment::default();
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_loop() {
        let config = config("").unwrap();
        assert_eq!(config.controller, snapshot_controller::Config::default());
        assert_eq!(config.wait_for_kinds, Duration::from_secs(30));
        assert!(config.election.is_none() && config.diagnostics.is_none());
    }

    #[test]
    fn values_arrive() {
        let line = "--resync-period=1m --worker-threads=3 --retry-interval-start=2s --retry-interval-max=1m \
            --enable-distributed-snapshotting --prevent-volume-mode-conversion=false --http-endpoint=:8080 \
            --metrics-path=/m --leader-election --leader-election-namespace=here \
            --feature-gates=CSIVolumeGroupSnapshot=false,ReleaseLeaderElectionOnExit=true";
        let config = config(line).unwrap();
        let controller = &config.controller;
        assert_eq!(controller.resync_period, Duration::from_secs(60));
        assert_eq!(controller.worker_threads.get(), 3);
        assert_eq!(controller.retry_interval_start, Duration::from_secs(2));
        assert!(controller.enable_distributed_snapshotting && !controller.groups);
        assert!(!controller.prevent_volume_mode_conversion && config.release_lease_on_exit);
        assert_eq!(config.election.unwrap().namespace.as_deref(), Some("here"));
        assert_eq!(config.diagnostics.unwrap().metrics_path, "/m");
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("--csi-address=/x", "--csi-address"),
            ("--worker-threads=0", "--worker-threads"),
            ("--retry-interval-start=10m", "retry-interval"),
            ("--enable-volume-group-snapshots=true", "use --feature-gates=CSIVolumeGroupSnapshot"),
            ("--feature-gates=Topology=true", "there is no feature gate `Topology`"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
        // case: snapshotter/62
        let none = config("--retry-crd-interval-max=0").unwrap();
        assert_eq!(none.wait_for_kinds, Duration::from_secs(1));
    }
}
