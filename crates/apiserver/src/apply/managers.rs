//! `metadata.managedFields`: who set which fields.

use std::collections::HashSet;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::merge::Changes;
use super::set::FieldSet;
use crate::error::{Status, cut};

/// Fields that belong to the server, or name the object; they have no manager.
const UNMANAGED: &[&[&str]] = &[
    &["f:apiVersion"],
    &["f:kind"],
    &["f:metadata", "f:name"],
    &["f:metadata", "f:namespace"],
    &["f:metadata", "f:creationTimestamp"],
    &["f:metadata", "f:selfLink"],
    &["f:metadata", "f:uid"],
    &["f:metadata", "f:clusterName"],
    &["f:metadata", "f:generation"],
    &["f:metadata", "f:managedFields"],
    &["f:metadata", "f:resourceVersion"],
    &["f:metadata", "f:deletionTimestamp"],
    &["f:metadata", "f:deletionGracePeriodSeconds"],
];
/// How many updaters are kept apart; the oldest ones are merged into one entry.
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";
/// The manager of all fields that were written before the first apply.
const BEFORE_APPLY: &str = "before-first-apply";

/// Removes the fields that have no manager.
pub(crate) fn strip(set: &mut FieldSet) {
    UNMANAGED.iter().for_each(|path| set.prune(path));
    if let Some(meta) = set.children.get_mut("f:metadata") {
        meta.own = false;
        if meta.is_empty() {
            set.children.remove("f:metadata");
        }
    }
}

/// Who writes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writer<'a> {
    pub manager: &'a str,
    /// Whether this is an apply.
    pub apply: bool,
    pub api_version: &'a str,
    /// The part written to, empty for the main one.
    pub subresource: &'a str,
    pub now: &'a str,
}

/// A set of fields that may still be text.
#[derive(Debug, Clone)]
enum Fields {
    /// As objects carry it.
    Text(Box<RawValue>),
    Set(FieldSet),
}

impl Fields {
    const NONE: &str = "{}";

    /// The set; text that is none stands for an empty one.
    fn read(&self) -> FieldSet {
        match self {
            Self::Set(set) => set.clone(),
            Self::Text(text) => {
                let mut set: FieldSet = serde_json::from_str(text.get()).unwrap_or_default();
                // The object itself has no manager.
                set.own = false;
                set
            }
        }
    }

    fn set(&mut self) -> &mut FieldSet {
        if let Self::Text(_) = self {
            *self = Self::Set(self.read());
        }
        match self {
            Self::Set(set) => set,
            Self::Text(_) => unreachable!("it has just been read"),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.get() == Self::NONE,
            Self::Set(set) => set.is_empty(),
        }
    }

    /// Whether it may share a member with another set. Text is not read for that: a member of it is
    /// there by its name and those above.
    fn may_share(&self, other: &FieldSet) -> bool {
        /// Names that are looked for. Each takes a walk through the text; reading it is cheaper then.
        const LOOKED_FOR: usize = 32;
        fn below(text: &str, set: &FieldSet, looked: &mut usize) -> bool {
            set.children.iter().any(|(name, child)| {
                *looked += 1;
                if *looked > LOOKED_FOR {
                    return true;
                }
                // What would be written with escapes is not looked for.
                let plain =
                    !name.contains(|c: char| c == '"' || c == '\\' || !(' '..='~').contains(&c));
                (!plain || text.contains(name.as_str()))
                    && (child.own || below(text, child, looked))
            })
        }
        match self {
            Self::Text(text) => below(text.get(), other, &mut 0),
            Self::Set(_) => true,
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Set(set) => set.serialize(serializer),
        }
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.read() == other.read()
    }
}

impl Eq for Fields {}

/// One manager's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    manager: String,
    apply: bool,
    api_version: String,
    subresource: String,
    time: String,
    fields: Fields,
}

impl Entry {
    fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let apply = match value["operation"].as_str()? {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        Some(Self {
            manager: text("manager"),
            apply,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: Fields::Set(FieldSet::parse(&value["fieldsV1"])?),
        })
    }

    fn to_value(&self) -> Value {
        let mut value = json!({
            "manager": self.manager, "operation": if self.apply { "Apply" } else { "Update" },
            "apiVersion": self.api_version, "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.read().to_value(),
        });
        if !self.time.is_empty() {
            value["time"] = json!(self.time);
        }
        if !self.subresource.is_empty() {
            value["subresource"] = json!(self.subresource);
        }
        value
    }

    /// Appliers are one manager in all versions; updaters have one entry for each version.
    fn is(&self, writer: Writer<'_>) -> bool {
        self.manager == writer.manager
            && self.apply == writer.apply
            && self.subresource == writer.subresource
            && (self.apply || self.api_version == writer.api_version)
    }
}

/// One manager's fields as text has them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EntryText {
    #[serde(default)]
    manager: String,
    operation: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    time: String,
    #[serde(rename = "fieldsV1")]
    fields: Box<RawValue>,
}

impl EntryText {
    fn entry(self) -> Option<Entry> {
        let Self { manager, operation, api_version, subresource, time, fields } = self;
        let apply = match operation.as_str() {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        let fields = Fields::Text(fields);
        Some(Entry { manager, apply, api_version, subresource, time, fields })
    }
}

/// The same on the way to text; the fields are in the order of their names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EntryShown<'a> {
    api_version: &'a str,
    fields_type: &'a str,
    #[serde(rename = "fieldsV1")]
    fields: &'a Fields,
    manager: &'a str,
    operation: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    time: &'a str,
}

impl<'a> From<&'a Entry> for EntryShown<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self {
            api_version: &entry.api_version,
            fields_type: "FieldsV1",
            fields: &entry.fields,
            manager: &entry.manager,
            operation: if entry.apply { "Apply" } else { "Update" },
            subresource: &entry.subresource,
            time: &entry.time,
        }
    }
}

/// All managers of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Managers(Vec<Entry>);

impl Managers {
    /// Reads the managers of an object; `None` when they cannot be read.
    pub(crate) fn parse(list: &Value) -> Option<Self> {
        list.as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .map(Entry::parse)
            .collect::<Option<_>>()
            .map(Self)
    }

    /// The same from their text.
    pub(crate) fn parse_text(text: &str) -> Option<Self> {
        let entries: Vec<EntryText> = serde_json::from_str(text).ok()?;
        entries.into_iter().map(EntryText::entry).collect::<Option<_>>().map(Self)
    }

    /// The managers of a new object: whoever made it has all of it.
    pub(crate) fn initial(writer: Writer<'_>, mut set: FieldSet) -> Self {
        strip(&mut set);
        if set.is_empty() {
            return Self::default();
        }
        Self(vec![Entry {
            manager: writer.manager.into(),
            apply: writer.apply,
            api_version: writer.api_version.into(),
            subresource: writer.subresource.into(),
            time: writer.now.into(),
            fields: Fields::Set(set),
        }])
    }

    /// Whether there is no manager.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All fields from before the first apply belong to one manager.
    pub(crate) fn before_apply(everything: FieldSet, api_version: &str, now: &str) -> Self {
        Self(vec![Entry {
            manager: BEFORE_APPLY.into(),
            apply: false,
            api_version: api_version.into(),
            subresource: String::new(),
            time: now.into(),
            fields: Fields::Set(everything),
        }])
    }

    /// The fields of a writer so far.
    pub(crate) fn of(&self, writer: Writer<'_>) -> FieldSet {
        self.0.iter().find(|e| e.is(writer)).map(|e| e.fields.read()).unwrap_or_default()
    }

    /// The fields of all other managers.
    pub(crate) fn union_of_others(&self, writer: Writer<'_>) -> FieldSet {
        let mut all = FieldSet::default();
        let others = self.0.iter().filter(|entry| !entry.is(writer));
        others.for_each(|entry| all.union(&entry.fields.read()));
        all
    }

    /// The fields in `changed` that other managers hold: name, version if it is known, fields.
    pub(crate) fn conflicts(
        &self,
        writer: Writer<'_>,
        changed: &FieldSet,
    ) -> Vec<(String, FieldSet)> {
        let others = self.0.iter().filter(|entry| !entry.is(writer));
        let held = others.map(|entry| {
            let mut who = format!("{:?}", entry.manager);
            if !entry.subresource.is_empty() {
                who.push_str(&format!(" with subresource {:?}", entry.subresource));
            }
            if !entry.apply {
                who.push_str(&format!(" using {}", entry.api_version));
            }
            (who, entry.fields.read().intersection(changed))
        });
        held.filter(|(_, set)| !set.is_empty()).collect()
    }

    /// Records a write: changed fields belong to the writer now, removed ones to no manager.
    /// Appliers own exactly what they sent.
    pub(crate) fn note(
        &mut self,
        writer: Writer<'_>,
        changes: &Changes,
        applied: Option<FieldSet>,
    ) {
        for entry in self.0.iter_mut().filter(|entry| !entry.is(writer)) {
            for lost in [&changes.set, &changes.gone] {
                if entry.fields.may_share(lost) {
                    entry.fields.set().subtract(lost);
                }
            }
        }
        // An apply counts when it changes the object, any other write when it takes or loses fields.
        // Who applies what is there already is a manager without a time.
        let changed = !changes.set.is_empty() || !changes.gone.is_empty();
        let own = self.0.iter_mut().find(|entry| entry.is(writer));
        let before = own.as_ref().map(|entry| entry.fields.read()).unwrap_or_default();
        let mut set = applied.unwrap_or_else(|| {
            let mut set = before.clone();
            set.subtract(&changes.gone);
            set.union(&changes.set);
            set
        });
        strip(&mut set);
        match own {
            Some(entry) => {
                if (writer.apply && changed) || (!writer.apply && set != before) {
                    entry.time = writer.now.into();
                }
                entry.api_version = writer.api_version.into();
                entry.fields = Fields::Set(set);
            }
            None => self.0.push(Entry {
                manager: writer.manager.into(),
                apply: writer.apply,
                api_version: writer.api_version.into(),
                subresource: writer.subresource.into(),
                time: if changed || !writer.apply { writer.now.into() } else { String::new() },
                fields: Fields::Set(set),
            }),
        }
        self.0.retain(|entry| !entry.fields.is_empty());
        self.sum_up();
    }

    /// Keeps the list short: the oldest updaters become one.
    fn sum_up(&mut self) {
        let mut updaters: Vec<usize> = (0..self.0.len()).filter(|i| !self.0[*i].apply).collect();
        let Some(spare) = updaters.len().checked_sub(MAX_UPDATERS).filter(|spare| *spare > 0)
        else {
            return;
        };
        updaters.sort_by(|a, b| {
            fn key(e: &Entry) -> (bool, &str, &str) {
                (e.manager != ANCIENT, &e.time, &e.manager)
            }
            key(&self.0[*a]).cmp(&key(&self.0[*b]))
        });
        let (oldest, next) = (updaters[0], &updaters[1..=spare]);
        let (mut fields, mut time) = (self.0[oldest].fields.read(), self.0[oldest].time.clone());
        for gone in next.iter().map(|at| &self.0[*at]) {
            fields.union(&gone.fields.read());
            time = time.max(gone.time.clone());
        }
        let kept = &mut self.0[oldest];
        kept.manager = ANCIENT.into();
        kept.subresource = String::new();
        kept.time = time;
        kept.fields = Fields::Set(fields);
        let gone: HashSet<usize> = next.iter().copied().collect();
        let mut at = 0;
        self.0.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
    }

    /// In the order in which objects carry them.
    fn sorted(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.0.iter().collect();
        entries.sort_by(|a, b| {
            fn key(e: &Entry) -> (bool, [&str; 4]) {
                (!e.apply, [&e.time, &e.manager, &e.api_version, &e.subresource])
            }
            key(a).cmp(&key(b))
        });
        entries
    }

    /// The list as objects carry it.
    pub(crate) fn to_value(&self) -> Value {
        self.sorted().into_iter().map(Entry::to_value).collect()
    }

    /// The text of that list.
    pub(crate) fn to_text(&self) -> String {
        let entries: Vec<EntryShown<'_>> =
            self.sorted().into_iter().map(EntryShown::from).collect();
        serde_json::to_string(&entries).expect("names and texts are always text")
    }
}

/// 409: others hold fields that an apply would change. The first ones are named.
pub(crate) fn conflict(held: &[(String, FieldSet)]) -> Status {
    const NAMED: usize = 100;
    let count: usize = held.iter().map(|(_, set)| set.count()).sum();
    let mut left = NAMED;
    let mut paths: Vec<(&str, Vec<String>)> = Vec::new();
    for (who, set) in held {
        let named = set.paths(left);
        left -= named.len();
        if !named.is_empty() {
            paths.push((who, named));
        }
    }
    let each = paths.iter().flat_map(|(who, paths)| paths.iter().map(move |path| (who, path)));
    let causes: Vec<Value> = each
        .map(|(who, path)| {
            json!({"reason": "FieldManagerConflict", "message": format!("conflict with {}", cut(who)), "field": path})
        })
        .collect();
    let message = match (paths.as_slice(), count) {
        ([(who, path)], 1) => {
            format!("Apply failed with 1 conflict: conflict with {}: {}", cut(who), path[0])
        }
        _ => {
            let mut texts: Vec<String> = paths
                .iter()
                .map(|(who, paths)| {
                    format!("conflicts with {}:\n- {}", cut(who), paths.join("\n- "))
                })
                .collect();
            if count > NAMED {
                texts.push(format!("and {} more", count - NAMED));
            }
            format!("Apply failed with {count} conflicts: {}", texts.join("\n"))
        }
    };
    Status::apply_conflict(message, causes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: Value) -> FieldSet {
        FieldSet::parse(&value).unwrap()
    }

    fn writer(manager: &str, apply: bool) -> Writer<'_> {
        Writer { manager, apply, api_version: "v1", subresource: "", now: "t1" }
    }

    fn changes(value: Value) -> Changes {
        Changes { set: set(value), gone: FieldSet::default() }
    }

    #[test]
    fn a_plain_write_takes_fields_away() {
        let mut managers = Managers::default();
        let both = json!({"f:data": {"f:a": {}, "f:b": {}}});
        managers.note(writer("m1", true), &changes(both.clone()), Some(set(both)));
        managers.note(writer("edit", false), &changes(json!({"f:data": {"f:a": {}}})), None);
        let list = managers.to_value();
        assert_eq!(list[0]["fieldsV1"], json!({"f:data": {"f:b": {}}}));
        assert_eq!(
            (&list[1]["manager"], &list[1]["operation"]),
            (&json!("edit"), &json!("Update"))
        );
        assert_eq!(Managers::parse(&list).unwrap().to_value(), list);
        assert_eq!(managers.to_text(), list.to_string());
        assert_eq!(Managers::parse_text(&list.to_string()).unwrap().to_value(), list);
        let held = managers.conflicts(writer("m1", true), &set(json!({"f:data": {"f:a": {}}})));
        assert_eq!(held.len(), 1);
        assert_eq!(
            conflict(&held).message,
            "Apply failed with 1 conflict: conflict with \"edit\" using v1: .data.a"
        );
    }

    #[test]
    fn managers_read_from_text_are_the_same_after_each_write() {
        let list = json!([
            {"manager": "a", "operation": "Update", "apiVersion": "v1", "time": "t0", "fieldsType": "FieldsV1",
             "fieldsV1": {"f:spec": {"f:size": {}, "f:modes": {}}}},
            {"manager": "b", "operation": "Update", "apiVersion": "v1", "time": "t0", "fieldsType": "FieldsV1",
             "fieldsV1": {"f:status": {".": {}, "f:size": {}, "f:conditions": {"k:{\"type\":\"A\"}": {".": {}, "f:x": {}}}}}},
            {"manager": "c", "operation": "Apply", "apiVersion": "v1", "time": "t0", "fieldsType": "FieldsV1",
             "fieldsV1": {"f:metadata": {"f:labels": {"f:é": {}, "f:q\"": {}}}}},
        ]);
        let writes = [
            json!({"f:status": {"f:size": {}}}),
            json!({"f:spec": {"f:size": {}}}),
            json!({"f:other": {"f:size": {}}}),
            json!({"f:status": {"f:conditions": {"k:{\"type\":\"A\"}": {".": {}, "f:x": {}}}}}),
            json!({"f:metadata": {"f:labels": {"f:é": {}}}}),
            json!({"f:metadata": {"f:labels": {"f:q\"": {}}}}),
            json!({"f:status": {}}),
        ];
        for write in writes {
            for gone in [false, true] {
                let (mut set, mut lost) = (set(write.clone()), FieldSet::default());
                if gone {
                    std::mem::swap(&mut set, &mut lost);
                }
                let changes = Changes { set, gone: lost };
                for manager in ["a", "b", "new"] {
                    let mut read = Managers::parse(&list).unwrap();
                    let mut text = Managers::parse_text(&list.to_string()).unwrap();
                    read.note(writer(manager, false), &changes, None);
                    text.note(writer(manager, false), &changes, None);
                    assert_eq!(text.to_text(), read.to_text(), "{manager} writes {write}");
                }
            }
        }
    }

    #[test]
    fn removed_fields_have_no_manager() {
        let mut managers = Managers::default();
        managers.note(writer("a", false), &changes(json!({"f:x": {}})), None);
        let gone = Changes { set: FieldSet::default(), gone: set(json!({"f:x": {}})) };
        managers.note(writer("b", false), &gone, None);
        assert!(managers.is_empty());
    }

    #[test]
    fn old_updaters_are_summed_up() {
        let mut managers = Managers::default();
        for i in 0..15 {
            let name = format!("m{i:02}");
            managers.note(writer(&name, false), &changes(json!({format!("f:x{i}"): {}})), None);
        }
        assert_eq!(managers.0.len(), MAX_UPDATERS);
        let ancient = managers.0.iter().find(|e| e.manager == ANCIENT).unwrap();
        assert_eq!(ancient.fields.read().children.len(), 6);
    }

    #[test]
    fn names_and_server_fields_have_no_manager() {
        let mut fields =
            set(json!({"f:metadata": {".": {}, "f:name": {}, "f:labels": {"f:a": {}}}}));
        strip(&mut fields);
        assert_eq!(fields.to_value(), json!({"f:metadata": {"f:labels": {"f:a": {}}}}));
    }
}
