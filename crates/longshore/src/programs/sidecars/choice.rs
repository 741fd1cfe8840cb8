//! `--controllers`: which sidecars run in the process.

use std::collections::BTreeSet;

use longshore_core::words;

use super::known::Place;
use super::table::{INCLUDABLE, Part};
use crate::flags::{UsageError, nearest};

/// All that usually run beside the controller of a driver.
pub(super) const ALL: &str = "*";

/// Reads the list: names, `*` for the usual ones, and `-NAME` to leave one out, in any order.
///
/// # Errors
/// On a name that there is not, a sidecar that this version does not have, and when none is left.
pub(super) fn choose(list: &str) -> Result<BTreeSet<Place>, UsageError> {
    let (mut chosen, mut left_out) = (BTreeSet::new(), BTreeSet::new());
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if word == ALL {
            let usual = |place: &Place| INCLUDABLE[*place].usual && is_here(*place);
            chosen.extend((0..INCLUDABLE.len()).filter(usual));
        } else if let Some(name) = word.strip_prefix('-') {
            left_out.insert(find(name)?);
        } else {
            let place = find(word)?;
            if !is_here(place) {
                let flag = format!("--controllers={}", INCLUDABLE[place].name);
                let what = "leave it out of the list; `*` does so by itself";
                return Err(UsageError::FlagNotYet { flag, what });
            }
            chosen.insert(place);
        }
    }
    chosen.retain(|place| !left_out.contains(place));
    if chosen.is_empty() {
        return Err(refuse(list, format!("it leaves no controller; {}", there_are())));
    }
    Ok(chosen)
}

fn is_here(place: Place) -> bool {
    matches!(INCLUDABLE[place].part, Part::Here(_))
}

fn find(name: &str) -> Result<Place, UsageError> {
    let found = INCLUDABLE.iter().position(|one| one.names().any(|known| known == name));
    found.ok_or_else(|| {
        let meant = nearest(name, INCLUDABLE.iter().map(|one| one.name));
        let meant = meant.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
        refuse(name, format!("there is no such controller; {meant}{}", there_are()))
    })
}

fn there_are() -> String {
    let names = (0..INCLUDABLE.len()).filter(|place| is_here(*place));
    let names = words::list(names.map(|place| INCLUDABLE[place].name.to_owned()));
    format!("there are {names}")
}

fn refuse(value: &str, why: String) -> UsageError {
    UsageError::bad_value("--controllers", value, why)
}
