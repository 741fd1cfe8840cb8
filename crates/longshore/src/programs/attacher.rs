//! `longshore attacher`, also as `csi-attacher`.

use std::time::Duration;

use anyhow::Result;
use futures::{FutureExt as _, future::BoxFuture};
use longshore_cluster::{Context, cache::Needs};
use longshore_controllers::{Driver, attacher};
use longshore_core::model::kinds::{CsiNode, Volume, VolumeAttachment};
use longshore_core::provision::DriverCapabilities;

use super::sidecar::{
    self, Controller, Reached, Ready, Right, SidecarFlags, Unable, alone, read_gates,
};
use super::sidecars::{Included, Member};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, CsiFlags, Gate, Logging, Throttle, UsageError, gates_help, values,
};

/// Flags that csi-attacher once had, and what replaced them.
const REMOVED: &[(&str, &str)] = &[
    sidecar::NO_CONNECTION_TIMEOUT,
    sidecar::NO_ELECTION_TYPE,
    ("leader-election-identity", "the identity is the host name, so leave the flag out"),
];

/// Flags of `longshore attacher`, named as csi-attacher names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    #[command(flatten)]
    attacher: attacher::Config,
    /// Longest logged CSI response; -1 is no limit.
    #[arg(long, default_value = "-1", value_parser = values::integer, allow_hyphen_values = true, value_name = "N")]
    max_grpc_log_length: i64,
    #[arg(long, value_name = "GATES", help = gates_help(&[attacher::GATES, sidecar::GATES]))]
    feature_gates: Vec<String>,
    #[command(flatten)]
    pub(super) sidecar: SidecarFlags,
}

/// What the attacher runs on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    sidecar: sidecar::Config,
    attacher: attacher::Config,
}

impl Program for Config {
    const NAME: &'static str = "attacher";
    const OFFICIAL: &'static [&'static str] = &["csi-attacher"];
    const SUMMARY: &'static str =
        "Attach and detach volumes through a CSI driver (as csi-attacher)";
    const EXAMPLES: &'static str =
        "longshore attacher --csi-address=/run/csi/socket --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["rbac/attacher.yaml", "rbac/leader-election.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, csi, attacher, max_grpc_log_length, feature_gates, sidecar } = flags;
        let gates = read_gates(attacher::GATES, &feature_gates)?;
        let mut sidecar = sidecar.config(common, csi, &gates)?;
        // Zero and less mean no limit.
        sidecar.log_limit = usize::try_from(max_grpc_log_length).ok().filter(|limit| *limit > 0);
        Ok(Self { sidecar, attacher: attacher.with(&gates)? })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.sidecar.logging)
    }

    async fn run(self) -> Result<()> {
        alone(self.sidecar.clone(), Self::OFFICIAL[0], self, Unable::into).await
    }
}

/// What attaching needs.
const ATTACHES: &[Right] = &[
    Right::new("storage.k8s.io", "volumeattachments", &["list", "watch", "patch"]),
    Right::new("storage.k8s.io", "volumeattachments/status", &["patch"]),
    Right::new("", "persistentvolumes", &["get", "list", "watch", "patch"]),
    Right::new("storage.k8s.io", "csinodes", &["list", "watch"]),
];

/// What is left of it beside a driver that attaches nothing.
const DECLARES: &[Right] = &[
    Right::new("storage.k8s.io", "volumeattachments", &["list", "watch"]),
    Right::new("storage.k8s.io", "volumeattachments/status", &["patch"]),
    Right::new("", "persistentvolumes", &["list", "watch"]),
    Right::new("storage.k8s.io", "csinodes", &["list", "watch"]),
];

impl Controller for Config {
    fn timeout(&self) -> Duration {
        self.attacher.timeout
    }

    fn throttle(&self) -> Throttle {
        self.sidecar.kube.throttle
    }

    fn lock(&self, driver: &str) -> String {
        format!("external-attacher-leader-{driver}")
    }

    fn rights(&self, can: &DriverCapabilities) -> &'static [Right] {
        if can.publish { ATTACHES } else { DECLARES }
    }

    fn prepare<'a>(&'a self, reached: &'a Reached) -> BoxFuture<'a, Result<Ready, Unable>> {
        async {
            let (csi, config) = (reached.csi.clone(), self.attacher.clone());
            let driver =
                Driver::describe(&csi, config.timeout).await.map_err(anyhow::Error::from)?;
            let needs = |context: &Context| {
                let read = Needs::of::<Volume>(context).and::<CsiNode>(context);
                read.and::<VolumeAttachment>(context)
            };
            Ok(Ready::new(needs, move |context, stop| {
                let attacher = attacher::Attacher::new(context, csi.clone(), config.clone());
                attacher.run(driver.clone(), stop)
            }))
        }
        .boxed()
    }
}

impl Included for Config {
    const GATES: &'static [&'static [Gate]] = &[attacher::GATES, sidecar::GATES];

    fn member(self) -> Result<Member, UsageError> {
        Ok(Member::Controller(Box::new(self)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::testing::flags;
    use crate::flags::Environment;

    fn config(line: &str) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        flags.sidecar.environment = Environment::default();
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_loop() {
        let config = config("").unwrap();
        assert_eq!(config.attacher, attacher::Config::default());
        assert_eq!((config.sidecar.log_limit, config.sidecar.release_lease_on_exit), (None, false));
        assert_eq!(config.sidecar.kube.kubeconfig, None);
    }

    #[test]
    fn values_arrive() {
        let Config { sidecar, attacher } = config(
            "-timeout 30s -worker-threads=4 --max-entries=50 --max-grpc-log-length=1000 --reconcile-sync=2m --resync=1m \
             --feature-gates=MutableCSINodeAllocatableCount=false,ReleaseLeaderElectionOnExit=true \
             --kubeconfig=/k --default-fstype=xfs --leader-election-labels=a:b --leader-election",
        )
        .unwrap();
        assert_eq!(attacher.timeout, Duration::from_secs(30));
        assert_eq!(attacher.resync, Duration::from_secs(60));
        assert_eq!((attacher.max_entries, sidecar.log_limit), (50, Some(1000)));
        assert_eq!((attacher.worker_threads.get(), attacher.default_fstype.as_str()), (4, "xfs"));
        assert!(!attacher.error_codes && sidecar.release_lease_on_exit);
        assert_eq!(sidecar.kube.kubeconfig, Some(PathBuf::from("/k")));
        assert_eq!(sidecar.election.unwrap().labels["a"], "b");
    }

    #[test]
    fn old_switches_of_klog_stand_alone_as_in_manifests() {
        let line = "--logtostderr --alsologtostderr --add_dir_header=false --skip_headers --skip_log_headers \
             --one_output -v=4";
        let logging = config(line).unwrap().sidecar.logging;
        assert_eq!((logging.verbosity, logging.notes.len()), (4, 6), "{:?}", logging.notes);
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("-connection-timeout 1s", "use --timeout"),
            ("--worker-threads=0", "--worker-threads must be greater than zero"),
            ("--resync=1", "a duration is written as in Go"),
            ("--master=x", "unknown flag --master"),
            ("--feature-gates=Topology=true", "there is no feature gate `Topology`"),
            ("--max-entries=3000000000", "at most 2147483647"),
            ("--reconcile-sync=1", "a duration is written as in Go"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
