//! The flags of a process of several sidecars: those of the process, and those of each sidecar.

use clap::{Arg, Args as _, Command};

use super::flags::Globals;
use super::table::INCLUDABLE;
use crate::flags::{UsageError, goify, is_switch, nearest};

/// Flags of the process that one sidecar may have another value of.
const OVERRIDABLE: [&str; 3] = ["kube-api-qps", "kube-api-burst", "feature-gates"];

/// Spellings of KEP-4958 and the flags that they mean.
const ALSO: &[(&str, &str)] = &[("worker-thread", "worker-threads")];

/// One of [`INCLUDABLE`], by its place.
pub(super) type Place = usize;

/// All flags that can be typed.
pub(super) struct Known {
    /// Flags of the process.
    pub(super) process: Command,
    /// Flags of each sidecar that it can have a value of its own of.
    own: Vec<Vec<Arg>>,
}

/// What a name on the command line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A flag of the process.
    Process,
    /// A flag of these sidecars.
    Own { of: Vec<Place>, flag: String },
}

impl Known {
    pub(super) fn new() -> Self {
        let process = goify(Globals::augment_args(Command::new("sidecars")));
        let of_process = |arg: &Arg| {
            let long = arg.get_long().unwrap_or_default();
            has(&process, long) && !OVERRIDABLE.contains(&long)
        };
        let own = INCLUDABLE.iter().map(|one| {
            let args = one.args().into_iter();
            args.filter(|arg| arg.get_long().is_some() && !of_process(arg)).collect()
        });
        let own = own.collect();
        Self { process, own }
    }

    /// The flags that a sidecar can have a value of its own of.
    pub(super) fn own(&self, place: Place) -> &[Arg] {
        &self.own[place]
    }

    /// Whether this sidecar, as a program, has a flag of the process.
    pub(super) fn takes(place: Place, flag: &str) -> bool {
        INCLUDABLE[place].args().iter().any(|arg| arg.get_long() == Some(flag))
    }

    fn arg(&self, place: Place, flag: &str) -> Option<&Arg> {
        self.own[place].iter().find(|arg| arg.get_long() == Some(flag))
    }

    /// Sidecars that have a flag of this name.
    pub(super) fn owners(&self, flag: &str) -> Vec<Place> {
        (0..self.own.len()).filter(|place| self.arg(*place, flag).is_some()).collect()
    }

    /// Names of own flags that several sidecars have, each once.
    pub(super) fn shared(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.own.iter().flatten().filter_map(Arg::get_long) {
            if !has(&self.process, name) && self.owners(name).len() > 1 && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether a flag can stand without a value.
    pub(super) fn is_switch(&self, name: &str, meaning: &Meaning) -> bool {
        let arg = match meaning {
            Meaning::Process => {
                self.process.get_arguments().find(|arg| arg.get_long() == Some(name))
            }
            Meaning::Own { of, flag, .. } => of.first().and_then(|place| self.arg(*place, flag)),
        };
        arg.is_some_and(is_switch)
    }

    /// What a name means. `flag` is the same as it was typed.
    ///
    /// # Errors
    /// When no sidecar has such a flag, or none may have it for itself.
    pub(super) fn meaning(&self, flag: &str, name: &str) -> Result<Meaning, UsageError> {
        if has(&self.process, name) {
            return Ok(Meaning::Process);
        }
        for (place, rest) in prefixed(name) {
            if has(&self.process, rest) && !OVERRIDABLE.contains(&rest) {
                return Err(UsageError::Together(format!(
                    "{flag} cannot be set for one controller: write --{rest}, which counts for all"
                )));
            }
            if let Some(own) = self.canonical(place, rest) {
                return Ok(Meaning::Own { of: vec![place], flag: own });
            }
            removed(Some(place), rest, flag)?;
        }
        let found = (0..self.own.len()).find_map(|place| self.canonical(place, name));
        if let Some(flag) = found {
            return Ok(Meaning::Own { of: self.owners(&flag), flag });
        }
        removed(None, name, flag)?;
        Err(UsageError::UnknownFlag { flag: flag.to_owned(), nearest: self.nearest(name) })
    }

    /// The exact name of a sidecar's own flag.
    fn canonical(&self, place: Place, name: &str) -> Option<String> {
        let also = ALSO.iter().find(|(short, _)| *short == name).map(|(_, long)| *long);
        let found = self.arg(place, name).or_else(|| self.arg(place, also?))?;
        found.get_long().map(str::to_owned)
    }

    fn nearest(&self, name: &str) -> Option<String> {
        let visible = |arg: &&Arg| !arg.is_hide_set();
        let of_process = self.process.get_arguments().filter(visible).filter_map(Arg::get_long);
        let own = self.own.iter().zip(INCLUDABLE).flat_map(|(args, one)| {
            let longs = args.iter().filter_map(Arg::get_long);
            longs.flat_map(|long| [long.to_owned(), format!("{}-{long}", one.name)])
        });
        let all: Vec<String> = of_process.map(str::to_owned).chain(own).collect();
        nearest(name, all.iter().map(String::as_str)).map(|name| format!("--{name}"))
    }
}

fn has(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(name))
}

/// Sidecars of whose names one begins this flag, with what follows.
fn prefixed(name: &str) -> impl Iterator<Item = (Place, &str)> {
    INCLUDABLE.iter().enumerate().flat_map(move |(place, one)| {
        let rest = |prefix: &str| name.strip_prefix(prefix)?.strip_prefix('-');
        one.names().filter_map(rest).map(move |rest| (place, rest))
    })
}

/// Refuses a flag that the official program of one sidecar once had, or of any.
fn removed(only: Option<Place>, name: &str, flag: &str) -> Result<(), UsageError> {
    let places = INCLUDABLE.iter().enumerate();
    let asked = places.filter(|(place, _)| only.is_none_or(|only| only == *place));
    let rows = asked.filter_map(|(_, one)| one.here()).flat_map(|here| here.removed);
    match rows.into_iter().find(|(gone, _)| *gone == name) {
        Some((_, advice)) => Err(UsageError::RemovedFlag { flag: flag.to_owned(), advice }),
        None => Ok(()),
    }
}
