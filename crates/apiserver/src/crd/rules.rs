//! CEL rules (`x-kubernetes-validations`).

use kube_cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use serde_json::{Value, json};

use crate::error::Cause;

/// The rules of one version, compiled once.
pub struct Rules {
    compiled: CompiledSchema,
    validator: Validator,
}

impl Rules {
    /// Compiles the rules of a schema; `None` when it has none.
    pub fn parse(schema: &Value) -> Option<Self> {
        if !has_rules(schema) {
            return None;
        }
        // Defaults have been filled in before rules run; doing it again would only cost time.
        let mut schema = schema.clone();
        strip_defaults(&mut schema);
        Some(Self { compiled: compile_schema(&schema), validator: Validator::new() })
    }

    /// Runs the rules. Those that look at the old object run only when there is one.
    pub fn check(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let Err(errors) = self.validator.validate_compiled(&self.compiled, object, old) else {
            return Vec::new();
        };
        let at = |path: &str| find(object, path);
        errors
            .into_vec()
            .into_iter()
            .map(|error| {
                let reason = match error.kind {
                    ErrorKind::ValidationFailure => error.reason.as_deref().unwrap_or_default(),
                    _ => "",
                };
                Cause::of_rule(reason, &error.field_path, at(&error.field_path), &error.message)
            })
            .collect()
    }
}

/// Why a rule cannot be used although it is well typed: the part at fault, and what is wrong with it.
pub fn refusal(rule: &Value) -> Option<(&'static str, String)> {
    let schema = json!({"type": "object", "x-kubernetes-validations": [rule]});
    let error = compile_schema(&schema).compilation_errors().first()?.to_string();
    let field = if error.contains("messageExpression") { "messageExpression" } else { "rule" };
    Some((field, error))
}

fn children(schema: &Value) -> impl Iterator<Item = &Value> {
    let named = schema["properties"].as_object().into_iter().flat_map(|map| map.values());
    let rest = ["items", "additionalProperties"].into_iter().map(|name| &schema[name]);
    named.chain(rest.filter(|child| child.is_object()))
}

fn has_rules(schema: &Value) -> bool {
    schema["x-kubernetes-validations"].as_array().is_some_and(|list| !list.is_empty())
        || children(schema).any(has_rules)
}

fn strip_defaults(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    map.remove("default");
    for name in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(name) {
            strip_defaults(child);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(strip_defaults);
    }
}

/// The value at a path such as `spec.list[0].name`.
fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let pointer: String = path
        .split('.')
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{}", part.replace('[', "/").replace(']', "")))
        .collect();
    object.pointer(&pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::parse(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "x-kubernetes-validations": [
                {"rule": "has(self.handle) != has(self.claim)", "message": "exactly one"},
                {"rule": "!has(oldSelf.claim) || has(self.claim)", "message": "required once set"},
            ],
            "properties": {
                "handle": {"type": "string"},
                "claim": {"type": "string", "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "messageExpression": "'was ' + oldSelf"}]},
                "size": {"type": "integer", "x-kubernetes-validations": [
                    {"rule": "self >= oldSelf", "reason": "FieldValueForbidden", "message": "may only grow"}]},
            },
        }}}))
        .unwrap()
    }

    #[test]
    fn rules_say_where_and_why() {
        let spec = |spec: Value| json!({"spec": spec});
        let old = spec(json!({"claim": "c", "size": 2}));
        let rows = [
            (json!({}), None, vec![("FieldValueInvalid", "spec", "exactly one")]),
            (json!({"claim": "c"}), None, vec![]),
            (json!({"claim": "c", "size": 3}), Some(&old), vec![]),
            (json!({"claim": "d"}), Some(&old), vec![("FieldValueInvalid", "spec.claim", "was c")]),
            (
                json!({"handle": "h"}),
                Some(&old),
                vec![("FieldValueInvalid", "spec", "required once set")],
            ),
            (
                json!({"claim": "c", "size": 1}),
                Some(&old),
                vec![("FieldValueForbidden", "spec.size", "may only grow")],
            ),
        ];
        for (new, old, wanted) in rows {
            let found = rules().check(&spec(new.clone()), old);
            assert_eq!(found.len(), wanted.len(), "{new}: {found:?}");
            for (cause, (reason, field, why)) in found.iter().zip(wanted) {
                assert_eq!((cause.reason, cause.field.as_str()), (reason, field), "{new}");
                assert!(cause.message.ends_with(why), "{}", cause.message);
            }
        }
    }

    #[test]
    fn rules_that_do_not_compile_are_named() {
        assert_eq!(refusal(&json!({"rule": "self == oldSelf"})), None);
        assert_eq!(refusal(&json!({"rule": "self =="})).unwrap().0, "rule");
        let message = json!({"rule": "true", "messageExpression": "'a' +"});
        assert_eq!(refusal(&message).unwrap().0, "messageExpression");
    }
}
