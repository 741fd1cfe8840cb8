//! The compact form of a topology requirement in intent records.
//!
//! A cluster with one place per node has thousands of terms, each with the same keys and often the same values, and
//! both lists of a requirement have all of them. An object holds 1 MiB. So terms are written as columns, a value that
//! repeats is written once with its count, and the second list is said to be the first one from some place on. Short
//! lists are written as they are: people can read them, and so can the first version of this program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::topology::{Requirement, Term};

/// So many terms are written as they are.
const FEW: usize = 100;

/// A record with more terms was not written by us.
const MOST_PLACES: usize = 1_000_000;

/// A requirement as it is written down.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Written {
    Columns(Columns),
    /// As the first version wrote all of them. Lists that are no rotation of each other need it.
    Lists {
        requisite: Vec<Term>,
        preferred: Vec<Term>,
    },
}

/// Requisite terms by topology key.
#[derive(Serialize, Deserialize)]
pub(super) struct Columns {
    /// How many terms there are.
    places: usize,
    columns: BTreeMap<String, Vec<Run>>,
    /// The requisite term that is the first preferred one; the others follow in a circle.
    first: usize,
}

/// One value, or the same value (or none) of some terms in a row.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Run {
    One(String),
    Many(Option<String>, usize),
}

/// A requirement that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the topology of {places} places is damaged")]
pub(super) struct Damaged {
    places: usize,
}

impl From<Requirement> for Written {
    fn from(requirement: Requirement) -> Self {
        let many = requirement.requisite.len() > FEW;
        match many.then(|| Columns::of(&requirement)).flatten() {
            Some(columns) => Self::Columns(columns),
            None => {
                let Requirement { requisite, preferred } = requirement;
                Self::Lists { requisite, preferred }
            }
        }
    }
}

impl Columns {
    fn of(Requirement { requisite, preferred }: &Requirement) -> Option<Self> {
        let first = rotation(requisite, preferred)?;
        Some(Self { places: requisite.len(), columns: columns(requisite), first })
    }
}

impl TryFrom<Written> for Requirement {
    type Error = Damaged;

    fn try_from(written: Written) -> Result<Self, Damaged> {
        let Columns { places, columns, first } = match written {
            Written::Columns(columns) => columns,
            Written::Lists { requisite, preferred } => return Ok(Self { requisite, preferred }),
        };
        let damaged = Damaged { places };
        if places > MOST_PLACES || first > places {
            return Err(damaged);
        }
        let mut requisite = vec![Term::new(); places];
        for (key, runs) in columns {
            let mut next = requisite.iter_mut();
            for run in runs {
                let (value, count) = match run {
                    Run::One(value) => (Some(value), 1),
                    Run::Many(value, count) => (value, count),
                };
                if next.len() < count {
                    return Err(damaged);
                }
                let Some(value) = value else {
                    next.by_ref().take(count).for_each(drop);
                    continue;
                };
                for term in next.by_ref().take(count) {
                    term.insert(key.clone(), value.clone());
                }
            }
            if next.len() > 0 {
                return Err(damaged);
            }
        }
        let mut preferred = requisite.clone();
        preferred.rotate_left(first);
        Ok(Self { requisite, preferred })
    }
}

/// Where the second list starts in the first one, if it is the same otherwise.
fn rotation(requisite: &[Term], preferred: &[Term]) -> Option<usize> {
    let Some(best) = preferred.first() else { return requisite.is_empty().then_some(0) };
    let first = requisite.iter().position(|term| term == best)?;
    let (before, after) = requisite.split_at(first);
    after.iter().chain(before).eq(preferred).then_some(first)
}

fn columns(terms: &[Term]) -> BTreeMap<String, Vec<Run>> {
    let mut keys: Vec<&String> = terms.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| (key.clone(), runs(terms, key))).collect()
}

fn runs(terms: &[Term], key: &str) -> Vec<Run> {
    let groups = terms.chunk_by(|one, next| one.get(key) == next.get(key));
    groups
        .map(|group| match (group[0].get(key), group.len()) {
            (Some(value), 1) => Run::One(value.clone()),
            (value, count) => Run::Many(value.cloned(), count),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(pairs: &[(&str, &str)]) -> Term {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn rotated(requisite: Vec<Term>, first: usize) -> Requirement {
        let mut preferred = requisite.clone();
        preferred.rotate_left(first);
        Requirement { requisite, preferred }
    }

    #[test]
    fn requirement_is_written_compactly_and_read_back_as_it_was() {
        let zones = ["a", "b", "c"].map(|zone| term(&[("zone", zone)])).to_vec();
        let nodes = [("z1", "n1"), ("z1", "n2"), ("z2", "n3")];
        let nodes = nodes.map(|(zone, node)| term(&[("zone", zone), ("node", node)])).to_vec();
        let uneven =
            vec![term(&[("x", "1")]), term(&[("y", "1")]), term(&[("x", "2"), ("y", "2")])];
        let cases = [
            (
                rotated(zones.clone(), 0),
                r#"{"places":3,"columns":{"zone":["a","b","c"]},"first":0}"#,
            ),
            (
                rotated(nodes, 2),
                r#"{"places":3,"columns":{"node":["n1","n2","n3"],"zone":[["z1",2],"z2"]},"first":2}"#,
            ),
            (
                rotated(uneven, 1),
                r#"{"places":3,"columns":{"x":["1",[null,1],"2"],"y":[[null,1],"1","2"]},"first":1}"#,
            ),
            (rotated(vec![], 0), r#"{"places":0,"columns":{},"first":0}"#),
            (rotated(vec![Term::new()], 0), r#"{"places":1,"columns":{},"first":0}"#),
        ];
        for (requirement, text) in cases {
            let columns = Columns::of(&requirement).unwrap();
            assert_eq!(serde_json::to_string(&columns).unwrap(), text);
            assert_eq!(serde_json::from_str::<Requirement>(text).unwrap(), requirement, "{text}");
        }
    }

    #[test]
    fn lists_that_are_no_rotation_are_written_as_they_are() {
        let zones = ["a", "b", "c"].map(|zone| term(&[("zone", zone)])).to_vec();
        let of = |order: &[usize]| order.iter().map(|at| zones[*at].clone()).collect::<Vec<_>>();
        for (requisite, preferred) in
            [(&[0][..], &[][..]), (&[0, 1], &[0]), (&[0, 1, 2], &[1, 0, 2]), (&[], &[0])]
        {
            let requirement = Requirement { requisite: of(requisite), preferred: of(preferred) };
            assert!(Columns::of(&requirement).is_none(), "{requirement:?}");
        }
    }

    #[test]
    fn requirement_of_the_first_version_is_read() {
        let text =
            r#"{"requisite":[{"zone":"a"},{"zone":"b"}],"preferred":[{"zone":"b"},{"zone":"a"}]}"#;
        let zones = ["a", "b"].map(|zone| term(&[("zone", zone)])).to_vec();
        assert_eq!(serde_json::from_str::<Requirement>(text).unwrap(), rotated(zones, 1));
    }

    #[test]
    fn damaged_columns_are_refused() {
        for text in [
            r#"{"places":2,"columns":{"zone":["a"]},"first":0}"#,
            r#"{"places":1,"columns":{"zone":["a","b"]},"first":0}"#,
            r#"{"places":2,"columns":{"zone":[["a",18446744073709551615]]},"first":0}"#,
            r#"{"places":2,"columns":{"zone":[["a",2]]},"first":3}"#,
            r#"{"places":18446744073709551615,"columns":{},"first":0}"#,
            r#"{"places":2,"columns":{}}"#,
        ] {
            assert!(serde_json::from_str::<Requirement>(text).is_err(), "{text}");
        }
    }
}
