//! `longshore controllers`: the volume controllers and the scheduler.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::flags::{CommonFlags, Logging, UsageError, nearest};

/// One controller, under the name that kube-controller-manager uses for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Binds claims to volumes and reclaims volumes.
    Binder,
    /// Decides which volume is attached to which node.
    AttachDetach,
    /// Makes the claims that pods describe in their own volumes.
    Ephemeral,
    /// Keeps claims that pods use.
    ClaimProtection,
    /// Keeps volumes that claims use.
    VolumeProtection,
    /// Places pods on nodes, volumes considered.
    Scheduler,
}

impl Controller {
    /// Every controller of this version.
    pub const ALL: [Self; 6] = [
        Self::Binder,
        Self::AttachDetach,
        Self::Ephemeral,
        Self::ClaimProtection,
        Self::VolumeProtection,
        Self::Scheduler,
    ];

    /// Its name in `--controllers`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Binder => "persistentvolume-binder-controller",
            Self::AttachDetach => "persistentvolume-attach-detach-controller",
            Self::Ephemeral => "ephemeral-volume-controller",
            Self::ClaimProtection => "persistentvolumeclaim-protection-controller",
            Self::VolumeProtection => "persistentvolume-protection-controller",
            Self::Scheduler => "scheduler",
        }
    }

    /// The older name that kube-controller-manager still takes.
    fn alias(self) -> &'static str {
        match self {
            Self::Binder => "persistentvolume-binder",
            Self::AttachDetach => "attachdetach",
            Self::Ephemeral => "ephemeral-volume",
            Self::ClaimProtection => "pvc-protection",
            Self::VolumeProtection => "pv-protection",
            Self::Scheduler => "scheduler",
        }
    }

    /// Whether `*` includes it. A cluster has its scheduler already.
    fn on_by_default(self) -> bool {
        self != Self::Scheduler
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| [known.name(), known.alias()].contains(&name))
    }
}

/// Names that mean something to kube-controller-manager but nothing here yet.
const NOT_YET: &[&str] = &["persistentvolume-expander-controller", "persistentvolume-expander"];

/// Flags of `longshore controllers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Client configuration (required).
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Controllers to run: names as in kube-controller-manager, `*` for all but the scheduler, `-name` to leave one out.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Work only while holding the lease.
    #[arg(long, default_value_t = true)]
    leader_elect: bool,
}

/// What the controllers run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How to log.
    pub logging: Logging,
    /// Client configuration.
    pub kubeconfig: PathBuf,
    /// Which controllers; at least one.
    pub controllers: BTreeSet<Controller>,
    /// Whether to campaign for the lease.
    pub leader_elect: bool,
}

impl TryFrom<Flags> for Config {
    type Error = UsageError;

    fn try_from(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, kubeconfig, controllers, leader_elect } = flags;
        let kubeconfig = kubeconfig.ok_or(UsageError::Required {
            flag: "--kubeconfig",
            why: "it says where the API server is",
        })?;
        let controllers = select(&controllers.join(","))?;
        Ok(Self { logging: Logging::try_from(common)?, kubeconfig, controllers, leader_elect })
    }
}

/// Reads a list with kube-controller-manager's rules: a name wins over `*`, and its first mention counts.
fn select(list: &str) -> Result<BTreeSet<Controller>, UsageError> {
    let items: Vec<&str> = list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    let all = items.contains(&"*");
    let mut said: Vec<(Controller, bool)> = Vec::new();
    for item in items.iter().filter(|item| **item != "*") {
        let (name, wanted) = match item.strip_prefix('-') {
            Some(name) => (name, false),
            None => (*item, true),
        };
        match Controller::named(name) {
            Some(controller) => said.push((controller, wanted)),
            None => unavailable(name, wanted)?,
        }
    }
    let chosen: BTreeSet<_> = Controller::ALL
        .into_iter()
        .filter(|controller| {
            let explicit = said.iter().find(|(named, _)| named == controller);
            explicit.map_or(all && controller.on_by_default(), |(_, wanted)| *wanted)
        })
        .collect();
    if chosen.is_empty() {
        return Err(UsageError::bad_value("--controllers", list, "no controller is left to run"));
    }
    Ok(chosen)
}

/// A name that cannot run: fine to leave out, an error to ask for.
fn unavailable(name: &str, wanted: bool) -> Result<(), UsageError> {
    match (NOT_YET.contains(&name), wanted) {
        (true, false) => Ok(()),
        (true, true) => Err(UsageError::FlagNotYet {
            flag: format!("--controllers={name}"),
            what: "this controller does not exist here",
        }),
        (false, _) => {
            let names = Controller::ALL.into_iter().map(Controller::name);
            let why = match nearest(name, names) {
                Some(meant) => format!("there is no such controller; did you mean {meant}?"),
                None => "there is no such controller".to_owned(),
            };
            Err(UsageError::bad_value("--controllers", name, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::flags;
    use super::*;
    use Controller::{
        AttachDetach, Binder, ClaimProtection, Ephemeral, Scheduler, VolumeProtection,
    };

    #[test]
    fn lists_are_read_as_kube_controller_manager_does() {
        let default = [Binder, AttachDetach, Ephemeral, ClaimProtection, VolumeProtection];
        for (list, chosen) in [
            ("*", &default[..]),
            ("*,-attachdetach", &[Binder, Ephemeral, ClaimProtection, VolumeProtection]),
            ("-attachdetach,*", &[Binder, Ephemeral, ClaimProtection, VolumeProtection]),
            ("*,scheduler", &Controller::ALL),
            ("scheduler", &[Scheduler]),
            ("persistentvolume-binder-controller, attachdetach", &[Binder, AttachDetach]),
            ("*,-persistentvolume-expander-controller", &default),
            ("scheduler,-scheduler", &[Scheduler]),
        ] {
            assert_eq!(select(list).unwrap(), chosen.iter().copied().collect(), "{list}");
        }
    }

    #[test]
    fn refusals() {
        for (list, part) in [
            ("schedular", "did you mean scheduler?"),
            ("job-controller", "there is no such controller"),
            ("persistentvolume-expander", "not part of this version yet"),
            ("-scheduler", "no controller is left to run"),
        ] {
            let sentence = select(list).expect_err(list).to_string();
            assert!(sentence.contains(part), "{list}: {sentence}");
        }
    }

    #[test]
    fn flags_become_a_config() {
        let read = |line| {
            flags::<Flags>(line, &[])
                .and_then(|flags| Config::try_from(flags).map_err(|error| error.to_string()))
        };
        let config =
            read("--kubeconfig /k --controllers=*,-attachdetach --leader-elect=false").unwrap();
        assert!(!config.leader_elect);
        assert_eq!(config.controllers.len(), 4);
        assert!(read("--kubeconfig /k").unwrap().leader_elect);
        assert!(read("").unwrap_err().contains("--kubeconfig is required"));
    }
}
