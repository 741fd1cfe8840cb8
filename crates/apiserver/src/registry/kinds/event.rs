//! `Event`: one store, shown as core/v1 and as events.k8s.io/v1.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;
use serde_json::{Map, Value, json};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{same, text};
use crate::registry::strategy::{Strategy, Traits};
use crate::registry::table::{Column, Row, Table, column, wide};
use crate::registry::{Conversion, names};

pub(super) static CORE_EVENT: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names { kind: "Event", plural: "events", short: &["ev"], categories: &[] },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<core::Event>,
    rules: || Arc::new(CoreEvent),
    table: Table { columns: COLUMNS, cells: |row| cells(row, &CORE_FIELDS) },
    selectors: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    quantities: &[],
    patch_keys: &[],
    facts: &["standing core.v1.Event.involvedObject", "standing core.v1.Event.source"],
    protobuf: &[
        "core.Event: 1 metadata meta.ObjectMeta, 2 involvedObject core.ObjectReference, \
         3 reason s, 4 message s, 5 source core.EventSource, 6 firstTimestamp t, \
         7 lastTimestamp t, 8 count i, 9 type s, 10 eventTime u, 11 series core.EventSeries, \
         12 action s, 13 related core.ObjectReference, 14 reportingComponent =s, \
         15 reportingInstance =s",
        "core.EventSeries: 1 count i, 2 lastObservedTime u",
        "core.EventSource: 1 component s, 2 host s",
    ],
};

/// The same events in their newer version.
pub(super) static EVENT: BuiltinKind = BuiltinKind {
    group_version: ("events.k8s.io", "v1"),
    names: Names { kind: "Event", plural: "events", short: &["ev"], categories: &[] },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Version {
        stored_as: "events",
        conversion: Conversion { to_version, to_storage },
    },
    typed: of::<events::Event>,
    rules: || Arc::new(Event),
    table: Table { columns: COLUMNS, cells: |row| cells(row, &NEW_FIELDS) },
    selectors: &[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ],
    quantities: &[],
    patch_keys: &[],
    facts: &[
        "standing events.v1.Event.deprecatedSource",
        "standing events.v1.Event.regarding",
        "required events.v1.Event eventTime",
    ],
    protobuf: &[
        "events.Event: 1 metadata meta.ObjectMeta, 2 eventTime u, 3 series events.EventSeries, \
         4 reportingController s, 5 reportingInstance s, 6 action s, 7 reason s, \
         8 regarding core.ObjectReference, 9 related core.ObjectReference, 10 note s, 11 type s, \
         12 deprecatedSource core.EventSource, 13 deprecatedFirstTimestamp t, \
         14 deprecatedLastTimestamp t, 15 deprecatedCount i",
        "events.EventSeries: 1 count =i, 2 lastObservedTime u",
    ],
};

const COLUMNS: &[Column] = &[
    column("Last Seen"),
    column("Type"),
    column("Reason"),
    column("Object"),
    wide("Subobject"),
    wide("Source"),
    column("Message"),
    wide("First Seen"),
    wide("Count"),
    ("Name", "string", "name", 1),
];

/// Names of the same fields in the two versions of events.
struct EventFields {
    object: &'static str,
    message: &'static str,
    source: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    controller: &'static str,
}

const CORE_FIELDS: EventFields = EventFields {
    object: "/involvedObject",
    message: "/message",
    source: "/source",
    first: "/firstTimestamp",
    last: "/lastTimestamp",
    count: "/count",
    controller: "/reportingComponent",
};
const NEW_FIELDS: EventFields = EventFields {
    object: "/regarding",
    message: "/note",
    source: "/deprecatedSource",
    first: "/deprecatedFirstTimestamp",
    last: "/deprecatedLastTimestamp",
    count: "/deprecatedCount",
    controller: "/reportingController",
};

fn cells(row: &Row<'_>, fields: &EventFields) -> Value {
    let Row { object, name, age, .. } = row;
    let part = |base: &str, rest: &str| text(object, &format!("{base}{rest}")).to_owned();
    let time = |pointer: &str, other: &str| match (text(object, pointer), text(object, other)) {
        ("", "") => age.clone(),
        ("", other) => row.since(other),
        (first, _) => row.since(first),
    };
    let last_observed = text(object, "/series/lastObservedTime");
    let last = if last_observed.is_empty() {
        time(fields.last, "/eventTime")
    } else {
        row.since(last_observed)
    };
    let source = match (part(fields.source, "/component"), part(fields.source, "/host")) {
        (component, _) if component.is_empty() => text(object, fields.controller).to_owned(),
        (component, host) if host.is_empty() => component,
        (component, host) => format!("{component}, {host}"),
    };
    let count = object["series"]["count"].as_i64();
    let count = count.or_else(|| object.pointer(fields.count)?.as_i64()).unwrap_or(1);
    let about =
        format!("{}/{}", part(fields.object, "/kind").to_lowercase(), part(fields.object, "/name"));
    json!([
        last,
        text(object, "/type"),
        text(object, "/reason"),
        about,
        part(fields.object, "/fieldPath"),
        source,
        text(object, fields.message).trim(),
        time(fields.first, "/eventTime"),
        count.to_string(),
        name,
    ])
}

const MAX_NOTE_BYTES: usize = 1024;
const MAX_WORD_BYTES: usize = 128;

/// Field names of the stored (core) form and of the newer one.
const RENAMED: &[(&str, &str)] = &[
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("reportingComponent", "reportingController"),
];

fn rename(object: Value, name: impl Fn(&str) -> Option<&'static str>) -> Value {
    match object {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (name(&key).map_or(key, str::to_owned), value))
            .collect::<Map<_, _>>()
            .into(),
        other => other,
    }
}

/// From the stored form to events.k8s.io.
fn to_version(object: Value) -> Value {
    let mut shown =
        rename(object, |key| RENAMED.iter().find(|(core, _)| *core == key).map(|(_, new)| *new));
    if let Some(map) = shown.as_object_mut() {
        // Always present in the core form, left out when empty in this one.
        let empty = |key: &str, value: &Value| {
            matches!(key, "reportingController" | "reportingInstance") && *value == ""
        };
        map.retain(|key, value| !empty(key, value));
    }
    shown
}

/// From events.k8s.io to the stored form.
fn to_storage(object: Value) -> Value {
    rename(object, |key| RENAMED.iter().find(|(_, new)| *new == key).map(|(core, _)| *core))
}

/// Objects of the cluster report in `default`, others in their own namespace.
fn validate_namespace(causes: &mut Causes, event: &Value, field: &str) {
    let namespace = text(event, "/metadata/namespace");
    let about = text(&event[field], "/namespace");
    let fits = if about.is_empty() { namespace == "default" } else { about == namespace };
    if !fits {
        let path = format!("{field}.namespace");
        causes.push(Cause::invalid(path, &about.into(), "does not match event.namespace"));
    }
}

/// The rules of core events: lax, as they always were.
pub(super) struct CoreEvent;

impl Strategy for CoreEvent {
    fn traits(&self) -> Traits {
        Traits { create_on_update: true, ..Traits::PLAIN }
    }

    fn default(&self, object: &mut Value) {
        if let Some(map) = object.as_object_mut() {
            map.retain(|key, value| !(matches!(key.as_str(), "reason" | "type") && *value == ""));
        }
        // Both are always present in upstream's responses.
        for field in ["reportingComponent", "reportingInstance"] {
            if object[field].is_null() {
                object[field] = "".into();
            }
        }
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        validate_namespace(&mut causes, object, "involvedObject");
        causes
    }
}

/// Who reports what; errors name the fields as they are stored.
fn validate_report(causes: &mut Causes, event: &Value) {
    let controller = text(event, "/reportingController");
    if controller.is_empty() {
        causes.push(Cause::required("reportingController", ""));
    }
    let problems = names::qualified(controller);
    causes.extend(Cause::each("reportingController", controller, problems));
    for field in ["reportingInstance", "action", "reason"] {
        match text(event, &format!("/{field}")) {
            "" => causes.push(Cause::required(field, "")),
            long if long.len() > MAX_WORD_BYTES => {
                let why = format!("can have at most {MAX_WORD_BYTES} characters");
                causes.push(Cause::invalid(field, &"".into(), &why));
            }
            _ => {}
        }
    }
    if text(event, "/note").len() > MAX_NOTE_BYTES {
        let why = format!("can have at most {MAX_NOTE_BYTES} characters");
        causes.push(Cause::invalid("message", &"".into(), &why));
    }
}

/// The rules of events.k8s.io events.
pub(super) struct Event;

impl Strategy for Event {
    fn traits(&self) -> Traits {
        Traits { create_on_update: true, ..Traits::PLAIN }
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        if object["eventTime"].is_null() {
            causes.push(Cause::required("eventTime", ""));
        } else {
            validate_report(&mut causes, object);
        }
        if !matches!(text(object, "/type"), "Normal" | "Warning") {
            let why = format!("has invalid value: {}", text(object, "/type"));
            causes.push(Cause::invalid("type", &"".into(), &why));
        }
        // Fields that only the older form may use.
        for (field, reported) in [
            ("deprecatedFirstTimestamp", "firstTimestamp"),
            ("deprecatedLastTimestamp", "lastTimestamp"),
            ("deprecatedCount", "count"),
        ] {
            if !object[field].is_null() && object[field] != 0 {
                causes.push(Cause::invalid(reported, &"".into(), "needs to be unset"));
            }
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = Causes::new();
        let fields: Vec<&String> =
            [new, old].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
        for field in fields {
            let free = matches!(field.as_str(), "metadata" | "series");
            if !free
                && !same(&new[field], &old[field])
                && !causes.iter().any(|c: &Cause| c.field == *field)
            {
                causes.push(Cause::invalid(field, &new[field], "field is immutable"));
            }
        }
        causes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_views_hold_the_same() {
        let core =
            json!({"message": "m", "involvedObject": {"name": "a"}, "count": 2, "reason": "r"});
        let shown = to_version(core.clone());
        assert_eq!(
            shown,
            json!({"note": "m", "regarding": {"name": "a"}, "deprecatedCount": 2, "reason": "r"})
        );
        assert_eq!(to_storage(shown), core);
    }
}
