//! `longshore provisioner`, also as `csi-provisioner`.

mod run;

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use longshore_controllers::{capacity, provision};
use longshore_core::provision::DriverCapabilities;

pub(crate) use run::place_of;

use super::sidecar::{
    self, Controller, Reached, Ready, Right, SidecarFlags, Unable, alone, read_gates,
};
use super::sidecars::{Included, Member};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, CsiFlags, Gate, Logging, MasterFlag, Throttle, UsageError, gates_help,
};

/// Flags that csi-provisioner once had, and what replaced them.
const REMOVED: &[(&str, &str)] = &[
    (
        "provisioner",
        "the name is asked from the driver behind --csi-address, so leave the flag out",
    ),
    sidecar::NO_CONNECTION_TIMEOUT,
    ("enable-leader-election", "use --leader-election"),
    sidecar::NO_ELECTION_TYPE,
];

/// Flags of `longshore provisioner`, named as csi-provisioner names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    #[command(flatten)]
    provision: provision::Flags,
    #[arg(long, value_name = "GATES", help = gates_help(&[provision::GATES, sidecar::GATES]))]
    feature_gates: Vec<String>,
    #[command(flatten)]
    master: MasterFlag,
    #[command(flatten)]
    pub(super) sidecar: SidecarFlags,
    /// Serve /debug/pprof/ beside the metrics: the command line, and word that there are no Go profiles here.
    #[arg(long, help_heading = "Diagnostics")]
    enable_pprof: bool,
    #[command(flatten)]
    capacity: capacity::Flags,
    #[command(flatten)]
    node: provision::NodeFlags,
}

/// What the provisioner runs on.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    sidecar: sidecar::Config,
    provision: provision::Config,
    /// Whether intent records are kept.
    leak_guard: bool,
    /// Whether the API server decides about the gate `VolumeAttributesClass`, because the command line does not.
    ask_for_attributes_classes: bool,
    /// Publish how much room there is.
    capacity: Option<capacity::Asked>,
    /// Serve one node only.
    deployment: Option<provision::NodeDeployment>,
}

impl Program for Config {
    const NAME: &'static str = "provisioner";
    const OFFICIAL: &'static [&'static str] = &["csi-provisioner"];
    const SUMMARY: &'static str =
        "Make and delete volumes for claims through a CSI driver (as csi-provisioner)";
    const EXAMPLES: &'static str =
        "longshore provisioner --csi-address=/run/csi/socket --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[
        "rbac/provisioner.yaml",
        "rbac/leader-election.yaml",
        "rbac/leak-guard.yaml",
        "rbac/capacity.yaml",
    ];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            csi,
            provision,
            feature_gates,
            master,
            sidecar,
            enable_pprof,
            capacity,
            node,
        } = flags;
        let gates = read_gates(provision::GATES, &feature_gates)?;
        let environment = sidecar.environment.clone();
        let mut sidecar = sidecar.config(common, csi, &gates)?;
        sidecar.kube.master = master.url();
        let elects = sidecar.election.is_some();
        sidecar.diagnostics =
            sidecar.diagnostics.map(|served| served.with_election(elects).with_pprof(enable_pprof));
        Ok(Self {
            sidecar,
            leak_guard: provision.leak_guard,
            ask_for_attributes_classes: !gates.set_explicitly(provision::ATTRIBUTES_CLASSES.name),
            provision: provision.config(&gates)?,
            capacity: capacity.asked(&environment)?,
            deployment: node.deployment(&environment)?,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.sidecar.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        alone(self.sidecar.clone(), Self::OFFICIAL[0], self, Unable::into).await
    }
}

/// What making and deleting volumes needs.
const RIGHTS: &[Right] = &[
    Right::new("", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"]),
    Right::new("", "persistentvolumeclaims", &["get", "list", "watch", "update"]),
    Right::new("storage.k8s.io", "storageclasses", &["list", "watch"]),
];

impl Controller for Config {
    fn timeout(&self) -> Duration {
        self.provision.timeout
    }

    fn throttle(&self) -> Throttle {
        self.sidecar.kube.throttle
    }

    fn lock(&self, driver: &str) -> String {
        driver.to_owned()
    }

    fn lacks(&self, can: &DriverCapabilities) -> Option<&'static str> {
        (!can.create_delete_volume).then_some("CREATE_DELETE_VOLUME")
    }

    fn rights(&self, _can: &DriverCapabilities) -> &'static [Right] {
        RIGHTS
    }

    fn prepare<'a>(&'a self, reached: &'a Reached) -> BoxFuture<'a, Result<Ready, Unable>> {
        run::prepare(self, reached).map(|ready| Ok(ready?)).boxed()
    }
}

impl Included for Config {
    const GATES: &'static [&'static [Gate]] = &[provision::GATES, sidecar::GATES];

    fn member(self) -> Result<Member, UsageError> {
        Ok(Member::Controller(Box::new(self)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::testing::flags;
    use crate::flags::{Environment, Throttle};

    fn config(line: &str) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        flags.sidecar.environment = Environment::default();
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_official_ones() {
        let config = config("").unwrap();
        assert_eq!(config.sidecar.socket, PathBuf::from("/run/csi/socket"));
        assert_eq!(
            format!("{:?}", config.provision),
            format!("{:?}", provision::Config::default())
        );
        assert!(!config.leak_guard && config.ask_for_attributes_classes);
        assert_eq!((config.sidecar.election, config.sidecar.diagnostics), (None, None));
        assert_eq!(config.sidecar.kube.throttle, Throttle::Adaptive);
        assert_eq!(config.sidecar.logging, Logging::default());
    }

    #[test]
    fn flags_of_a_real_manifest() {
        let Config { sidecar, provision, .. } = config(
            "-v=5 --csi-address=/csi/csi.sock --timeout=150s --retry-interval-start=500ms --leader-election=true \
             --leader-election-namespace=kube-system --feature-gates=Topology=true --extra-create-metadata \
             --kube-api-qps=20 --kube-api-burst 100 --worker-threads 0x10 --default-fstype=ext4 --strict-topology=1 \
             --immediate-topology=f --http-endpoint=:8080 --volume-name-uuid-length=8 --automaxprocs",
        )
        .unwrap();
        assert_eq!(sidecar.logging.verbosity, 5);
        assert_eq!(sidecar.logging.notes.len(), 1);
        assert_eq!(provision.timeout, Duration::from_secs(150));
        assert_eq!(provision.retry_interval_start, Duration::from_millis(500));
        assert_eq!(sidecar.election.unwrap().namespace.as_deref(), Some("kube-system"));
        assert_eq!(sidecar.kube.throttle, Throttle::Fixed { qps: 20.0, burst: 100 });
        assert_eq!(provision.worker_threads, 16);
        assert!(provision.plan.extra_create_metadata && provision.strict_topology);
        assert!(!provision.immediate_topology);
        assert_eq!(provision.plan.default_fs_type, "ext4");
        assert_eq!(provision.plan.name_uuid_length, Some(8));
        assert_eq!(sidecar.diagnostics.unwrap().address, "0.0.0.0:8080");
    }

    #[test]
    fn flags_about_sources() {
        let config = config(
            "--prevent-volume-mode-conversion=false --cloning-protection-threads=3 \
             --snapshot-orphan-sweep-interval=0 \
             --feature-gates=CrossNamespaceVolumeDataSource=true,VolumeAttributesClass=false",
        )
        .unwrap();
        let provision = config.provision;
        assert!(!provision.plan.guard_volume_mode && provision.cross_namespace);
        assert_eq!((provision.clone_threads, provision.snapshot_sweep), (3, None));
        assert!(!provision.plan.attributes_classes && !config.ask_for_attributes_classes);
        assert!(!provision.check_volumes_in_use);
    }

    #[test]
    fn nodes_are_asked_for_volumes_in_use_on_request() {
        assert!(config("--check-volumes-in-use").unwrap().provision.check_volumes_in_use);
    }

    #[test]
    fn the_kubeconfig_flag_wins_over_the_variable() {
        for (line, variable, path) in [
            ("", None, None),
            ("--kubeconfig=/flag", None, Some("/flag")),
            ("--kubeconfig=/flag", Some("/env"), Some("/flag")),
            ("", Some("/env"), None),
        ] {
            let mut flags: Flags = flags(line, REMOVED).unwrap();
            let kubeconfig = variable.map(str::to_owned);
            flags.sidecar.environment = Environment { kubeconfig, ..Environment::default() };
            let config = Config::from_flags(flags).unwrap();
            assert_eq!(
                config.sidecar.kube.kubeconfig,
                path.map(PathBuf::from),
                "{line} {variable:?}"
            );
        }
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            (
                "-provisioner=x",
                "-provisioner was removed from the official program; the name is asked from the driver behind --csi-address",
            ),
            ("-connection-timeout=1m", "use --timeout"),
            ("--timeout=abc", "--timeout cannot be `abc`: a duration is written as in Go"),
            ("--timeout=0", "--timeout cannot be `0`: it must be more than zero"),
            ("--worker-threads=0", "it must be at least 1"),
            ("--strict-topology=maybe", "--strict-topology cannot be `maybe`: it is true or false"),
            ("--feature-gates=Topolgy=true", "did you mean Topology?"),
            ("--volume-name-prefix=", "volume name prefix cannot be of length 0"),
            ("--volume-name-uuid-length=33", "between 1 and 32"),
            ("--volume-name-uuid-length=0", "between 1 and 32"),
            ("--enable-capacity", "need NAMESPACE env variable"),
            ("--node-deployment=true", "NODE_NAME environment variable must be set"),
            ("--capacity-threads=0", "it must be at least 1"),
            ("--capacity-poll-interval=0", "it must be more than zero"),
            ("--cloning-protection-threads=-1", "--cloning-protection-threads cannot be `-1`"),
            ("--retry-interval-start=10m", "--retry-interval-max"),
            ("--csi-address=tcp://1.2.3.4:5", "only a path or unix:///path"),
            ("--http-endpoint=:1 --metrics-address=:2", "cannot be used together"),
            ("--leader-election --leader-election-retry-period=9s", "1.2 times"),
            ("--leader-election-labels=a:b:c", "malformed item in list of labels: a:b:c"),
            ("--vmodule=x", "--vmodule cannot be `x`"),
            ("--log-text-split-stream", "all log lines go to stderr"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }

    fn in_a_pod(line: &str) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        flags.sidecar.environment = Environment {
            node_name: Some("node-a".into()),
            namespace: Some("storage".into()),
            pod_name: Some("driver-0".into()),
            ..Environment::default()
        };
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn capacity_and_nodes() {
        let on = in_a_pod("--enable-capacity --node-deployment").unwrap();
        let capacity = on.capacity.unwrap();
        assert_eq!((capacity.threads.get(), capacity.poll), (1, Duration::from_secs(60)));
        assert_eq!(capacity.throttle, Throttle::Fixed { qps: 1.0, burst: 5 });
        assert_eq!((capacity.namespace.as_str(), capacity.for_immediate), ("storage", false));
        assert_eq!(capacity.owner, Some(("driver-0".to_owned(), 1)));
        let node = on.deployment.unwrap();
        assert_eq!((node.node.as_str(), node.immediate_binding), ("node-a", true));
        let delays = (Duration::from_secs(20), Duration::from_secs(60));
        assert_eq!((node.base_delay, node.max_delay), delays);
        let line = "--enable-capacity --capacity-ownerref-level=-1 --capacity-for-immediate-binding \
            --kube-api-capacity-qps=-1 --capacity-threads=3 --capacity-poll-interval=5s";
        let capacity = in_a_pod(line).unwrap().capacity.unwrap();
        assert_eq!((capacity.owner, capacity.for_immediate), (None, true));
        assert_eq!((capacity.throttle, capacity.threads.get()), (Throttle::Unlimited, 3));
        assert_eq!(in_a_pod("").unwrap().capacity, None);
    }

    #[test]
    fn defaults_of_missing_features_are_accepted() {
        for line in [
            "--enable-capacity=false",
            "--node-deployment=false",
            "--capacity-ownerref-level=-1",
            "--enable-pprof",
            "--snapshot-orphan-sweep-interval=0",
            "--snapshot-orphan-sweep-interval=300s",
            "--feature-gates=CrossNamespaceVolumeDataSource=false",
        ] {
            assert!(config(line).is_ok(), "{line}");
        }
    }
}
