//! From the flags of the process to those of each sidecar, which reads them as the program that it is.

use longshore_cluster::election::pod_identity;
use longshore_core::words;

use super::Config;
use super::choice::choose;
use super::flags::{Flags, Globals, own_name};
use super::known::{Known, Place};
use super::table::INCLUDABLE;
use crate::flags::{UsageError, nearest, values};
use crate::programs::sidecar;

/// Flags of the process that are nothing to its sidecars.
const FOR_THE_PROCESS: [&str; 4] = ["controllers", "enable-pprof", "version", "feature-gates"];

/// Gates that stand for many.
const ALL_OF_A_STAGE: [&str; 2] = ["AllAlpha", "AllBeta"];

/// Reads the flags of the process and of its sidecars.
///
/// # Errors
/// When they cannot be run.
pub(super) fn read(flags: Flags) -> Result<Config, UsageError> {
    let chosen = choose(&flags.globals.controllers)?;
    let switches = switches(&flags.globals.feature_gates)?;
    refuse_leaders_of_nodes(&flags, chosen.iter().copied())?;
    let mut members = Vec::new();
    for place in &chosen {
        let part = INCLUDABLE[*place].name;
        let Some(here) = INCLUDABLE[*place].here() else { continue };
        let args = arguments(&flags, *place, &switches);
        let member = (here.read)(&args)
            .map_err(|error| UsageError::InPart { part, error: Box::new(error) })?;
        members.push((part, member));
    }
    let notes = notes(&flags, |place| chosen.contains(&place));
    let identity = pod_identity(flags.globals.sidecar.environment.pod_uid.as_deref());
    Ok(Config { process: process(flags.globals, &switches, notes)?, members, identity })
}

/// The command line of one sidecar, as if it were a process of its own.
pub(super) fn arguments(flags: &Flags, place: Place, switches: &[(String, bool)]) -> Vec<String> {
    let one = &INCLUDABLE[place];
    let typed = |name: &str, values: &[String]| -> Vec<String> {
        values.iter().map(|value| format!("--{name}={value}")).collect()
    };
    let mut args = Vec::new();
    let of_process = flags
        .given
        .iter()
        .filter(|(name, _)| !FOR_THE_PROCESS.contains(&name.as_str()) && Known::takes(place, name));
    of_process.for_each(|(name, values)| args.extend(typed(name, values)));
    let gates = switches
        .iter()
        .filter(|(name, _)| one.has_gate(name) || ALL_OF_A_STAGE.contains(&name.as_str()));
    let gates: Vec<String> = gates.map(|(name, on)| format!("{name}={on}")).collect();
    if !gates.is_empty() && Known::takes(place, "feature-gates") {
        args.extend(typed("feature-gates", &gates));
    }
    let prefix = own_name(one.name, "");
    let own =
        flags.given.iter().filter_map(|(name, values)| Some((name.strip_prefix(&prefix)?, values)));
    own.for_each(|(name, values)| args.extend(typed(name, values)));
    args
}

/// Gates that were set for all.
pub(super) fn switches(given: &[String]) -> Result<Vec<(String, bool)>, UsageError> {
    let mut all = Vec::new();
    for text in given {
        let refuse = |why: String| {
            UsageError::AsOfficial(format!("--feature-gates cannot be `{text}`: {why}"))
        };
        for (name, on) in values::switches(text).map_err(refuse)? {
            let known = INCLUDABLE.iter().any(|one| one.has_gate(&name));
            if !known && !ALL_OF_A_STAGE.contains(&name.as_str()) {
                let here = INCLUDABLE.iter().filter_map(|one| one.here());
                let names = here.flat_map(|here| here.gates.iter().copied().flatten());
                let meant = nearest(&name, names.map(|gate| gate.name));
                let meant = meant.map(|name| format!("; did you mean {name}?"));
                let meant = meant.unwrap_or_default();
                return Err(refuse(format!("no controller has a feature gate `{name}`{meant}")));
            }
            all.push((name, on));
        }
    }
    Ok(all)
}

/// With an instance on every node, one lease for all of them would leave all nodes but one without.
fn refuse_leaders_of_nodes(
    flags: &Flags,
    mut chosen: impl Iterator<Item = Place>,
) -> Result<(), UsageError> {
    const DEPLOYMENT: &str = "node-deployment";
    let on = |name: &str| {
        let last = flags.given.get(name).and_then(|values| values.last());
        last.is_some_and(|value| values::boolean(value).unwrap_or_default())
    };
    let deployed = chosen.find(|place| on(&own_name(INCLUDABLE[*place].name, DEPLOYMENT)));
    match deployed {
        Some(place) if on("leader-election") => Err(UsageError::AsOfficial(format!(
            "--leader-election and --{}-{DEPLOYMENT} cannot be used together: every node has its own, and one lease \
             would let only one of them work",
            INCLUDABLE[place].name
        ))),
        _ => Ok(()),
    }
}

/// A line for each sidecar that does not run and yet has flags.
fn notes(flags: &Flags, runs: impl Fn(Place) -> bool) -> Vec<String> {
    let rest = INCLUDABLE.iter().enumerate().filter(|(place, _)| !runs(*place));
    let notes = rest.filter_map(|(_, one)| {
        let prefix = own_name(one.name, "");
        let given = flags.given.keys().filter(|name| name.starts_with(&prefix));
        let given: Vec<String> = given.map(|name| format!("--{name}")).collect();
        let verb = if given.len() == 1 { "has" } else { "have" };
        let flags = words::list(&given);
        let why = format!("the {} is not among --controllers", one.name);
        (!given.is_empty()).then(|| format!("{flags} {verb} no effect: {why}"))
    });
    notes.collect()
}

/// What the process itself runs on.
fn process(
    globals: Globals,
    switches: &[(String, bool)],
    notes: Vec<String>,
) -> Result<sidecar::Config, UsageError> {
    let Globals { controllers: _, common, csi, feature_gates: _, master, sidecar, enable_pprof } =
        globals;
    let common_gate = |name: &str| sidecar::GATES.iter().any(|gate| gate.name == name);
    let given = switches.iter().filter(|(name, _)| common_gate(name));
    let given: Vec<String> = given.map(|(name, on)| format!("{name}={on}")).collect();
    let gates = sidecar::read_gates(&[], &given)?;
    let mut process = sidecar.config(common, csi, &gates)?;
    // Whoever sees the lease free takes over at once; only a switch that says so keeps it until it runs out.
    process.release_lease_on_exit |= !gates.set_explicitly(sidecar::RELEASE_ON_EXIT);
    process.kube.master = master.url();
    process.diagnostics = process.diagnostics.map(|served| served.with_pprof(enable_pprof));
    process.logging.notes.extend(notes);
    Ok(process)
}
