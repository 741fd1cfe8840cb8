//! `longshore snapshotter`, also as `csi-snapshotter`.

use std::time::Duration;

use anyhow::Result;
use futures::{FutureExt as _, future::BoxFuture};
use longshore_cluster::{Context, cache::Needs};
use longshore_controllers::snapshotter::{self, Snapshotter};
use longshore_core::model::kinds::{VolumeSnapshotClass, VolumeSnapshotContent};
use longshore_core::provision::DriverCapabilities;

use super::sidecar::{
    self, Controller, Reached, Ready, Right, SidecarFlags, Unable, alone, read_gates,
};
use super::sidecars::{Included, Member};
use super::snapshot_controller::GROUPS_BY_FLAG;
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, CsiFlags, Gate, Logging, Throttle, UsageError, gates_help};

/// Flags that csi-snapshotter once had, and what replaced them.
const REMOVED: &[(&str, &str)] =
    &[GROUPS_BY_FLAG, sidecar::NO_CONNECTION_TIMEOUT, sidecar::NO_ELECTION_TYPE];

/// Flags of `longshore snapshotter`, named as csi-snapshotter names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    #[command(flatten)]
    snapshotter: snapshotter::Config,
    #[arg(long, value_name = "GATES", help = gates_help(&[snapshotter::GATES, sidecar::GATES]))]
    feature_gates: Vec<String>,
    #[command(flatten)]
    pub(super) sidecar: SidecarFlags,
}

/// What the snapshotter runs on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    sidecar: sidecar::Config,
    snapshotter: snapshotter::Config,
}

impl Program for Config {
    const NAME: &'static str = "snapshotter";
    const OFFICIAL: &'static [&'static str] = &["csi-snapshotter"];
    const SUMMARY: &'static str =
        "Take and delete snapshots through a CSI driver (as csi-snapshotter)";
    const EXAMPLES: &'static str =
        "longshore snapshotter --csi-address=/run/csi/socket --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["rbac/snapshotter.yaml", "rbac/leader-election.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, csi, snapshotter, feature_gates, sidecar } = flags;
        let gates = read_gates(snapshotter::GATES, &feature_gates)?;
        let snapshotter = snapshotter.with(&gates, &sidecar.environment)?;
        let sidecar = sidecar.config(common, csi, &gates)?;
        if snapshotter.scope.is_some() && sidecar.election.is_some() {
            return Err(UsageError::AsOfficial(sidecar::no_lease_per_node(Self::NAME)));
        }
        Ok(Self { sidecar, snapshotter })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.sidecar.logging)
    }

    async fn run(self) -> Result<()> {
        alone(self.sidecar.clone(), Self::OFFICIAL[0], self, Unable::into).await
    }
}

/// What taking and deleting snapshots needs. Group snapshots are left out: not every cluster has them.
const RIGHTS: &[Right] = &[
    Right::new("snapshot.storage.k8s.io", "volumesnapshotclasses", &["list", "watch"]),
    Right::new(
        "snapshot.storage.k8s.io",
        "volumesnapshotcontents",
        &["get", "list", "watch", "patch"],
    ),
    Right::new("snapshot.storage.k8s.io", "volumesnapshotcontents/status", &["patch"]),
];

impl Controller for Config {
    fn timeout(&self) -> Duration {
        self.snapshotter.timeout
    }

    fn throttle(&self) -> Throttle {
        self.sidecar.kube.throttle
    }

    fn lock(&self, driver: &str) -> String {
        format!("external-snapshotter-leader-{driver}")
    }

    fn lacks(&self, can: &DriverCapabilities) -> Option<&'static str> {
        (!can.create_delete_snapshot).then_some("CREATE_DELETE_SNAPSHOT")
    }

    fn rights(&self, _can: &DriverCapabilities) -> &'static [Right] {
        RIGHTS
    }

    fn prepare<'a>(&'a self, reached: &'a Reached) -> BoxFuture<'a, Result<Ready, Unable>> {
        async {
            let (csi, config) = (reached.csi.clone(), self.snapshotter.clone());
            let asked = snapshotter::ask(&csi, config.timeout).await;
            let driver = asked.map_err(anyhow::Error::from)?;
            // With a scope, contents are in a cache of its own.
            let all = config.scope.is_none();
            let needs = move |context: &Context| {
                let classes = Needs::of::<VolumeSnapshotClass>(context);
                if all { classes.and::<VolumeSnapshotContent>(context) } else { classes }
            };
            Ok(Ready::new(needs, move |context, stop| {
                let snapshotter = Snapshotter::new(context, csi.clone(), config.clone());
                snapshotter.run(driver.clone(), stop)
            }))
        }
        .boxed()
    }
}

impl Included for Config {
    const GATES: &'static [&'static [Gate]] = &[snapshotter::GATES, sidecar::GATES];

    fn member(self) -> Result<Member, UsageError> {
        Ok(Member::Controller(Box::new(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;
    use crate::flags::Environment;

    fn config_on(line: &str, node: Option<&str>) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        let node_name = node.map(str::to_owned);
        flags.sidecar.environment = Environment { node_name, ..Environment::default() };
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    fn config(line: &str) -> Result<Config, String> {
        config_on(line, None)
    }

    #[test]
    fn defaults_are_those_of_the_loop() {
        let config = config("").unwrap();
        assert_eq!(config.snapshotter, snapshotter::Config::default());
        assert!(config.snapshotter.groups && !config.snapshotter.leak_guard);
    }

    #[test]
    fn values_arrive() {
        let line = "-timeout 5m --snapshot-name-prefix=s --snapshot-name-uuid-length=8 --groupsnapshot-name-prefix=g \
             --groupsnapshot-name-uuid-length=9 --worker-threads=4 --resync-period=1m --extra-create-metadata --leak-guard \
             --retry-interval-max=2m --feature-gates=CSIVolumeGroupSnapshot=false,ReleaseLeaderElectionOnExit=true";
        let Config { sidecar, snapshotter } = config(line).unwrap();
        assert_eq!(
            (snapshotter.timeout, snapshotter.worker_threads.get()),
            (Duration::from_secs(300), 4)
        );
        let (single, group) =
            (snapshotter.snapshot_name_prefix, snapshotter.groupsnapshot_name_prefix);
        assert_eq!((single.as_str(), group.as_str()), ("s", "g"));
        assert_eq!(snapshotter.snapshot_name_uuid_length, Some(8));
        assert_eq!(snapshotter.groupsnapshot_name_uuid_length, Some(9));
        assert_eq!(snapshotter.resync_period, Duration::from_secs(60));
        assert_eq!(snapshotter.retry_interval_max, Duration::from_secs(120));
        assert!(snapshotter.extra_create_metadata && snapshotter.leak_guard && !snapshotter.groups);
        assert!(sidecar.release_lease_on_exit);
        let scope = config_on("--node-deployment", Some("n1")).unwrap().snapshotter.scope;
        assert!(scope.is_some_and(|scope| &*scope.node == "n1" && !scope.unlabelled));
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("--enable-volume-group-snapshots=false", "use --feature-gates"),
            ("--snapshot-name-prefix=", "prefix cannot be of length 0"),
            ("--groupsnapshot-name-prefix=", "prefix cannot be of length 0"),
            ("--snapshot-name-uuid-length=0", "between 1 and 32"),
            ("--worker-threads=0", "--worker-threads"),
            ("--node-deployment", "NODE_NAME"),
            ("--retry-interval-start=10m", "retry-interval"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
        // case: snapshotter/48
        let both = config_on("--node-deployment --leader-election", Some("n1")).expect_err("both");
        assert!(both.contains("--node-deployment"), "{both}");
    }
}
