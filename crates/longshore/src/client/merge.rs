//! What `apply` has to send: a merge patch from what was applied last, what shall be, and what is.

use serde_json::{Map, Value};

/// The merge patch that brings `live` to `wanted`, also removing what `last` had and `wanted` has no more.
///
/// Fields that neither manifest mentions belong to others and stay. An empty object means nothing to do.
pub(super) fn three_way(last: &Value, wanted: &Value, live: &Value) -> Value {
    let empty = Map::new();
    let fields = |value: &'_ Value| value.as_object().cloned().unwrap_or_default();
    let (last, live) = (fields(last), fields(live));
    let wanted = wanted.as_object().unwrap_or(&empty);
    let mut patch = Map::new();
    for key in last.keys().filter(|key| !wanted.contains_key(*key) && live.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in wanted {
        let now = live.get(key).unwrap_or(&Value::Null);
        let before = last.get(key).unwrap_or(&Value::Null);
        match value {
            Value::Object(_) if now.is_object() => {
                let inner = three_way(before, value, now);
                if inner.as_object().is_some_and(|fields| !fields.is_empty()) {
                    patch.insert(key.clone(), inner);
                }
            }
            // A list that was not edited and that the server only completed with defaults stays.
            Value::Array(_) if value == before && covers(now, value) => {}
            // Asking for nothing where there is nothing.
            Value::Null if now.is_null() => {}
            _ if value == now => {}
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

/// Whether `live` is `wanted` plus fields that others added.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| covers(live.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            wanted.iter().all(|item| live.iter().any(|candidate| covers(candidate, item)))
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_say_only_what_changes() {
        let rows = [
            (
                "nothing to do",
                json!({"a": 1}),
                json!({"a": 1}),
                json!({"a": 1, "server": 2}),
                json!({}),
            ),
            ("changed", json!({"a": 1}), json!({"a": 2}), json!({"a": 1}), json!({"a": 2})),
            ("added", json!({}), json!({"a": 2}), json!({"b": 1}), json!({"a": 2})),
            (
                "drift is put right",
                json!({"a": 1}),
                json!({"a": 1}),
                json!({"a": 9}),
                json!({"a": 1}),
            ),
            (
                "removed",
                json!({"a": 1, "b": 1}),
                json!({"a": 1}),
                json!({"a": 1, "b": 1}),
                json!({"b": null}),
            ),
            (
                "removed, gone already",
                json!({"a": 1, "b": 1}),
                json!({"a": 1}),
                json!({"a": 1}),
                json!({}),
            ),
            ("never applied", json!(null), json!({"a": 1}), json!({"a": 1, "b": 2}), json!({})),
            (
                "nested",
                json!({"m": {"x": "1", "y": "2"}}),
                json!({"m": {"x": "1"}}),
                json!({"m": {"x": "1", "y": "2", "z": "3"}}),
                json!({"m": {"y": null}}),
            ),
            (
                "empty over something",
                json!({}),
                json!({"m": {}}),
                json!({"m": {"x": 1}}),
                json!({}),
            ),
            (
                "object over nothing",
                json!({}),
                json!({"m": {"x": 1}}),
                json!({}),
                json!({"m": {"x": 1}}),
            ),
            ("null over nothing", json!({}), json!({"m": null}), json!({}), json!({})),
            (
                "list edited",
                json!({"l": [1]}),
                json!({"l": [1, 2]}),
                json!({"l": [1]}),
                json!({"l": [1, 2]}),
            ),
            (
                "list with defaults of the server",
                json!({"l": [{"name": "a"}]}),
                json!({"l": [{"name": "a"}]}),
                json!({"l": [{"name": "a", "policy": "Always"}, {"name": "added"}]}),
                json!({}),
            ),
            (
                "list drifted",
                json!({"l": [{"name": "a", "v": 1}]}),
                json!({"l": [{"name": "a", "v": 1}]}),
                json!({"l": [{"name": "a", "v": 2}]}),
                json!({"l": [{"name": "a", "v": 1}]}),
            ),
        ];
        for (name, last, wanted, live, patch) in rows {
            assert_eq!(three_way(&last, &wanted, &live), patch, "{name}");
        }
    }
}
