//! Patches: JSON patch, merge patch and strategic merge patch.

mod strategic;

use std::borrow::Cow;

use serde_json::Value;

use crate::error::{ApiResult, Status};
use crate::go_errors;
use crate::size_limits::{MAX_BYTES, check_parts, check_size, text_len};

/// Steps of a JSON patch.
const MAX_STEPS: usize = 10_000;
/// List elements that the steps of a patch may move by adding and removing in front of them.
const MAX_MOVED: usize = 100_000_000;

pub(crate) enum Patch {
    /// RFC 6902.
    Json(json_patch::Patch),
    /// RFC 7386.
    Merge(Value),
    /// Merge patch that knows which lists are keyed.
    Strategic(Value),
}

impl Patch {
    /// Parses a patch body by its content type.
    ///
    /// # Errors
    /// 415 for an unknown type, 400 for a body that is no patch of that type.
    pub(crate) fn parse(content_type: &str, body: &[u8]) -> ApiResult<Self> {
        let other = |value: &Value, wanted: &str| {
            let is = go_errors::type_name(value);
            Status::bad_request(format!(
                "error decoding patch: json: cannot unmarshal {is} into Go value of type {wanted}"
            ))
        };
        check_parts(body, "")?;
        let parse = |wrong: fn(String) -> String| -> ApiResult<Value> {
            serde_json::from_slice(body).map_err(|error| {
                let why = go_errors::json_fault(body).unwrap_or_else(|| error.to_string());
                Status::bad_request(wrong(why))
            })
        };
        let object = |wrong: fn(String) -> String| -> ApiResult<Value> {
            let value = parse(wrong)?;
            if value.is_object() {
                return Ok(value);
            }
            Err(other(&value, "map[string]interface {}"))
        };
        match content_type {
            "application/json-patch+json" => {
                let list = parse(|why| format!("error decoding patch: {why}"))?;
                let Some(steps) = list.as_array().map(Vec::len) else {
                    return Err(other(&list, "[]handlers.jsonPatchOp"));
                };
                if steps > MAX_STEPS {
                    return Err(Status::too_many_steps(MAX_STEPS, steps));
                }
                match serde_json::from_value(list) {
                    Ok(patch) => Ok(Self::Json(patch)),
                    Err(error) => Err(Status::unprocessable(&error.to_string())),
                }
            }
            "application/merge-patch+json" => {
                Ok(Self::Merge(object(|_| "invalid JSON patch".into())?))
            }
            "application/strategic-merge-patch+json" => {
                Ok(Self::Strategic(object(|_| "invalid JSON patch".into())?))
            }
            _ => Err(Status::no_such_patch()),
        }
    }

    /// Whether the patch says anything about metadata.
    pub(crate) fn touches_metadata(&self) -> bool {
        match self {
            Self::Json(patch) => {
                patch.iter().any(|step| step.path().as_str().starts_with("/metadata"))
            }
            Self::Merge(patch) | Self::Strategic(patch) => patch.get("metadata").is_some(),
        }
    }

    /// Applies the patch to an object with kind and apiVersion.
    ///
    /// # Errors
    /// 422 for a JSON patch that does not fit, 400 for a strategic patch that makes no sense.
    pub(crate) fn apply(&self, mut object: Value) -> ApiResult<Value> {
        match self {
            Self::Json(patch) => {
                let (mut copied, mut moved) = (0, 0);
                for step in patch.iter() {
                    if finds_nothing(step, &object) {
                        continue;
                    }
                    if let json_patch::PatchOperation::Copy(copy) = step {
                        copied += object.pointer(copy.from.as_str()).map_or(0, text_len);
                        if copied > MAX_BYTES {
                            return Err(Status::too_large(MAX_BYTES));
                        }
                    }
                    moved += moves(step, &object);
                    if moved > MAX_MOVED {
                        return Err(Status::too_many_moves(MAX_MOVED));
                    }
                    let step = as_the_go_server_reads(step, &object);
                    json_patch::patch(&mut object, std::slice::from_ref(step.as_ref()))
                        .map_err(|e| Status::unprocessable(&e.to_string()))?;
                }
                check_size(&object)?;
                Ok(object)
            }
            Self::Merge(patch) => {
                merge(&mut object, patch);
                Ok(object)
            }
            Self::Strategic(patch) => strategic::apply(object, patch),
        }
    }
}

/// How many list elements change their place.
fn moves(step: &json_patch::PatchOperation, object: &Value) -> usize {
    use json_patch::PatchOperation::{Add, Copy, Move, Remove, Replace, Test};
    let behind = |path: &str| {
        let Some((parent, index)) = path.rsplit_once('/') else { return 0 };
        let list = object.pointer(parent).and_then(Value::as_array);
        list.map_or(0, |list| list.len().saturating_sub(index.parse().unwrap_or(list.len())))
    };
    match step {
        Add(step) => behind(step.path.as_str()),
        Remove(step) => behind(step.path.as_str()),
        Copy(step) => behind(step.path.as_str()),
        Move(step) => behind(step.from.as_str()) + behind(step.path.as_str()),
        Replace(_) | Test(_) => 0,
    }
}

/// A test for null where there is nothing holds: the Go server reads an absent field as null, and
/// clients rely on it to add a list only if no other client has.
fn finds_nothing(step: &json_patch::PatchOperation, object: &Value) -> bool {
    let json_patch::PatchOperation::Test(test) = step else { return false };
    test.value.is_null() && object.pointer(test.path.as_str()).is_none()
}

/// To replace a member that an object does not have is to add it: the Go server does so, and the
/// official snapshotter replaces annotations where there are none.
fn as_the_go_server_reads<'a>(
    step: &'a json_patch::PatchOperation,
    object: &Value,
) -> Cow<'a, json_patch::PatchOperation> {
    let json_patch::PatchOperation::Replace(replace) = step else { return Cow::Borrowed(step) };
    let path = replace.path.as_str();
    let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
    if object.pointer(path).is_some() || !parent.is_some_and(Value::is_object) {
        return Cow::Borrowed(step);
    }
    let (path, value) = (replace.path.clone(), replace.value.clone());
    Cow::Owned(json_patch::PatchOperation::Add(json_patch::AddOperation { path, value }))
}

/// RFC 7386: null deletes, objects merge, everything else replaces.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_deletes_merges_and_replaces() {
        let rows = [
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (json!({"a": {"x": 1}}), json!({"a": {"y": 2}}), json!({"a": {"x": 1, "y": 2}})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": 1}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
        ];
        for (object, patch, wanted) in rows {
            assert_eq!(Patch::Merge(patch).apply(object).unwrap(), wanted);
        }
    }

    #[test]
    fn bad_patches_are_refused() {
        let code =
            |kind: &str, body: &str| Patch::parse(kind, body.as_bytes()).err().map(|s| s.code);
        assert_eq!(code("application/json-patch+json", "{}"), Some(400));
        assert_eq!(code("application/json-patch+json", r#"[{"op":"nope"}]"#), Some(422));
        assert_eq!(code("application/merge-patch+json", "[]"), Some(400));
        assert_eq!(code("application/merge-patch+json", "{"), Some(400));
        assert_eq!(code("application/json", "{}"), Some(415));
        let patch =
            Patch::parse("application/json-patch+json", br#"[{"op":"remove","path":"/x"}]"#);
        assert_eq!(patch.unwrap().apply(json!({})).unwrap_err().code, 422);
    }

    #[test]
    fn a_test_for_null_holds_where_there_is_nothing() {
        let body =
            br#"[{"op":"test","path":"/a","value":null},{"op":"add","path":"/a","value":[1]}]"#;
        let patch = Patch::parse("application/json-patch+json", body).unwrap();
        assert_eq!(patch.apply(json!({})).unwrap(), json!({"a": [1]}));
        assert_eq!(patch.apply(json!({"a": [2]})).unwrap_err().code, 422);
    }

    #[test]
    fn a_member_that_is_not_there_can_be_replaced() {
        let replace = |path: &str, object: Value| {
            let body = json!([{"op": "replace", "path": path, "value": 1}]).to_string();
            let patch = Patch::parse("application/json-patch+json", body.as_bytes()).unwrap();
            patch.apply(object).map_err(|status| status.code)
        };
        assert_eq!(replace("/a/b", json!({"a": {}})), Ok(json!({"a": {"b": 1}})));
        assert_eq!(replace("/a/b", json!({"a": {"b": 2}})), Ok(json!({"a": {"b": 1}})));
        assert_eq!(replace("/a/b", json!({})), Err(422));
        assert_eq!(replace("/a/0", json!({"a": []})), Err(422));
    }

    #[test]
    fn a_patch_that_moves_a_long_list_again_and_again_is_refused() {
        let list = json!({"a": vec![0; 300_000]});
        let short = json!({"op": "add", "path": "/a/0", "value": 1});
        let short = Value::Array(vec![short; 5000]).to_string();
        let short = Patch::parse("application/json-patch+json", short.as_bytes()).unwrap();
        assert!(short.apply(json!({"a": []})).is_ok());
        for step in [
            json!({"op": "add", "path": "/a/0", "value": 1}),
            json!({"op": "remove", "path": "/a/0"}),
            json!({"op": "move", "from": "/a/0", "path": "/a/299998"}),
        ] {
            let body = Value::Array(vec![step; MAX_STEPS]).to_string();
            let patch = Patch::parse("application/json-patch+json", body.as_bytes()).unwrap();
            assert_eq!(patch.apply(list.clone()).unwrap_err().code, 413);
        }
    }
}
