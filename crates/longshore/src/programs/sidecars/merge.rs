//! From the two spellings of flags to one: flags of the process as they are, all others with the name of their sidecar
//! before them.
//!
//! A chart has one list of arguments for all of its sidecars, so a name without a sidecar before it is the value of each
//! chosen one that knows it; a flag with the name before it wins, wherever it stands.

use std::collections::BTreeMap;

use super::choice::choose;
use super::known::{Known, Meaning, Place};
use super::table::INCLUDABLE;
use crate::flags::{HELP, Normalized, Typed, UsageError, typed};

/// A value, and the flag as it was spelled, without dashes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    spelling: String,
    value: String,
}

/// Rewrites a command line.
///
/// # Errors
/// On a flag that nobody knows, one that contradicts itself, and a sidecar that there is not.
pub(super) fn merge(args: &[String]) -> Result<Normalized, UsageError> {
    let known = Known::new();
    let given = typed(args, |flag, name| Ok(known.is_switch(name, &known.meaning(flag, name)?)))?;
    let chosen = choose(last(&given, "controllers").unwrap_or(super::choice::ALL))?;
    let mut canonical = Vec::new();
    let mut own: BTreeMap<(Place, String), Value> = BTreeMap::new();
    let mut shared: BTreeMap<String, (Vec<Place>, Value)> = BTreeMap::new();
    for Typed { name, value } in given {
        if name == HELP {
            canonical.push(format!("--{HELP}"));
            continue;
        }
        match known.meaning(&format!("--{name}"), &name)? {
            Meaning::Process => canonical.push(format!("--{name}={value}")),
            Meaning::Own { of, flag } => {
                let value = Value { spelling: name, value };
                match of[..] {
                    [place] => set(own.entry((place, flag)), value)?,
                    _ => {
                        let before = shared.insert(flag, (of, value.clone()));
                        before.map_or(Ok(()), |(_, before)| value.agrees_with(&before))?;
                    }
                }
            }
        }
    }
    for (flag, (owners, value)) in shared {
        let here: Vec<Place> = owners.iter().copied().filter(|one| chosen.contains(one)).collect();
        for place in if here.is_empty() { owners } else { here } {
            own.entry((place, flag.clone())).or_insert_with(|| value.clone());
        }
    }
    canonical.extend(own.into_iter().map(|((place, flag), Value { value, .. })| {
        format!("--{}-{flag}={value}", INCLUDABLE[place].name)
    }));
    Ok(canonical)
}

type Entry<'a> = std::collections::btree_map::Entry<'a, (Place, String), Value>;

/// As in Go the last one wins, if it is spelled as the one before. Feature gates add up.
fn set(entry: Entry<'_>, mut value: Value) -> Result<(), UsageError> {
    let adds_up = entry.key().1 == "feature-gates";
    match entry {
        Entry::Vacant(entry) => drop(entry.insert(value)),
        Entry::Occupied(mut entry) => {
            if adds_up {
                value.value = format!("{},{}", entry.get().value, value.value);
            } else {
                value.agrees_with(entry.get())?;
            }
            entry.insert(value);
        }
    }
    Ok(())
}

impl Value {
    fn agrees_with(&self, before: &Self) -> Result<(), UsageError> {
        if self.spelling == before.spelling || self.value == before.value {
            return Ok(());
        }
        Err(UsageError::Together(format!(
            "--{}={} and --{}={} are one flag with two values; keep one of them",
            before.spelling, before.value, self.spelling, self.value
        )))
    }
}

fn last<'a>(given: &'a [Typed], name: &str) -> Option<&'a str> {
    given.iter().rfind(|one| one.name == name).map(|one| one.value.as_str())
}
