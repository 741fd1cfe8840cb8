//! Feature gates: named switches with a default and a stage.

use std::collections::BTreeMap;

use super::{UsageError, nearest, values};

/// How far a feature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// On for good; switching it is allowed as upstream allows it.
    Stable,
    /// On unless switched off; it may change yet.
    Beta,
    /// Off unless asked for.
    Alpha,
    /// Known upstream, absent here: switching it on is refused with this reason.
    NotYet(&'static str),
    /// Upstream had it and removed it; it keeps its default for good. Manifests that still set it to that are
    /// accepted with a note.
    Removed,
}

/// One gate of a program.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    /// Upstream's name.
    pub name: &'static str,
    /// Its value when the command line does not set it.
    pub default: bool,
    /// How far it is here.
    pub stage: Stage,
}

/// Every Go program has these two.
const ALL_ALPHA: &str = "AllAlpha";
/// No gate here is in beta.
const ALL_BETA: &str = "AllBeta";

/// The gates of a program after `--feature-gates` was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gates {
    values: BTreeMap<&'static str, (bool, bool)>,
    notes: Vec<String>,
}

/// The help of `--feature-gates`: the gates that can be set, with their defaults.
#[must_use]
pub fn gates_help(known: &[&[Gate]]) -> String {
    let mut gates = Vec::new();
    for gate in known.iter().copied().flatten() {
        let state = if gate.default { "on" } else { "off" };
        match gate.stage {
            Stage::Stable => gates.push(format!("{} ({state})", gate.name)),
            Stage::Beta => gates.push(format!("{} ({state}, beta)", gate.name)),
            Stage::Alpha => gates.push(format!("{} ({state}, alpha)", gate.name)),
            Stage::NotYet(_) | Stage::Removed => {}
        }
    }
    format!("Feature gates, as in Name=true,Name=false: {}", gates.join(", "))
}

impl Gates {
    /// Applies every `--feature-gates` of the command line, in order, over the defaults of `known`.
    ///
    /// # Errors
    /// On a malformed item, an unknown gate, or a gate whose feature is not there.
    pub fn read(known: &[Gate], given: &[String]) -> Result<Self, UsageError> {
        let refuse =
            |value: &str, why: String| UsageError::bad_value("--feature-gates", value, why);
        let mut values: BTreeMap<_, _> =
            known.iter().map(|gate| (gate.name, (gate.default, false))).collect();
        let mut notes = Vec::new();
        for text in given {
            for (name, on) in values::switches(text).map_err(|why| refuse(text, why))? {
                if name == ALL_ALPHA || name == ALL_BETA {
                    let stage = if name == ALL_ALPHA { Stage::Alpha } else { Stage::Beta };
                    for gate in known.iter().filter(|gate| gate.stage == stage) {
                        // As in Go, a gate that is named wins over all gates of its stage.
                        values
                            .entry(gate.name)
                            .and_modify(|value| value.0 = if value.1 { value.0 } else { on });
                    }
                    continue;
                }
                let Some(gate) = known.iter().find(|gate| gate.name == name) else {
                    let hint = nearest(&name, known.iter().map(|gate| gate.name))
                        .map(|name| format!("; did you mean {name}?"))
                        .unwrap_or_default();
                    return Err(refuse(text, format!("there is no feature gate `{name}`{hint}")));
                };
                if let (Stage::NotYet(what), true) = (gate.stage, on != gate.default) {
                    let flag = format!("--feature-gates={name}={on}");
                    return Err(UsageError::FlagNotYet { flag, what });
                }
                if gate.stage == Stage::Removed {
                    notes.push(removed(gate, on).map_err(|why| refuse(text, why))?);
                }
                values.insert(gate.name, (on, true));
            }
        }
        Ok(Self { values, notes })
    }

    /// What to log at the start: gates that were accepted without an effect.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the gate is on. A name that the program does not have is off.
    #[must_use]
    pub fn on(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|(on, _)| *on)
    }

    /// Whether the command line sets the gate.
    #[must_use]
    pub fn set_explicitly(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|(_, explicit)| *explicit)
    }
}

/// The note about a removed gate that is set to what it is for good, or why it cannot be set.
fn removed(gate: &Gate, on: bool) -> Result<String, String> {
    let Gate { name, default, .. } = gate;
    let state = if *default { "on" } else { "off" };
    if on != *default {
        return Err(format!("`{name}` was removed upstream and is always {state}; leave it out"));
    }
    Ok(format!(
        "--feature-gates={name}={on} has no effect: the gate was removed upstream and is always {state}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Gate] = &[
        Gate { name: "Topology", default: true, stage: Stage::Stable },
        Gate { name: "Release", default: false, stage: Stage::Alpha },
        Gate { name: "Later", default: false, stage: Stage::NotYet("it comes with snapshots") },
        Gate { name: "Old", default: true, stage: Stage::Removed },
    ];

    fn read(texts: &[&str]) -> Result<Gates, String> {
        let given: Vec<String> = texts.iter().map(ToString::to_string).collect();
        Gates::read(KNOWN, &given).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_overrides_and_order() {
        for (given, topology, release) in [
            (&[][..], true, false),
            (&["Topology=false"][..], false, false),
            (&["Topology=false,Release=true"][..], false, true),
            (&["Topology=false", "Topology=T"][..], true, false),
            (&["Later=false"][..], true, false),
            (&["AllAlpha=true,AllBeta=true"][..], true, true),
            (&["Release=false,AllAlpha=true"][..], true, false),
        ] {
            let gates = read(given).unwrap();
            assert_eq!(
                (gates.on("Topology"), gates.on("Release")),
                (topology, release),
                "{given:?}"
            );
        }
        let gates = read(&["Topology=true"]).unwrap();
        assert!(gates.set_explicitly("Topology") && !gates.set_explicitly("Release"));
    }

    #[test]
    fn a_removed_gate_is_accepted_as_it_is_with_a_note() {
        let gates = read(&["Old=true"]).unwrap();
        assert!(gates.on("Old"));
        let note = "--feature-gates=Old=true has no effect: the gate was removed upstream and is always on";
        assert_eq!(gates.notes(), [note]);
    }

    #[test]
    fn refusals_name_the_gate() {
        for (given, part) in [
            ("Old=false", "`Old` was removed upstream and is always on; leave it out"),
            ("Topolgy=true", "there is no feature gate `Topolgy`; did you mean Topology?"),
            ("Topology", "lacks its =true"),
            (
                "Later=true",
                "--feature-gates=Later=true is not part of this version yet: it comes with snapshots",
            ),
        ] {
            let sentence = read(&[given]).unwrap_err();
            assert!(sentence.contains(part), "{given}: {sentence}");
        }
    }
}
