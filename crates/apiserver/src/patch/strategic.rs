//! Strategic merge: like a merge patch, but lists of named things merge element by element.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::error::{ApiResult, Status, brief, cut};
use crate::registry::kinds::KINDS;

/// How a list is merged.
enum ListRule {
    Replace,
    Set,
    Keyed(&'static str),
}

/// Any kind's `metadata.finalizers` is a set, and `metadata.ownerReferences` is keyed by `uid`.
fn rule(kind: &str, path: &str) -> ListRule {
    match path {
        "metadata.finalizers" => return ListRule::Set,
        "metadata.ownerReferences" => return ListRule::Keyed("uid"),
        _ => {}
    }
    let keys = KINDS.iter().filter(|builtin| builtin.names.kind == kind);
    let key = keys.flat_map(|builtin| builtin.patch_keys).find(|(list, _)| *list == path);
    key.map_or(ListRule::Replace, |(_, key)| ListRule::Keyed(key))
}

/// Applies a strategic merge patch.
pub(super) fn apply(mut object: Value, patch: &Value) -> ApiResult<Value> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let Some(patch) = patch.as_object() else {
        return Err(Status::bad_request("the patch is not an object"));
    };
    merge_map(&mut object, patch, &kind, "")?;
    Ok(object)
}

/// The path of a field. Where it is longer than any that has a rule it stops growing: names are the
/// client's, and a long one must not be copied for everything below it.
fn join<'a>(path: &'a str, key: &'a str) -> Cow<'a, str> {
    const LONGEST: usize = 64;
    match path {
        "" if key.len() <= LONGEST => Cow::Borrowed(key),
        _ if path.len() + key.len() <= LONGEST => Cow::Owned(format!("{path}.{key}")),
        _ => Cow::Borrowed("…"),
    }
}

/// The patch without its directives.
fn plain(patch: &Map<String, Value>) -> Value {
    let clean = |value: &Value| match value {
        Value::Object(map) => plain(map),
        Value::Array(items) => items
            .iter()
            .filter(|item| item["$patch"] != "delete")
            .map(|item| item.as_object().map_or_else(|| item.clone(), plain))
            .collect(),
        other => other.clone(),
    };
    patch
        .iter()
        .filter(|(key, value)| !key.starts_with('$') && !value.is_null())
        .map(|(key, value)| (key.clone(), clean(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn merge_map(
    target: &mut Value,
    patch: &Map<String, Value>,
    kind: &str,
    path: &str,
) -> ApiResult<()> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = plain(patch);
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            return Err(Status::bad_request(format!("unknown patch type: {}", cut(other))));
        }
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return Ok(()) };
    if let Some(keep) = patch.get("$retainKeys").and_then(Value::as_array) {
        let keep: HashSet<&str> = keep.iter().filter_map(Value::as_str).collect();
        map.retain(|key, _| keep.contains(key.as_str()));
    }
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        merge_field(map, key, value, kind, &join(path, key))?;
    }
    for (directive, value) in patch.iter().filter(|(key, _)| key.starts_with('$')) {
        list_directive(map, directive, value, kind, path);
    }
    Ok(())
}

fn merge_field(
    map: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    kind: &str,
    path: &str,
) -> ApiResult<()> {
    match value {
        Value::Null => {
            map.remove(key);
        }
        Value::Object(patch) => {
            let delete = patch.get("$patch").is_some_and(|d| d == "delete");
            if delete {
                map.remove(key);
            } else {
                merge_map(map.entry(key).or_insert(Value::Null), patch, kind, path)?;
            }
        }
        Value::Array(patch) => {
            let old = map.remove(key);
            let old = old.and_then(|v| match v {
                Value::Array(items) => Some(items),
                _ => None,
            });
            let merged = merge_list(old.unwrap_or_default(), patch, kind, path)?;
            map.insert(key.to_owned(), Value::Array(merged));
        }
        other => {
            map.insert(key.to_owned(), other.clone());
        }
    }
    Ok(())
}

fn merge_list(old: Vec<Value>, patch: &[Value], kind: &str, path: &str) -> ApiResult<Vec<Value>> {
    if patch.iter().any(|item| item["$patch"] == "replace") {
        let kept = patch.iter().filter(|item| item["$patch"].is_null());
        return Ok(kept.map(|item| item.as_object().map_or_else(|| item.clone(), plain)).collect());
    }
    match rule(kind, path) {
        ListRule::Replace => Ok(patch
            .iter()
            .map(|item| item.as_object().map_or_else(|| item.clone(), plain))
            .collect()),
        ListRule::Set => {
            let named: HashSet<&Value> = patch.iter().collect();
            let rest = old.into_iter().filter(|item| !named.contains(item));
            Ok(patch.iter().cloned().chain(rest).collect())
        }
        ListRule::Keyed(key) => merge_keyed(old, patch, key, kind, path),
    }
}

/// Known elements merge in place; new ones go in front, in the patch's order.
fn merge_keyed(
    old: Vec<Value>,
    patch: &[Value],
    key: &str,
    kind: &str,
    path: &str,
) -> ApiResult<Vec<Value>> {
    let mut places: HashMap<Value, Vec<usize>> = HashMap::with_capacity(old.len());
    for (at, element) in old.iter().enumerate() {
        places.entry(element[key].clone()).or_default().push(at);
    }
    // What is deleted leaves a gap, so that the others keep their places.
    let mut old: Vec<Option<Value>> = old.into_iter().map(Some).collect();
    let mut new = Vec::new();
    for item in patch {
        let Some(fields) = item.as_object() else {
            return Err(Status::bad_request(format!("an element of {path} is not an object")));
        };
        let Some(id) = fields.get(key) else {
            return Err(Status::bad_request(format!(
                "map: {} does not contain declared merge key: {key}",
                brief(item)
            )));
        };
        if item["$patch"] == "delete" {
            for at in places.remove(id).unwrap_or_default() {
                old[at] = None;
            }
        } else if let Some(element) =
            places.get(id).and_then(|at| at.first()).and_then(|at| old[*at].as_mut())
        {
            merge_map(element, fields, kind, path)?;
        } else {
            new.push(plain(fields));
        }
    }
    new.extend(old.into_iter().flatten());
    Ok(new)
}

/// Directives that stand beside a list: `$deleteFromPrimitiveList/x`, `$setElementOrder/x`.
fn list_directive(
    map: &mut Map<String, Value>,
    directive: &str,
    value: &Value,
    kind: &str,
    path: &str,
) {
    let Some(wanted) = value.as_array() else { return };
    if let Some(field) = directive.strip_prefix("$deleteFromPrimitiveList/") {
        if let Some(list) = map.get_mut(field).and_then(Value::as_array_mut) {
            let wanted: HashSet<&Value> = wanted.iter().collect();
            list.retain(|item| !wanted.contains(item));
        }
    } else if let Some(field) = directive.strip_prefix("$setElementOrder/")
        && let Some(list) = map.get_mut(field).and_then(Value::as_array_mut)
    {
        let key = match rule(kind, &join(path, field)) {
            ListRule::Keyed(key) => Some(key),
            ListRule::Set | ListRule::Replace => None,
        };
        reorder(list, wanted, key);
    }
}

/// Puts listed elements into the given order; others keep their place behind their predecessor.
fn reorder(list: &mut Vec<Value>, wanted: &[Value], key: Option<&str>) {
    fn id<'a>(item: &'a Value, key: Option<&str>) -> &'a Value {
        key.map_or(item, |key| &item[key])
    }
    let mut ranks: HashMap<&Value, usize> = HashMap::with_capacity(wanted.len());
    for (at, item) in wanted.iter().enumerate() {
        ranks.entry(id(item, key)).or_insert(at);
    }
    let mut last = 0;
    let mut ranked: Vec<(usize, Value)> = Vec::with_capacity(list.len());
    for item in list.drain(..) {
        // An element the order does not name stays behind the one before it.
        let at = ranks.get(id(&item, key)).copied().unwrap_or(last);
        last = at;
        ranked.push((at, item));
    }
    ranked.sort_by_key(|(at, _)| *at);
    list.extend(ranked.into_iter().map(|(_, item)| item));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value) -> Value {
        json!({"kind": "Pod", "spec": spec})
    }

    #[test]
    fn lists_follow_their_rules() {
        let rows = [
            (
                "keyed: merge in place, new in front",
                json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
                json!({"containers": [{"name": "a", "image": "2"}, {"name": "n"}]}),
                json!({"containers": [{"name": "n"}, {"name": "a", "image": "2"}, {"name": "b"}]}),
            ),
            (
                "delete by key",
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"containers": [{"name": "a", "$patch": "delete"}]}),
                json!({"containers": [{"name": "b"}]}),
            ),
            (
                "plain list is replaced",
                json!({"tolerations": [{"key": "a"}]}),
                json!({"tolerations": [{"key": "b"}]}),
                json!({"tolerations": [{"key": "b"}]}),
            ),
            (
                "nested keyed list",
                json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}),
                json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}]}),
                json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}]}),
            ),
            (
                "order",
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": []}),
                json!({"containers": [{"name": "b"}, {"name": "a"}]}),
            ),
            (
                "retain keys",
                json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
                json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}),
                json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
            ),
            (
                "replace a map",
                json!({"nodeSelector": {"a": "1"}}),
                json!({"nodeSelector": {"$patch": "replace", "b": "2"}}),
                json!({"nodeSelector": {"b": "2"}}),
            ),
        ];
        for (name, old, patch, wanted) in rows {
            let merged = apply(pod(old), &json!({"spec": patch})).unwrap();
            assert_eq!(merged, pod(wanted), "{name}");
        }
    }

    #[test]
    fn finalizers_are_a_set() {
        let object = json!({"metadata": {"finalizers": ["a/x", "b/x"]}});
        let patch = json!({"metadata": {
            "finalizers": ["c/x", "a/x"], "$deleteFromPrimitiveList/finalizers": ["b/x"],
        }});
        let merged = apply(object, &patch).unwrap();
        assert_eq!(merged["metadata"]["finalizers"], json!(["c/x", "a/x"]));
    }

    #[test]
    fn a_missing_key_is_refused() {
        let patch = json!({"spec": {"containers": [{"image": "x"}]}});
        assert_eq!(apply(pod(json!({})), &patch).unwrap_err().code, 400);
    }

    /// Each of these took minutes when every element was looked for in the whole list.
    #[test]
    fn lists_as_long_as_a_body_can_be_take_linear_time() {
        const MANY: usize = 150_000;
        let began = std::time::Instant::now();
        let names = |from: usize| -> Vec<Value> {
            (from..from + MANY).map(|i| json!(format!("a/{i}"))).collect()
        };
        let owners = |from: usize| -> Vec<Value> {
            (from..from + MANY).map(|i| json!({"uid": i.to_string()})).collect()
        };
        let object = json!({"kind": "Pod", "metadata": {
            "finalizers": names(0), "ownerReferences": owners(0)}});
        let patches = [
            json!({"finalizers": names(MANY / 2)}),
            json!({"finalizers": [], "$deleteFromPrimitiveList/finalizers": names(MANY / 2)}),
            json!({"finalizers": [], "$setElementOrder/finalizers": names(MANY / 2)}),
            json!({"ownerReferences": owners(MANY / 2)}),
            json!({"ownerReferences": [], "$setElementOrder/ownerReferences": owners(MANY / 2)}),
            json!({"ownerReferences": (0..MANY)
                .map(|i| json!({"uid": i.to_string(), "$patch": "delete"}))
                .collect::<Vec<_>>()}),
            json!({"$retainKeys": names(0), "x".repeat(1 << 20): (0..MANY)
                .map(|i| (i.to_string(), json!({"a": 1})))
                .collect::<Map<_, _>>()}),
        ];
        for patch in patches {
            apply(object.clone(), &json!({"metadata": patch})).unwrap();
        }
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    }
}
