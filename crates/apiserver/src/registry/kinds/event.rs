//! `Event`: one store, shown as core/v1 and as events.k8s.io/v1.

use serde_json::{Map, Value};

use crate::error::Cause;
use crate::registry::names;
use crate::registry::rules::{same, text};
use crate::registry::strategy::{Strategy, Traits};

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
pub fn show(object: Value) -> Value {
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
pub fn store(object: Value) -> Value {
    rename(object, |key| RENAMED.iter().find(|(_, new)| *new == key).map(|(core, _)| *core))
}

/// Objects of the cluster report in `default`, others in their own namespace.
fn validate_namespace(causes: &mut Vec<Cause>, event: &Value, field: &str) {
    let namespace = text(event, "/metadata/namespace");
    let about = text(&event[field], "/namespace");
    let fits = if about.is_empty() { namespace == "default" } else { about == namespace };
    if !fits {
        let path = format!("{field}.namespace");
        causes.push(Cause::invalid(path, &about.into(), "does not match event.namespace"));
    }
}

/// The rules of core events: lax, as they always were.
pub struct CoreEvent;

impl Strategy for CoreEvent {
    fn traits(&self) -> Traits {
        Traits { create_on_update: true, ..Traits::PLAIN }
    }

    fn default(&self, object: &mut Value) {
        if let Some(map) = object.as_object_mut() {
            map.retain(|key, value| !(matches!(key.as_str(), "reason" | "type") && *value == ""));
        }
        // Both are always present in upstream's answers.
        for field in ["reportingComponent", "reportingInstance"] {
            if object[field].is_null() {
                object[field] = "".into();
            }
        }
    }

    fn validate_create(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        validate_namespace(&mut causes, object, "involvedObject");
        causes
    }
}

/// Who reports what; errors name the fields as they are stored.
fn validate_report(causes: &mut Vec<Cause>, event: &Value) {
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
pub struct Event;

impl Strategy for Event {
    fn traits(&self) -> Traits {
        Traits { create_on_update: true, ..Traits::PLAIN }
    }

    fn validate_create(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
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

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
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
        let shown = show(core.clone());
        assert_eq!(
            shown,
            json!({"note": "m", "regarding": {"name": "a"}, "deprecatedCount": 2, "reason": "r"})
        );
        assert_eq!(store(shown), core);
    }
}
