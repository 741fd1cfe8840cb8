//! `longshore resizer`, also as `csi-resizer`.

use std::time::Duration;

use anyhow::Result;
use futures::{FutureExt as _, future::BoxFuture};
use longshore_cluster::{Context, cache::Needs};
use longshore_controllers::resize::{self, Abilities, AbilitiesError, Resizer};
use longshore_core::model::kinds::{Claim, Volume};
use longshore_core::provision::DriverCapabilities;

use super::provisioner::place_of;
use super::sidecar::{
    self, Controller, Reached, Ready, Right, SidecarFlags, Unable, alone, has_attributes_classes,
    read_gates,
};
use super::sidecars::{Included, Member};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, CsiFlags, Gate, Logging, MasterFlag, Throttle, UsageError, gates_help,
};
use crate::process::ExitWith;

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
        alone(self.sidecar.clone(), Self::OFFICIAL[0], self, exit_as_official).await
    }
}

/// csi-resizer ends with a code of its own when the driver has no work for it, or does not say.
fn exit_as_official(unable: Unable) -> anyhow::Error {
    match unable {
        Unable::Failed(error) if !error.is::<AbilitiesError>() => error,
        unable => {
            tracing::error!("{unable}");
            ExitWith(FATAL).into()
        }
    }
}

/// What expanding and modifying volumes needs.
const RIGHTS: &[Right] = &[
    Right::new("", "persistentvolumes", &["list", "watch", "patch"]),
    Right::new("", "persistentvolumeclaims", &["get", "list", "watch"]),
    Right::new("", "persistentvolumeclaims/status", &["patch"]),
];

impl Controller for Config {
    fn timeout(&self) -> Duration {
        self.resizer.timeout
    }

    fn throttle(&self) -> Throttle {
        self.sidecar.kube.throttle
    }

    fn lock(&self, driver: &str) -> String {
        format!("external-resizer-{driver}")
    }

    fn rights(&self, _can: &DriverCapabilities) -> &'static [Right] {
        RIGHTS
    }

    fn prepare<'a>(&'a self, reached: &'a Reached) -> BoxFuture<'a, Result<Ready, Unable>> {
        async {
            let (csi, mut config) = (reached.csi.clone(), self.resizer.clone());
            let abilities = Abilities::ask(&csi, config.timeout).await.map_err(unable)?;
            if self.ask_for_attributes_classes {
                config.modifies = has_attributes_classes(&reached.api).await;
            }
            if let Some(node) = &mut config.node {
                node.segments = place_of(&csi).await?;
            }
            let needs = |context: &Context| Needs::of::<Claim>(context).and::<Volume>(context);
            Ok(Ready::new(needs, move |context, stop| {
                let (csi, abilities) = (csi.clone(), abilities.clone());
                let resizer = Resizer::new(context, csi, config.clone(), abilities);
                resizer.with_faults(crate::process::faults::of_resizer()).run(stop)
            }))
        }
        .boxed()
    }
}

fn unable(error: AbilitiesError) -> Unable {
    match error {
        AbilitiesError::NoController(_) | AbilitiesError::Neither => {
            Unable::Idle(error.to_string())
        }
        AbilitiesError::Name(_) | AbilitiesError::Call(_) => Unable::Failed(error.into()),
    }
}

impl Included for Config {
    const GATES: &'static [&'static [Gate]] = &[resize::GATES, sidecar::GATES];

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
    fn wrong_flags_are_refused_with_the_reason() {
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
