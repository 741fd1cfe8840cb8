//! `longshore resizer`, also as `csi-resizer`.

use anyhow::Result;
use longshore_cluster::Context;
use longshore_controllers::resize::{self, Abilities, Resizer};
use tokio_util::sync::CancellationToken;

use super::provisioner::place_of;
use super::sidecar::{self, SidecarFlags, has_attributes_classes, read_gates};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, CsiFlags, Logging, MasterFlag, UsageError, gates_help};
use crate::process::{ExitWith, unless_stopped};

/// Flags that csi-resizer once had, and what replaced them.
const REMOVED: &[(&str, &str)] = &[
    ("csiTimeout", "use --timeout for the time of one CSI call"),
    sidecar::NO_CONNECTION_TIMEOUT,
    sidecar::NO_ELECTION_TYPE,
];

/// The exit code of csi-resizer beside a driver that can do nothing of its work.
const FATAL: u8 = 255;

/// Flags of `longshore resizer`, named as csi-resizer names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    #[command(flatten)]
    resizer: resize::Config,
    #[arg(long, value_name = "GATES", help = gates_help(&[resize::GATES, sidecar::GATES]))]
    feature_gates: Vec<String>,
    #[command(flatten)]
    master: MasterFlag,
    #[command(flatten)]
    pub(super) sidecar: SidecarFlags,
}

/// What the resizer runs on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    sidecar: sidecar::Config,
    resizer: resize::Config,
    /// Whether the API server decides about the gate `VolumeAttributesClass`, because the command line does not.
    ask_for_attributes_classes: bool,
}

impl Program for Config {
    const NAME: &'static str = "resizer";
    const OFFICIAL: &'static [&'static str] = &["csi-resizer"];
    const SUMMARY: &'static str =
        "Expand volumes, and change their attributes, through a CSI driver (as csi-resizer)";
    const EXAMPLES: &'static str =
        "longshore resizer --csi-address=/run/csi/socket --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["rbac/resizer.yaml", "rbac/leader-election.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, csi, resizer, feature_gates, master, sidecar } = flags;
        let gates = read_gates(resize::GATES, &feature_gates)?;
        let resizer = resizer.with(&gates, &sidecar.environment)?;
        let mut sidecar = sidecar.config(common, csi, &gates)?;
        if resizer.node.is_some() && sidecar.election.is_some() {
            return Err(UsageError::Together(sidecar::no_lease_per_node(Self::NAME)));
        }
        sidecar.kube.master = master.url();
        let ask_for_attributes_classes = !gates.set_explicitly(resize::ATTRIBUTES_CLASSES.name);
        Ok(Self { sidecar, resizer, ask_for_attributes_classes })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.sidecar.logging)
    }

    async fn run(self) -> Result<()> {
        let Self { sidecar, resizer: mut config, ask_for_attributes_classes } = self;
        let sidecar = sidecar.begin(Self::OFFICIAL[0], config.timeout).await?;
        let stop = &sidecar.shutdown;
        // Before the election, as upstream: who cannot work shall not lead.
        let asked = async { Ok(Abilities::ask(&sidecar.csi, config.timeout).await) };
        let abilities = unless_stopped(stop, asked).await?.map_err(|error| {
            tracing::error!("{error}");
            ExitWith(FATAL)
        })?;
        if ask_for_attributes_classes {
            let asked = async { Ok(has_attributes_classes(&sidecar.api).await) };
            config.modifies = unless_stopped(stop, asked).await?;
        }
        if let Some(node) = &mut config.node {
            node.segments = unless_stopped(stop, place_of(&sidecar.csi)).await?;
        }
        let work = |stop: CancellationToken| {
            // Caches of their own for each leadership: what was known before a loss is not trusted after.
            let context = Context::new(sidecar.api.clone(), sidecar.metrics.clone(), &stop);
            let (csi, abilities) = (sidecar.csi.clone(), abilities.clone());
            let resizer = Resizer::new(&context, csi, config.clone(), abilities);
            resizer.with_faults(crate::process::faults::of_resizer()).run(stop)
        };
        sidecar.lead(&format!("external-resizer-{}", sidecar.driver), work).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert_eq!(config.resizer, resize::Config::default());
        assert!(config.ask_for_attributes_classes);
    }

    #[test]
    fn values_arrive() {
        let line = "-timeout 30s -workers=4 --retry-interval-max=2m --handle-volume-inuse-error=false \
             --extra-modify-metadata --resync-period=1m --master=https://a --leader-election \
             --feature-gates=RecoverVolumeExpansionFailure=false,AnnotateFsResize=false,VolumeAttributesClass=true";
        let Config { sidecar, resizer, ask_for_attributes_classes } = config(line).unwrap();
        assert_eq!((resizer.timeout, resizer.workers.get()), (Duration::from_secs(30), 4));
        assert_eq!(resizer.retry_interval_max, Duration::from_secs(120));
        assert_eq!(resizer.resync_period, Duration::from_secs(60));
        assert!(!resizer.handle_volume_inuse_error && resizer.extra_modify_metadata);
        assert!(!resizer.recovers && !resizer.annotates && resizer.modifies);
        // case: resizer/48
        assert!(!ask_for_attributes_classes);
        assert_eq!(sidecar.kube.master.as_deref(), Some("https://a"));
        let node = config_on("--node-deployment", Some("n1")).unwrap().resizer.node;
        assert_eq!(node.unwrap().name.as_str(), "n1");
    }

    #[test]
    fn refusals() {
        for (line, part) in [
            ("--csiTimeout=1s", "use --timeout"),
            ("--workers=0", "at least 1"),
            ("--resync-period=1", "a duration is written as in Go"),
            ("--feature-gates=Topology=true", "there is no feature gate `Topology`"),
            ("--node-deployment", "NODE_NAME"),
            ("--retry-interval-start=10m", "retry-interval"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
        let both = config_on("--node-deployment --leader-election", Some("n1")).expect_err("both");
        assert!(both.contains("every node has a resizer of its own"), "{both}");
    }
}
