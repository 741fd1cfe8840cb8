//! Flags of `longshore sidecars`: those of the process, and those of each sidecar behind its name.

use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use longshore_core::words;

use super::known::Known;
use super::table::INCLUDABLE;
use crate::flags::{CommonFlags, CsiFlags, MasterFlag, is_switch};
use crate::programs::sidecar::{self, SidecarFlags};

/// Flags of the process, each of which is given once.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Globals {
    /// Which sidecars run: names, `*` for the usual ones beside a driver's controller, -NAME to leave one out.
    #[arg(long, default_value = super::choice::ALL, value_name = "LIST", allow_hyphen_values = true)]
    pub(super) controllers: String,
    #[command(flatten)]
    pub(super) common: CommonFlags,
    #[command(flatten)]
    pub(super) csi: CsiFlags,
    #[arg(long, value_name = "GATES", help = gates_help())]
    pub(super) feature_gates: Vec<String>,
    #[command(flatten)]
    pub(super) master: MasterFlag,
    #[command(flatten)]
    pub(super) sidecar: SidecarFlags,
    /// Serve /debug/pprof/ beside the metrics: the command line, and word that there are no Go profiles here.
    #[arg(long, help_heading = "Diagnostics")]
    pub(super) enable_pprof: bool,
}

/// The gates of all sidecars, each once. One sidecar's own value is --NAME-feature-gates.
fn gates_help() -> String {
    let mut all = Vec::new();
    let own = INCLUDABLE.iter().filter_map(|one| one.here());
    for gate in own.flat_map(|here| here.gates.iter().copied().flatten()).chain(sidecar::GATES) {
        if !all.iter().any(|known: &crate::flags::Gate| known.name == gate.name) {
            all.push(*gate);
        }
    }
    crate::flags::gates_help(&[&all])
}

/// What was given: every flag in one spelling, which [`super::merge`] made.
#[derive(Debug, Clone)]
pub(crate) struct Flags {
    pub(super) globals: Globals,
    /// Values by flag, without those that are defaults.
    pub(super) given: BTreeMap<String, Vec<String>>,
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let globals = Globals::from_arg_matches(matches)?;
        let known = Known::new();
        let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let values = |id: &str| -> Vec<String> {
            let raw = matches.get_raw(id).into_iter().flatten();
            raw.map(|value| value.to_string_lossy().into_owned()).collect()
        };
        let process = known.process.get_arguments().filter_map(|arg| {
            let id = arg.get_id().as_str();
            typed(id).then(|| Some((arg.get_long()?.to_owned(), values(id))))?
        });
        let own = (0..INCLUDABLE.len()).flat_map(|place| {
            let names = known.own(place).iter().filter_map(Arg::get_long);
            names.map(move |long| own_name(INCLUDABLE[place].name, long))
        });
        let own = own.filter(|name| typed(name)).map(|name| (name.clone(), values(&name)));
        Ok(Self { globals, given: process.chain(own).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let known = Known::new();
        let shared = known.shared().into_iter().map(|name| shared(&known, name));
        let command = Globals::augment_args(command).args(shared.collect::<Vec<_>>());
        (0..INCLUDABLE.len()).fold(command, |command, place| {
            let one = INCLUDABLE[place].name;
            command.args(known.own(place).iter().map(|arg| behind(one, arg)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The name of a sidecar's own flag.
pub(super) fn own_name(sidecar: &str, flag: &str) -> String {
    format!("{sidecar}-{flag}")
}

/// A sidecar's own flag.
fn behind(sidecar: &str, arg: &Arg) -> Arg {
    let name = own_name(sidecar, arg.get_long().unwrap_or_default());
    arg.clone().id(name.clone()).long(name).help_heading(format!("Only for the {sidecar}"))
}

/// A flag that counts for each chosen sidecar that has it.
fn shared(known: &Known, name: &str) -> Arg {
    let owners = known.owners(name);
    let here = owners.iter().map(|place| &INCLUDABLE[*place]).filter(|one| one.here().is_some());
    let names = words::list(here.map(|one| one.name));
    let first = owners.first().and_then(|place| {
        known.own(*place).iter().find(|arg| arg.get_long() == Some(name)).cloned()
    });
    let least = usize::from(!first.as_ref().is_some_and(is_switch));
    Arg::new(format!("shared-{name}"))
        .long(name.to_owned())
        .num_args(least..=1)
        .require_equals(least == 0)
        .value_name(if least == 0 { "BOOL" } else { "VALUE" })
        .help(format!("For each of those that run: {names}"))
        .help_heading("For all that have the flag; a flag with a name before it wins")
}
