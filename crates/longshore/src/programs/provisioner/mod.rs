//! `longshore provisioner`, also as `csi-provisioner`.

mod per_node;
mod run;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::sidecar::Backoff;
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, CsiFlags, Diagnostics, DiagnosticsFlags, Election, ElectionFlags, Environment,
    Gate, Gates, KlogFlags, KubeAccess, KubeFlags, Logging, Stage, UsageError, values,
};

use per_node::{Capacity, CapacityFlags, NodeDeployment, NodeDeploymentFlags};
pub(crate) use run::place_of;

/// Flags that csi-provisioner once had, and what replaced them.
pub(super) const REMOVED: &[(&str, &str)] = &[
    (
        "provisioner",
        "the name is asked from the driver behind --csi-address, so leave the flag out",
    ),
    (
        "connection-timeout",
        "use --timeout for the time of one CSI call; the wait for the socket is fixed",
    ),
    ("enable-leader-election", "use --leader-election"),
    ("leader-election-type", "use --leader-election, which always takes a Lease"),
];

const GATES: &[Gate] = &[
    Gate { name: "Topology", default: true, stage: Stage::Stable },
    Gate { name: "VolumeAttributesClass", default: true, stage: Stage::Stable },
    Gate { name: "CrossNamespaceVolumeDataSource", default: false, stage: Stage::Alpha },
    Gate { name: "ReleaseLeaderElectionOnExit", default: false, stage: Stage::Alpha },
];

/// Flags of `longshore provisioner`, named as csi-provisioner names them.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    /// Longest time one CSI call may take.
    #[arg(long, default_value = "10s", value_parser = values::positive_duration)]
    timeout: Duration,
    /// Prefix of volume names.
    #[arg(long, default_value = "pvc")]
    volume_name_prefix: String,
    /// Characters of the claim's UID in volume names; -1 takes the whole UID.
    #[arg(long, default_value = "-1", value_parser = values::integer, allow_hyphen_values = true, value_name = "N")]
    volume_name_uuid_length: i64,
    /// First delay after a failure; doubles with every further one.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    retry_interval_start: Duration,
    /// Longest delay after a failure.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    retry_interval_max: Duration,
    /// Claims provisioned at once, and as many volumes deleted at once.
    #[arg(long, default_value = "100", value_parser = values::at_least_one, value_name = "N")]
    worker_threads: NonZeroU32,
    /// Late binding: ask only for the selected node's topology.
    #[arg(long)]
    strict_topology: bool,
    /// Immediate binding: pass the topology of all nodes to the driver.
    #[arg(long, default_value_t = true)]
    immediate_topology: bool,
    /// Pass names of claim and volume to the driver as parameters.
    #[arg(long)]
    extra_create_metadata: bool,
    /// File system used when the class names none.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TYPE")]
    default_fstype: String,
    /// Mark volumes of read-only claims as read-only for the driver.
    #[arg(long)]
    controller_publish_readonly: bool,
    /// Restored volumes keep the mode of the snapshot's source, unless the content allows a change.
    #[arg(long, default_value_t = true)]
    prevent_volume_mode_conversion: bool,
    /// Deleted claims worked on at once that are kept while they are cloned; 0 lets none go.
    #[arg(long, default_value = "1", value_parser = values::count, value_name = "N")]
    cloning_protection_threads: u32,
    /// Period of the sweep of finalizers that restores left on snapshots; 0 turns it off.
    #[arg(long, default_value = "5m", value_parser = values::duration)]
    snapshot_orphan_sweep_interval: Duration,
    /// Write an intent record before each volume is made, so that a crash leaks none (not in csi-provisioner).
    #[arg(long)]
    leak_guard: bool,
    /// Feature gates: Name=true,Name=false.
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<String>,
    /// URL of the API server, instead of the one in the kubeconfig.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "URL")]
    master: String,
    #[command(flatten)]
    kube: KubeFlags,
    #[command(flatten)]
    election: ElectionFlags,
    #[command(flatten)]
    diagnostics: DiagnosticsFlags,
    /// Serve /debug/pprof/ beside the metrics: the command line, and word that there are no Go profiles here.
    #[arg(long, help_heading = "Diagnostics")]
    enable_pprof: bool,
    #[command(flatten)]
    klog: KlogFlags,
    #[command(flatten)]
    capacity: CapacityFlags,
    #[command(flatten)]
    node: NodeDeploymentFlags,
    #[arg(skip = Environment::of_process())]
    environment: Environment,
}

/// What the provisioner runs on. Built once from [`Flags`]; past this point no value is doubtful.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    /// How to log.
    pub logging: Logging,
    /// Socket of the driver.
    pub socket: PathBuf,
    /// Deadline of each CSI call.
    pub call_timeout: Duration,
    /// The cluster.
    pub kube: KubeAccess,
    /// How volumes are named.
    pub naming: VolumeNaming,
    /// Delays after failures.
    pub backoff: Backoff,
    /// Claims at once, and volumes to delete at once.
    pub workers: NonZeroU32,
    /// Only the selected node's topology with late binding.
    pub strict_topology: bool,
    /// All topology with immediate binding.
    pub immediate_topology: bool,
    /// Names of claim and volume as parameters.
    pub extra_create_metadata: bool,
    /// File system when the class names none.
    pub default_fstype: Option<String>,
    /// Read-only volumes for read-only claims.
    pub controller_publish_readonly: bool,
    /// Restored volumes keep their mode.
    pub prevent_volume_mode_conversion: bool,
    /// Deleted claims at once that are kept while they are cloned.
    pub cloning_protection_threads: u32,
    /// Period of the sweep of snapshots' finalizers, if it is on.
    pub snapshot_sweep: Option<Duration>,
    /// Intent records before each volume.
    pub leak_guard: bool,
    /// Gate `Topology`.
    pub topology: bool,
    /// Gate `VolumeAttributesClass`; none leaves it to what the API server has.
    pub attributes_classes: Option<bool>,
    /// Gate `CrossNamespaceVolumeDataSource`.
    pub cross_namespace: bool,
    /// Gate `ReleaseLeaderElectionOnExit`.
    pub release_lease_on_exit: bool,
    /// Leader election, if on.
    pub election: Option<Election>,
    /// Metrics and health, if served.
    pub diagnostics: Option<Diagnostics>,
    /// Publish how much room there is.
    pub capacity: Option<Capacity>,
    /// Serve one node only.
    pub deployment: Option<NodeDeployment>,
}

/// How volumes are named: `<prefix>-<uid>`, or with the first characters of the UID without dashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeNaming {
    /// Not empty.
    pub prefix: String,
    /// How many characters of the dash-less UID; none takes the UID as it is.
    pub uid_length: Option<usize>,
}

impl VolumeNaming {
    fn new(prefix: String, uid_length: i64) -> Result<Self, UsageError> {
        if prefix.is_empty() {
            let why = "volume name prefix cannot be of length 0";
            return Err(UsageError::bad_value("--volume-name-prefix", prefix, why));
        }
        let uid_length = match uid_length {
            -1 => None,
            1..=32 => Some(uid_length as usize),
            _ => {
                let why = "it is -1, or between 1 and 32, the characters of a UID";
                return Err(UsageError::bad_value("--volume-name-uuid-length", uid_length, why));
            }
        };
        Ok(Self { prefix, uid_length })
    }
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
            csi: CsiFlags { csi_address },
            timeout,
            volume_name_prefix,
            volume_name_uuid_length,
            retry_interval_start,
            retry_interval_max,
            worker_threads,
            strict_topology,
            immediate_topology,
            extra_create_metadata,
            default_fstype,
            controller_publish_readonly,
            prevent_volume_mode_conversion,
            cloning_protection_threads,
            snapshot_orphan_sweep_interval,
            leak_guard,
            feature_gates,
            master,
            kube,
            election,
            diagnostics,
            enable_pprof,
            klog,
            capacity,
            node,
            environment,
        } = flags;
        let gates = Gates::read(GATES, &feature_gates)?;
        let election = election.election(&environment)?;
        let diagnostics = diagnostics.endpoint()?;
        let logging = Logging::try_from(common)?.with(klog)?;
        Ok(Self {
            logging,
            socket: csi_address,
            call_timeout: timeout,
            // csi-provisioner lets the variable win over the flag.
            kube: kube.access(master, environment.kubeconfig.clone()),
            naming: VolumeNaming::new(volume_name_prefix, volume_name_uuid_length)?,
            backoff: Backoff::new(retry_interval_start, retry_interval_max)?,
            workers: worker_threads,
            strict_topology,
            immediate_topology,
            extra_create_metadata,
            default_fstype: Some(default_fstype).filter(|name| !name.is_empty()),
            controller_publish_readonly,
            prevent_volume_mode_conversion,
            cloning_protection_threads,
            snapshot_sweep: Some(snapshot_orphan_sweep_interval).filter(|time| !time.is_zero()),
            leak_guard,
            attributes_classes: gates
                .set_explicitly("VolumeAttributesClass")
                .then(|| gates.on("VolumeAttributesClass")),
            cross_namespace: gates.on("CrossNamespaceVolumeDataSource"),
            topology: gates.on("Topology"),
            release_lease_on_exit: gates.on("ReleaseLeaderElectionOnExit"),
            diagnostics: diagnostics
                .map(|served| served.with_election(election.is_some()).with_pprof(enable_pprof)),
            election,
            capacity: capacity.capacity(&environment)?,
            deployment: node.deployment(&environment)?,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run::run(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;
    use crate::flags::Throttle;

    fn config(line: &str) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        flags.environment = Environment::default();
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_official_ones() {
        let config = config("").unwrap();
        assert_eq!(config.socket, PathBuf::from("/run/csi/socket"));
        assert_eq!(config.call_timeout, Duration::from_secs(10));
        assert_eq!(config.naming, VolumeNaming { prefix: "pvc".into(), uid_length: None });
        assert_eq!(config.backoff.start, Duration::from_secs(1));
        assert_eq!(config.backoff.max, Duration::from_secs(300));
        assert_eq!(config.workers.get(), 100);
        assert!(config.immediate_topology && config.topology);
        assert!(!config.strict_topology && !config.extra_create_metadata && !config.leak_guard);
        assert_eq!((config.election, config.diagnostics), (None, None));
        assert_eq!(config.kube.throttle, Throttle::Adaptive);
        assert_eq!(config.logging, Logging::default());
    }

    #[test]
    fn flags_of_a_real_manifest() {
        let config = config(
            "-v=5 --csi-address=/csi/csi.sock --timeout=150s --retry-interval-start=500ms --leader-election=true \
             --leader-election-namespace=kube-system --feature-gates=Topology=true --extra-create-metadata \
             --kube-api-qps=20 --kube-api-burst 100 --worker-threads 0x10 --default-fstype=ext4 --strict-topology=1 \
             --immediate-topology=f --http-endpoint=:8080 --volume-name-uuid-length=8 --automaxprocs",
        )
        .unwrap();
        assert_eq!(config.logging.verbosity, 5);
        assert_eq!(config.logging.notes.len(), 1);
        assert_eq!(config.call_timeout, Duration::from_secs(150));
        assert_eq!(config.backoff.start, Duration::from_millis(500));
        assert_eq!(config.election.unwrap().namespace.as_deref(), Some("kube-system"));
        assert_eq!(config.kube.throttle, Throttle::Fixed { qps: 20.0, burst: 100 });
        assert_eq!(config.workers.get(), 16);
        assert!(config.extra_create_metadata && config.strict_topology);
        assert!(!config.immediate_topology);
        assert_eq!(config.default_fstype.as_deref(), Some("ext4"));
        assert_eq!(config.naming.uid_length, Some(8));
        assert_eq!(config.diagnostics.unwrap().address, "0.0.0.0:8080");
    }

    #[test]
    fn flags_about_sources() {
        let default = config("").unwrap();
        assert!(default.prevent_volume_mode_conversion && !default.cross_namespace);
        assert_eq!(default.cloning_protection_threads, 1);
        assert_eq!(default.snapshot_sweep, Some(Duration::from_secs(300)));
        assert_eq!(default.attributes_classes, None);
        let config = config(
            "--prevent-volume-mode-conversion=false --cloning-protection-threads=3 \
             --snapshot-orphan-sweep-interval=0 \
             --feature-gates=CrossNamespaceVolumeDataSource=true,VolumeAttributesClass=false",
        )
        .unwrap();
        assert!(!config.prevent_volume_mode_conversion && config.cross_namespace);
        assert_eq!(config.cloning_protection_threads, 3);
        assert_eq!(config.snapshot_sweep, None);
        assert_eq!(config.attributes_classes, Some(false));
    }

    #[test]
    fn the_variable_wins_over_the_kubeconfig_flag() {
        for (line, variable, path) in [
            ("", None, None),
            ("--kubeconfig=/flag", None, Some("/flag")),
            ("--kubeconfig=/flag", Some("/env"), Some("/env")),
        ] {
            let mut flags: Flags = flags(line, REMOVED).unwrap();
            let kubeconfig = variable.map(str::to_owned);
            flags.environment = Environment { kubeconfig, ..Environment::default() };
            let config = Config::from_flags(flags).unwrap();
            assert_eq!(config.kube.kubeconfig, path.map(PathBuf::from), "{line} {variable:?}");
        }
    }

    #[test]
    fn refusals() {
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
        flags.environment = Environment {
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
