//! Columns and cells of built-in kinds: what `kubectl get` prints.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::rules::{items, text};
use longshore_core::model::age::since as age_since;

/// The columns of a kind, and what stands in them for an object.
#[derive(Clone, Copy)]
pub struct Table {
    pub columns: &'static [Column],
    pub cells: fn(&Row<'_>) -> Value,
}

/// Name, type, format, priority.
pub(crate) type Column = (&'static str, &'static str, &'static str, u8);

/// An object of which the cells are wanted.
pub struct Row<'a> {
    pub object: &'a Value,
    pub name: &'a str,
    pub age: String,
    now: Timestamp,
}

impl<'a> Row<'a> {
    pub fn new(object: &'a Value, now: Timestamp) -> Self {
        let age = age_since(text(object, "/metadata/creationTimestamp"), now);
        Self { object, name: text(object, "/metadata/name"), age, now }
    }

    /// How long ago a time was.
    pub fn since(&self, time: &str) -> String {
        age_since(time, self.now)
    }
}

pub(super) const NAME: Column = ("Name", "string", "name", 0);
pub(super) const AGE: Column = column("Age");
pub(super) const CREATED: Column = ("Created At", "date", "", 0);

/// What upstream prints for kinds that have no columns of their own.
pub(super) const PLAIN: Table = Table {
    columns: &[NAME, CREATED],
    cells: |row| json!([row.name, text(row.object, "/metadata/creationTimestamp")]),
};

pub(super) const fn column(name: &'static str) -> Column {
    (name, "string", "", 0)
}

pub(super) const fn flag(name: &'static str) -> Column {
    (name, "boolean", "", 0)
}

/// A column of `-o wide` alone.
pub(super) const fn wide(name: &'static str) -> Column {
    (name, "string", "", 1)
}

pub(super) fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    if value.is_empty() { default } else { value }
}

/// The access modes in kubectl's short form, e.g. `RWO,ROX`.
pub(super) fn short_modes(object: &Value, pointer: &str) -> String {
    const SHORT: &[(&str, &str)] = &[
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = items(object, pointer);
    let short = SHORT.iter().filter(|(mode, _)| has.iter().any(|m| m == mode));
    short.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// The phase, or that the object is being deleted.
pub(super) fn phase(object: &Value) -> &str {
    if object["metadata"]["deletionTimestamp"].is_null() {
        text(object, "/status/phase")
    } else {
        "Terminating"
    }
}
