//! Patches: JSON patch, merge patch and strategic merge patch.

mod strategic;

use serde_json::Value;

use crate::error::{ApiResult, Status};

/// A parsed patch.
pub enum Patch {
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
    pub fn parse(content_type: &str, body: &[u8]) -> ApiResult<Self> {
        let parse = || -> ApiResult<Value> {
            serde_json::from_slice(body).map_err(|e| Status::bad_request(e.to_string()))
        };
        let object = || -> ApiResult<Value> {
            let value = parse()?;
            if value.is_object() {
                return Ok(value);
            }
            Err(Status::bad_request("the patch is not an object"))
        };
        match content_type {
            "application/json-patch+json" => {
                let list = parse()?;
                if !list.is_array() {
                    return Err(Status::bad_request("a JSON patch is an array of operations"));
                }
                match serde_json::from_value(list) {
                    Ok(patch) => Ok(Self::Json(patch)),
                    Err(error) => Err(Status::unprocessable(&error.to_string())),
                }
            }
            "application/merge-patch+json" => Ok(Self::Merge(object()?)),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic(object()?)),
            _ => Err(Status::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, \
                 application/strategic-merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }

    /// Applies the patch to an object with kind and apiVersion.
    ///
    /// # Errors
    /// 422 for a JSON patch that does not fit, 400 for a strategic patch that makes no sense.
    pub fn apply(&self, mut object: Value) -> ApiResult<Value> {
        match self {
            Self::Json(patch) => {
                for step in patch.iter() {
                    if finds_nothing(step, &object) {
                        continue;
                    }
                    json_patch::patch(&mut object, std::slice::from_ref(step))
                        .map_err(|e| Status::unprocessable(&e.to_string()))?;
                }
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

/// A test for null where there is nothing holds: the Go server reads an absent field as null, and
/// clients rely on it to add a list only if nobody else has.
fn finds_nothing(step: &json_patch::PatchOperation, object: &Value) -> bool {
    let json_patch::PatchOperation::Test(test) = step else { return false };
    test.value.is_null() && object.pointer(test.path.as_str()).is_none()
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
}
