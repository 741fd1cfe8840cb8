//! Label and field selectors as they stand in query strings.

mod labels;

use serde_json::Value;

pub(crate) use labels::Labels;

use crate::error::{ApiResult, Status};
use crate::registry::Resource;
use crate::store::Stored;

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    label: String,
    value: String,
    equal: bool,
}

/// A parsed `fieldSelector`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<FieldTerm>);

impl Fields {
    /// Parses the selector and checks that the resource knows its labels.
    ///
    /// # Errors
    /// 400 naming the term that is not understood.
    pub fn parse(text: &str, resource: &Resource) -> ApiResult<Self> {
        let mut terms = Vec::new();
        for term in split_terms(text) {
            let (label, value, equal) = split_term(&term).ok_or_else(|| {
                Status::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                ))
            })?;
            let known = matches!(label, "metadata.name" | "metadata.namespace")
                || resource.fields.iter().any(|field| field == label);
            if !known {
                return Err(unknown_field(label, resource));
            }
            terms.push(FieldTerm { label: label.into(), value: unescape(value), equal });
        }
        Ok(Self(terms))
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object is selected.
    pub fn matches(&self, object: &Stored, resource: &Resource) -> bool {
        let mut tree: Option<Value> = None;
        self.0.iter().all(|term| {
            let equal = match term.label.as_str() {
                "metadata.name" => object.name == term.value,
                "metadata.namespace" => object.namespace == term.value,
                label => {
                    let tree = tree.get_or_insert_with(|| resource.to_version(object.value()));
                    field_text(tree, label) == term.value
                }
            };
            equal == term.equal
        })
    }
}

fn unknown_field(label: &str, resource: &Resource) -> Status {
    if resource.fields.is_empty() && resource.custom.is_none() {
        let why = format!(
            "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
        Status::bad_request(why)
    } else {
        Status::bad_request(format!("field label not supported: {label}"))
    }
}

/// The value of a field as selectors compare it: absent is the empty text, `false` too for flags.
fn field_text(object: &Value, label: &str) -> String {
    let path = match label {
        "source" => "/source/component".to_owned(),
        "status.podIPs" => "/status/podIPs/0/ip".to_owned(),
        other => format!("/{}", other.replace('.', "/")),
    };
    match object.pointer(&path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(n)) => n.to_string(),
        _ if matches!(label, "spec.unschedulable" | "spec.hostNetwork") => "false".into(),
        _ if label == "reportingComponent" => String::new(),
        _ => String::new(),
    }
}

/// Splits at commas that are not escaped.
fn split_terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            terms.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = terms.last_mut() {
            last.push(c);
        }
    }
    terms.retain(|t| !t.is_empty());
    terms
}

fn split_term(term: &str) -> Option<(&str, &str, bool)> {
    let at = term.find(['=', '!'])?;
    let (label, rest) = term.split_at(at);
    for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(value) = rest.strip_prefix(sign) {
            return Some((label, value, equal));
        }
    }
    None
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut escaped = false;
    for c in value.chars() {
        if c == '\\' && !escaped {
            escaped = true;
        } else {
            out.push(c);
            escaped = false;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn label_selectors_match_as_documented() {
        let have = labels(&[("app", "web"), ("n", "5")]);
        let rows = [
            ("", true),
            ("app=web", true),
            ("app==db", false),
            ("app!=db", true),
            ("missing!=x", true),
            ("missing=x", false),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("missing notin (db)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("n>4,n<6", true),
            ("n > 5", false),
            ("app=web,!missing,n in (5)", true),
            ("app=", false),
        ];
        for (text, wanted) in rows {
            assert_eq!(Labels::parse(text).unwrap().matches(&have), wanted, "{text}");
        }
    }

    #[test]
    fn bad_label_selectors_are_refused() {
        for text in ["a in (b", "a b", "=x", "a,,b", "a,", "a in ()x", "a > x", "a=b c"] {
            assert!(Labels::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn field_selector_values_are_unescaped() {
        assert_eq!(split_terms(r"a=b\,c,d=e"), [r"a=b\,c", "d=e"]);
        assert_eq!(unescape(r"b\,c"), "b,c");
        assert_eq!(split_term("a!=b"), Some(("a", "b", false)));
        assert_eq!(split_term("nope"), None);
    }
}
