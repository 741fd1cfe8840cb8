//! The sidecars that one process can hold. A new one is a row here.

use crate::cli::{Program, Syntax, config_of};
use crate::flags::{Gate, UsageError, goify};
use crate::programs::sidecar::Controller;
use crate::programs::{
    attacher, health_monitor, liveness_probe, node_registrar, provisioner, resizer, snapshotter,
};

/// A sidecar that can be one of several in a process.
pub(crate) struct Includable {
    pub(crate) name: &'static str,
    /// Other names of it, before its flags as well.
    pub(crate) aliases: &'static [&'static str],
    /// Whether `*` stands for it, too.
    pub(crate) usual: bool,
    pub(crate) part: Part,
}

/// What is behind a name.
pub(crate) enum Part {
    Here(Here),
    /// Not part of this version yet.
    NotYet,
}

/// A sidecar that this version has, as its own program declares it.
pub(crate) struct Here {
    augment: fn(clap::Command) -> clap::Command,
    pub(super) removed: &'static [(&'static str, &'static str)],
    pub(super) gates: &'static [&'static [Gate]],
    pub(super) read: fn(&[String]) -> Result<Member, UsageError>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare the union with it"))]
    pub(crate) rbac: &'static [&'static str],
}

/// A sidecar that was chosen, with its flags read.
pub(crate) enum Member {
    /// Works with the API server, usually under a lease.
    Controller(Box<dyn Controller>),
    Registrar(node_registrar::Registration),
    Liveness(liveness_probe::Config),
}

/// A program that can be one of several in a process.
pub(crate) trait Included: Program {
    /// Its gates.
    const GATES: &'static [&'static [Gate]];

    /// What runs.
    ///
    /// # Errors
    /// When it can only be a process of its own with these flags.
    fn member(self) -> Result<Member, UsageError>;
}

impl Here {
    const fn of<P: Included>() -> Part {
        let removed = match P::SYNTAX {
            Syntax::Go { removed } => removed,
            Syntax::Kubectl | Syntax::Merged(_) => &[],
        };
        let read = |args: &[String]| config_of::<P>(args)?.member();
        let augment = <P::Flags as clap::Args>::augment_args;
        Part::Here(Self { augment, removed, gates: P::GATES, read, rbac: P::RBAC })
    }
}

/// All of them, in the order in which they are named.
pub(crate) const INCLUDABLE: &[Includable] = &[
    Includable {
        name: "attacher",
        aliases: &["csi-attacher", "external-attacher"],
        usual: true,
        part: Here::of::<attacher::Config>(),
    },
    Includable {
        name: "provisioner",
        aliases: &["csi-provisioner", "external-provisioner"],
        usual: true,
        part: Here::of::<provisioner::Config>(),
    },
    Includable {
        name: "resizer",
        aliases: &["csi-resizer", "external-resizer"],
        usual: true,
        part: Here::of::<resizer::Config>(),
    },
    Includable {
        name: "snapshotter",
        aliases: &["csi-snapshotter", "external-snapshotter"],
        usual: true,
        part: Here::of::<snapshotter::Config>(),
    },
    Includable {
        name: "health-monitor",
        aliases: &["volume-health-monitor", "csi-external-health-monitor-controller"],
        usual: true,
        part: Here::of::<health_monitor::Config>(),
    },
    Includable {
        name: "node-driver-registrar",
        aliases: &["registrar"],
        usual: false,
        part: Here::of::<node_registrar::Config>(),
    },
    Includable {
        name: "livenessprobe",
        aliases: &["liveness-probe"],
        usual: false,
        part: Here::of::<liveness_probe::Config>(),
    },
    Includable {
        name: "snapshot-metadata",
        aliases: &["csi-snapshot-metadata"],
        usual: false,
        part: Part::NotYet,
    },
];

impl Includable {
    /// All names that its flags can begin with.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// What it is when this version has it.
    pub(crate) fn here(&self) -> Option<&Here> {
        match &self.part {
            Part::Here(here) => Some(here),
            Part::NotYet => None,
        }
    }

    /// Its flags as clap has them, in Go's form.
    pub(super) fn args(&self) -> Vec<clap::Arg> {
        let Some(here) = self.here() else { return Vec::new() };
        let command = goify((here.augment)(clap::Command::new(self.name)));
        command.get_arguments().cloned().collect()
    }

    /// Whether it has a gate of this name.
    pub(super) fn has_gate(&self, name: &str) -> bool {
        let gates = self.here().into_iter().flat_map(|here| here.gates.iter().copied().flatten());
        gates.into_iter().any(|gate| gate.name == name)
    }
}
