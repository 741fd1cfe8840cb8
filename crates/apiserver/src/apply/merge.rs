//! Comparing, merging and pruning objects by their shape.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::set::{FieldSet, field};
use super::shape::Shape;

/// What differs between two objects.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// New or different.
    pub set: FieldSet,
    /// No longer there.
    pub gone: FieldSet,
}

/// The fields an applied configuration names.
pub(crate) fn named(shape: &Shape, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    match (shape, value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Free, Value::Object(map)) => {
            for (name, value) in map {
                let Some((inner, known)) = shape.field(name) else { continue };
                let mut child = named(inner, value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                child.own |= empty || !known;
                set.insert(field(name), child);
            }
        }
        (Shape::Set | Shape::Keyed { .. }, Value::Array(items)) => {
            for item in items {
                let Some(element) = shape.element(item) else { continue };
                let mut child = named(shape.item(), item);
                child.own = true;
                set.insert(element, child);
            }
        }
        _ => set.own = true,
    }
    set
}

/// All fields of a value that was not there before.
fn all(shape: &Shape, value: &Value) -> FieldSet {
    let mut set = FieldSet::leaf();
    match (shape, value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Free, Value::Object(map)) => {
            for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                if let Some((inner, _)) = shape.field(name) {
                    set.insert(field(name), all(inner, value));
                }
            }
            if let Shape::Struct(fields) = shape {
                let standing = fields.iter().filter(|(name, field)| {
                    field.standing
                        && matches!(*field.shape, Shape::Struct(_) | Shape::Leaf)
                        && map.get(*name).is_none_or(Value::is_null)
                });
                for (name, _) in standing {
                    set.insert(field(name), FieldSet::leaf());
                }
            }
        }
        (Shape::Set | Shape::Keyed { .. }, Value::Array(items)) => {
            for item in items {
                if let Some(element) = shape.element(item) {
                    set.insert(element, all(shape.item(), item));
                }
            }
        }
        _ => {}
    }
    set
}

/// What changes from one object to the next.
pub(crate) fn compare(shape: &Shape, old: &Value, new: &Value) -> Changes {
    let mut changes = Changes::default();
    walk(shape, Some(old), Some(new), &mut changes.set, &mut changes.gone);
    changes
}

fn walk(
    shape: &Shape,
    old: Option<&Value>,
    new: Option<&Value>,
    set: &mut FieldSet,
    gone: &mut FieldSet,
) {
    match (old, new) {
        (None, None) => {}
        (None, Some(new)) => *set = all(shape, new),
        (Some(old), None) => *gone = all(shape, old),
        (Some(old), Some(new)) if old == new => {}
        (Some(old), Some(new)) => match (shape, old, new) {
            (
                Shape::Struct(_) | Shape::Map(_) | Shape::Free,
                Value::Object(a),
                Value::Object(b),
            ) => {
                fields(shape, a, b, set, gone);
            }
            (Shape::Set | Shape::Keyed { .. }, Value::Array(a), Value::Array(b)) => {
                elements(shape, a, b, set, gone);
            }
            _ => set.own = true,
        },
    }
}

fn fields(
    shape: &Shape,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    set: &mut FieldSet,
    gone: &mut FieldSet,
) {
    static OBJECT: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
    static LIST: Value = Value::Array(Vec::new());
    let there =
        |map: &'_ Map<String, Value>, name: &str| map.get(name).is_some_and(|v| !v.is_null());
    let only_old = old.keys().filter(|name| !new.contains_key(*name));
    for name in new.keys().chain(only_old) {
        let Some((inner, _)) = shape.field(name) else { continue };
        let pick = |map| if there(map, name) { map.get(name) } else { None };
        let standing = shape.is_standing(name).then_some(match inner {
            Shape::Keyed { .. } | Shape::Set => &LIST,
            _ => &*OBJECT,
        });
        let (mut below, mut lost) = (FieldSet::default(), FieldSet::default());
        let (a, b) = (pick(old).or(standing), pick(new).or(standing));
        walk(inner, a, b, &mut below, &mut lost);
        for (found, within) in [(below, &mut *set), (lost, &mut *gone)] {
            if !found.is_empty() {
                within.children.insert(field(name), found);
            }
        }
    }
}

fn elements(shape: &Shape, old: &[Value], new: &[Value], set: &mut FieldSet, gone: &mut FieldSet) {
    let mut before: HashMap<String, &Value> = HashMap::with_capacity(old.len());
    for item in old {
        // Of elements with one name the first counts.
        if let Some(element) = shape.element(item) {
            before.entry(element).or_insert(item);
        }
    }
    let mut kept = HashSet::with_capacity(new.len());
    for item in new {
        let Some(element) = shape.element(item) else { continue };
        let (mut below, mut lost) = (FieldSet::default(), FieldSet::default());
        walk(shape.item(), before.get(&element).copied(), Some(item), &mut below, &mut lost);
        set.insert(element.clone(), below);
        gone.insert(element.clone(), lost);
        kept.insert(element);
    }
    for (element, item) in before {
        if !kept.contains(&element) {
            gone.insert(element, all(shape.item(), item));
        }
    }
}

/// Puts a configuration on top of an object.
pub(crate) fn merge(shape: &Shape, live: &Value, config: &Value) -> Value {
    match (shape, live, config) {
        (
            Shape::Struct(_) | Shape::Map(_) | Shape::Free,
            Value::Object(live),
            Value::Object(config),
        ) => {
            let mut merged = live.clone();
            for (name, value) in config {
                let merged_value = match (shape.field(name), live.get(name)) {
                    (Some((inner, _)), Some(before)) => merge(inner, before, value),
                    _ => value.clone(),
                };
                merged.insert(name.clone(), merged_value);
            }
            Value::Object(merged)
        }
        (Shape::Set | Shape::Keyed { .. }, Value::Array(live), Value::Array(config)) => {
            Value::Array(merge_list(shape, live, config))
        }
        _ => config.clone(),
    }
}

/// What only the object has comes before the configured element it stood in front of; otherwise the
/// configured elements keep their order.
fn merge_list(shape: &Shape, live: &[Value], config: &[Value]) -> Vec<Value> {
    let name = |item: &Value| shape.element(item);
    let configured: Vec<Option<String>> = config.iter().map(name).collect();
    let known: Vec<Option<String>> = live.iter().map(name).collect();
    // Where each name comes first on either side.
    let mut wanted: HashMap<&Option<String>, usize> = HashMap::with_capacity(config.len());
    for (at, name) in configured.iter().enumerate() {
        wanted.entry(name).or_insert(at);
    }
    let mut there: HashMap<&str, usize> = HashMap::with_capacity(live.len());
    for (at, name) in known.iter().enumerate() {
        if let Some(name) = name {
            there.entry(name).or_insert(at);
        }
    }
    let mut merged: Vec<Value> = Vec::with_capacity(live.len() + config.len());
    let (mut left, mut right) = (0, 0);
    while left < live.len() || right < config.len() {
        let place = known.get(left).map(|name| wanted.get(name));
        match place {
            Some(None) => {
                merged.push(live[left].clone());
                left += 1;
            }
            Some(Some(at)) if *at < right => left += 1,
            _ if right < config.len() => {
                let before = configured[right].as_deref().and_then(|name| there.get(name));
                merged.push(match before {
                    Some(at) => merge(shape.item(), &live[*at], &config[right]),
                    None => config[right].clone(),
                });
                right += 1;
            }
            _ => left += 1,
        }
    }
    merged
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Takes out what is in `gone`, except for what holds something in `keep`.
pub(crate) fn remove(shape: &Shape, value: &mut Value, gone: &FieldSet, keep: &FieldSet) {
    let none = FieldSet::default();
    match value {
        Value::Object(map) => {
            for (name, below) in &gone.children {
                let Some(field) = name.strip_prefix("f:") else { continue };
                let kept = keep.children.get(name).unwrap_or(&none);
                if below.own && kept.is_empty() {
                    map.remove(field);
                } else if let (Some(inner), Some((shape, _))) =
                    (map.get_mut(field), shape.field(field))
                {
                    remove(shape, inner, below, kept);
                    // What was emptied goes too, unless another manager wants it empty.
                    if is_empty(inner) && !kept.own {
                        map.remove(field);
                    }
                }
            }
        }
        Value::Array(items) => items.retain_mut(|item| {
            let Some(element) = shape.element(item) else { return true };
            let Some(below) = gone.children.get(&element) else { return true };
            let kept = keep.children.get(&element).unwrap_or(&none);
            if below.own && kept.is_empty() {
                return false;
            }
            remove(shape.item(), item, below, kept);
            true
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::Schema;
    use serde_json::json;

    fn shape() -> Shape {
        Shape::of_custom(&Schema::parse(&json!({"type": "object", "properties": {"spec": {
            "type": "object", "properties": {
                "size": {"type": "integer"},
                "atomic": {"type": "array", "items": {"type": "string"}},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "data": {"type": "object", "additionalProperties": {"type": "string"}},
                "list": {"type": "array", "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object",
                    "properties": {"name": {"type": "string"}, "v": {"type": "integer"},
                        "w": {"type": "integer"}}}},
            },
        }}})))
    }

    #[test]
    fn a_configuration_names_its_fields() {
        let config = json!({"metadata": {"labels": {"a": "1"}}, "spec": {
            "size": 1, "data": {"k": "v"}, "atomic": ["x"], "set": ["y"], "list": [{"name": "n", "v": 1}]}});
        assert_eq!(
            named(&shape(), &config).to_value(),
            json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {
                "f:size": {}, "f:data": {"f:k": {}}, "f:atomic": {}, "f:set": {"v:\"y\"": {}},
                "f:list": {"k:{\"name\":\"n\"}": {".": {}, "f:name": {}, "f:v": {}}}}})
        );
    }

    #[test]
    fn changes_are_found_where_they_are() {
        let old = json!({"metadata": {}, "spec": {"size": 1, "list": [{"name": "a", "v": 1}, {"name": "b"}]}});
        let new = json!({"metadata": {"labels": {"x": "1"}}, "spec": {"size": 2, "list": [{"name": "a", "v": 2}]}});
        let changes = compare(&shape(), &old, &new);
        assert_eq!(
            changes.set.to_value(),
            json!({"f:metadata": {"f:labels": {".": {}, "f:x": {}}},
                "f:spec": {"f:size": {}, "f:list": {"k:{\"name\":\"a\"}": {"f:v": {}}}}})
        );
        assert_eq!(
            changes.gone.to_value(),
            json!({"f:spec": {"f:list": {"k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}}})
        );
        let made = compare(
            &shape(),
            &json!({"metadata": {}}),
            &json!({"metadata": {}, "spec": {"data": {"k": "v"}}}),
        );
        assert_eq!(
            made.set.to_value(),
            json!({"f:spec": {".": {}, "f:data": {".": {}, "f:k": {}}}})
        );
    }

    #[test]
    fn configurations_are_merged_by_key() {
        let live = json!({"spec": {"size": 1, "atomic": ["a"], "set": ["s"],
            "list": [{"name": "a", "v": 1, "w": 1}, {"name": "b", "v": 2}]}});
        let config = json!({"spec": {"atomic": ["z"], "set": ["t"],
            "list": [{"name": "b", "v": 3}, {"name": "c"}]}});
        let merged = merge(&shape(), &live, &config);
        assert_eq!(
            merged,
            json!({"spec": {"size": 1, "atomic": ["z"], "set": ["s", "t"],
                "list": [{"name": "a", "v": 1, "w": 1}, {"name": "b", "v": 3}, {"name": "c"}]}})
        );
    }

    #[test]
    fn fields_of_other_managers_stay() {
        let mut value = json!({"spec": {"size": 1, "data": {"k": "v", "l": "w"},
            "list": [{"name": "a", "v": 1, "w": 2}, {"name": "b"}]}});
        let gone = FieldSet::parse(&json!({"f:spec": {"f:size": {}, "f:data": {"f:k": {}},
            "f:list": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:v": {}},
                "k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}}}))
        .unwrap();
        let keep = FieldSet::parse(
            &json!({"f:spec": {"f:list": {"k:{\"name\":\"a\"}": {"f:name": {}, "f:w": {}}}}}),
        )
        .unwrap();
        remove(&shape(), &mut value, &gone, &keep);
        assert_eq!(value, json!({"spec": {"data": {"l": "w"}, "list": [{"name": "a", "w": 2}]}}));
    }

    /// This took a quarter of a minute when every element was looked for in the whole list.
    #[test]
    fn long_sets_are_merged_in_linear_time() {
        const MANY: usize = 150_000;
        let began = std::time::Instant::now();
        let set = |from: usize| {
            let names: Vec<String> = (from..from + MANY).map(|i| i.to_string()).collect();
            json!({"spec": {"set": names}})
        };
        let merged = merge(&shape(), &set(0), &set(MANY / 2));
        assert_eq!(merged["spec"]["set"].as_array().unwrap().len(), MANY + MANY / 2);
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    }
}
