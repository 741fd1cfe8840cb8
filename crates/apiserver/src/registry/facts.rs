//! Facts about the fields of built-in types that their Rust types do not carry: how lists and objects
//! merge, and what published schemas and errors say of them.
//!
//! Each kind states those of its types, one a line, and `kinds/common.rs` those that several use.
//! Types are named without `io.k8s.api.` in front, types of other modules by their last part alone:
//!
//! * `list TYPE.FIELD KEY…`: a list that merges by these keys, or a set if there are none; lists that
//!   are not here are owned as a whole.
//! * `patch TYPE.FIELD STRATEGY [KEY]`: how strategic merge patches treat a list, `replace` or
//!   upstream's word. By default they merge it by its first key.
//! * `atomic TYPE`, `atomic-field TYPE.FIELD`: objects that are owned as a whole.
//! * `granular TYPE.FIELD`: owned by parts although its type is atomic elsewhere.
//! * `standing TYPE.FIELD`: there from the start, as metadata, spec and status are.
//! * `enum TYPE.FIELD VALUE…`: the values of a field, of its elements or of its entries.
//! * `required TYPE FIELD…`: the fields that must be there, where the Rust type says something else.
//! * `type TYPE.FIELD GOTYPE`: what errors call the type of a field.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::kinds::{KINDS, common};

type Field = (&'static str, &'static str);
/// Kept for as long as the process runs, as the table is.
type Words = &'static [&'static str];

#[derive(Default)]
struct Facts {
    lists: HashMap<Field, Words>,
    patches: HashMap<Field, (&'static str, Option<&'static str>)>,
    atomic: HashSet<&'static str>,
    atomic_fields: HashSet<Field>,
    granular: HashSet<Field>,
    standing: HashSet<Field>,
    enums: HashMap<Field, Words>,
    required: HashMap<&'static str, Words>,
    types: HashMap<Field, &'static str>,
}

static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    let mut facts = Facts::default();
    let stated = KINDS.iter().flat_map(|kind| kind.facts).chain(common::FACTS);
    for line in stated.flat_map(|text| text.lines()) {
        let read = facts.read(line);
        debug_assert!(read.is_some(), "no fact: {line}");
    }
    facts
});

impl Facts {
    fn read(&mut self, line: &'static str) -> Option<()> {
        let mut words = line.split(' ');
        let (fact, subject) = (words.next()?, words.next()?);
        let field = || subject.rsplit_once('.');
        match fact {
            "list" => _ = self.lists.insert(field()?, words.collect::<Vec<_>>().leak()),
            "patch" => _ = self.patches.insert(field()?, (words.next()?, words.next())),
            "atomic" => _ = self.atomic.insert(subject),
            "atomic-field" => _ = self.atomic_fields.insert(field()?),
            "granular" => _ = self.granular.insert(field()?),
            "standing" => _ = self.standing.insert(field()?),
            "enum" => {
                let values = words.map(|word| word.trim_matches('"'));
                self.enums.insert(field()?, values.collect::<Vec<_>>().leak());
            }
            "required" => _ = self.required.insert(subject, words.collect::<Vec<_>>().leak()),
            "type" => _ = self.types.insert(field()?, words.next()?),
            _ => return None,
        }
        Some(())
    }
}

/// The name of a type as facts have it.
fn short(name: &str) -> &str {
    match name.strip_prefix("io.k8s.api.") {
        Some(short) => short,
        None => name.rsplit('.').next().unwrap_or(name),
    }
}

/// The keys of a list that merges, none for a set.
pub(crate) fn list(owner: &str, field: &str) -> Option<&'static [&'static str]> {
    FACTS.lists.get(&(short(owner), field)).copied()
}

/// Whether objects of the type are owned as a whole.
pub(crate) fn is_atomic(name: &str) -> bool {
    FACTS.atomic.contains(short(name))
}

/// Whether the map in this field is owned as a whole.
pub(crate) fn is_atomic_field(owner: &str, field: &str) -> bool {
    FACTS.atomic_fields.contains(&(short(owner), field))
}

/// Whether this field is owned by parts although its type is atomic elsewhere.
pub(crate) fn is_granular(owner: &str, field: &str) -> bool {
    FACTS.granular.contains(&(short(owner), field))
}

/// Whether the field is there from the start.
pub(crate) fn is_standing(owner: &str, field: &str) -> bool {
    matches!(field, "metadata" | "spec" | "status")
        || FACTS.standing.contains(&(short(owner), field))
}

/// Strategy and key of a list in strategic merge patches.
pub(crate) fn patch(owner: &str, field: &str) -> Option<(&'static str, Option<&'static str>)> {
    match FACTS.patches.get(&(short(owner), field)) {
        Some(("replace", _)) => None,
        Some(patch) => Some(*patch),
        None => list(owner, field).map(|keys| ("merge", keys.first().copied())),
    }
}

/// The values that a field takes, if they are few.
pub(crate) fn values(owner: &str, field: &str) -> Option<&'static [&'static str]> {
    FACTS.enums.get(&(short(owner), field)).copied()
}

/// The fields that must be there, where the Rust type says something else.
pub(crate) fn required(name: &str) -> Option<&'static [&'static str]> {
    FACTS.required.get(short(name)).copied()
}

/// The Go type of a field, where its schema does not say it.
pub(crate) fn go_type(owner: &str, field: &str) -> Option<&'static str> {
    FACTS.types.get(&(short(owner), field)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_their_published_names() {
        let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        assert_eq!(list(meta, "ownerReferences"), Some(&["uid"][..]));
        assert_eq!(list(meta, "finalizers"), Some(&[][..]));
        assert_eq!(list("io.k8s.api.core.v1.PodSpec", "tolerations"), None);
        assert!(is_atomic("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"));
        assert_eq!(patch(meta, "finalizers"), Some(("merge", None)));
        let volumes = patch("io.k8s.api.core.v1.PodSpec", "volumes");
        assert_eq!(volumes, Some(("merge,retainKeys", Some("name"))));
    }
}
