//! Which controllers run.

use std::collections::BTreeSet;

use crate::flags::{UsageError, nearest};

/// One controller, under the name that kube-controller-manager uses for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
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
    /// Keeps volume attributes classes that volumes and claims name.
    ClassProtection,
    /// Tells claims that grow who expands them.
    Expander,
    /// Places pods on nodes, volumes considered.
    Scheduler,
}

impl Controller {
    /// Every controller of this version.
    pub(crate) const ALL: [Self; 8] = [
        Self::Binder,
        Self::AttachDetach,
        Self::Ephemeral,
        Self::ClaimProtection,
        Self::VolumeProtection,
        Self::ClassProtection,
        Self::Expander,
        Self::Scheduler,
    ];

    /// Its name in `--controllers`.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Binder => "persistentvolume-binder-controller",
            Self::AttachDetach => "persistentvolume-attach-detach-controller",
            Self::Ephemeral => "ephemeral-volume-controller",
            Self::ClaimProtection => "persistentvolumeclaim-protection-controller",
            Self::VolumeProtection => "persistentvolume-protection-controller",
            Self::ClassProtection => "volumeattributesclass-protection-controller",
            Self::Expander => "persistentvolume-expander-controller",
            Self::Scheduler => "scheduler",
        }
    }

    /// The older name that kube-controller-manager still takes, where there is one.
    fn alias(self) -> &'static str {
        match self {
            Self::Binder => "persistentvolume-binder",
            Self::AttachDetach => "attachdetach",
            Self::Ephemeral => "ephemeral-volume",
            Self::ClaimProtection => "pvc-protection",
            Self::VolumeProtection => "pv-protection",
            Self::Expander => "persistentvolume-expander",
            Self::ClassProtection | Self::Scheduler => self.name(),
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

/// Reads a list with kube-controller-manager's rules: a name wins over `*`, and its first mention counts.
pub(super) fn select(list: &str) -> Result<BTreeSet<Controller>, UsageError> {
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
            None => return Err(unknown(name)),
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

fn unknown(name: &str) -> UsageError {
    let names = Controller::ALL.into_iter().map(Controller::name);
    let why = match nearest(name, names) {
        Some(meant) => format!("there is no such controller; did you mean {meant}?"),
        None => "there is no such controller".to_owned(),
    };
    UsageError::bad_value("--controllers", name, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Controller::{AttachDetach, Binder, ClassProtection, Expander, Scheduler};

    #[test]
    fn lists_are_read_as_kube_controller_manager_does() {
        let default = &Controller::ALL[..7];
        let without: Vec<_> = default.iter().copied().filter(|one| *one != AttachDetach).collect();
        for (list, chosen) in [
            ("*", default),
            ("*,-attachdetach", &without),
            ("-attachdetach,*", &without),
            ("*,scheduler", &Controller::ALL),
            ("scheduler", &[Scheduler]),
            ("persistentvolume-binder-controller, attachdetach", &[Binder, AttachDetach]),
            ("persistentvolume-expander", &[Expander]),
            ("volumeattributesclass-protection-controller", &[ClassProtection]),
            ("scheduler,-scheduler", &[Scheduler]),
        ] {
            assert_eq!(select(list).unwrap(), chosen.iter().copied().collect(), "{list}");
        }
    }

    #[test]
    fn unknown_controllers_and_empty_selections_are_refused() {
        for (list, part) in [
            ("schedular", "did you mean scheduler?"),
            ("job-controller", "there is no such controller"),
            ("-scheduler", "no controller is left to run"),
        ] {
            let sentence = select(list).expect_err(list).to_string();
            assert!(sentence.contains(part), "{list}: {sentence}");
        }
    }
}
