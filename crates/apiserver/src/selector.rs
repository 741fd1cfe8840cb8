//! Label and field selectors as they stand in query strings.

use serde_json::Value;

use crate::error::{ApiResult, Status};
use crate::registry::Resource;
use crate::store::Stored;

/// One label requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

/// A parsed `labelSelector`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Vec<Requirement>);

impl Labels {
    /// Parses the selector.
    ///
    /// # Errors
    /// 400 naming what could not be understood.
    pub fn parse(text: &str) -> ApiResult<Self> {
        let mut scanner = Scanner { rest: text.trim() };
        let mut requirements = Vec::new();
        while !scanner.rest.is_empty() {
            requirements.push(scanner.requirement()?);
            if scanner.rest.is_empty() {
                break;
            }
            scanner.expect(',')?;
            if scanner.rest.is_empty() {
                return Err(scanner.unexpected("identifier after ','"));
            }
        }
        Ok(Self(requirements))
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &[(String, String)]) -> bool {
        let get = |key: &str| labels.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => get(key).is_some_and(|v| values.iter().any(|x| x == v)),
            Requirement::NotIn(key, values) => {
                get(key).is_none_or(|v| values.iter().all(|x| x != v))
            }
            Requirement::Exists(key) => get(key).is_some(),
            Requirement::Absent(key) => get(key).is_none(),
            Requirement::Greater(key, than) => number(get(key)).is_some_and(|n| n > *than),
            Requirement::Less(key, than) => number(get(key)).is_some_and(|n| n < *than),
        })
    }
}

fn number(text: Option<&str>) -> Option<i64> {
    text?.parse().ok()
}

struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn unexpected(&self, wanted: &str) -> Status {
        let found = self.rest.chars().next().map(String::from).unwrap_or_default();
        Status::bad_request(format!(
            "unable to parse requirement: found '{found}', expected: {wanted}"
        ))
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn expect(&mut self, c: char) -> ApiResult<()> {
        self.skip_spaces();
        self.rest = self.rest.strip_prefix(c).ok_or_else(|| self.unexpected(&format!("'{c}'")))?;
        self.skip_spaces();
        Ok(())
    }

    /// A run of characters that may stand in keys and values.
    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || ",=!()<>".contains(c))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn key(&mut self) -> ApiResult<String> {
        let key = self.word();
        if key.is_empty() {
            return Err(self.unexpected("identifier"));
        }
        let name = key.rsplit('/').next().unwrap_or(key);
        if !crate::registry::names::is_qualified_part(name) {
            let why = format!("unable to parse requirement: key {key:?} is not a valid label key");
            return Err(Status::bad_request(why));
        }
        Ok(key.to_owned())
    }

    fn value(&mut self) -> ApiResult<String> {
        let value = self.word();
        if crate::registry::names::is_label_value(value) {
            return Ok(value.to_owned());
        }
        let why = format!("unable to parse requirement: {value:?} is not a valid label value");
        Err(Status::bad_request(why))
    }

    fn values(&mut self) -> ApiResult<Vec<String>> {
        self.expect('(')?;
        let mut values = vec![self.value()?];
        loop {
            if let Some(rest) = self.rest.strip_prefix(')') {
                self.rest = rest;
                self.skip_spaces();
                return Ok(values);
            }
            let Some(rest) = self.rest.strip_prefix(',') else {
                return Err(self.unexpected("',' or ')'"));
            };
            self.rest = rest;
            self.skip_spaces();
            values.push(self.value()?);
        }
    }

    fn bound(&mut self) -> ApiResult<i64> {
        let word = self.word();
        word.parse().map_err(|_| {
            Status::bad_request(format!("unable to parse requirement: {word:?} is not an integer"))
        })
    }

    fn requirement(&mut self) -> ApiResult<Requirement> {
        self.skip_spaces();
        if let Some(rest) = self.rest.strip_prefix('!') {
            self.rest = rest.trim_start();
            return Ok(Requirement::Absent(self.key()?));
        }
        let key = self.key()?;
        for (sign, negative) in [("==", false), ("!=", true), ("=", false)] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = rest.trim_start();
                let values = vec![self.value()?];
                return Ok(match negative {
                    true => Requirement::NotIn(key, values),
                    false => Requirement::In(key, values),
                });
            }
        }
        if let Some(rest) = self.rest.strip_prefix('>') {
            self.rest = rest.trim_start();
            return Ok(Requirement::Greater(key, self.bound()?));
        }
        if let Some(rest) = self.rest.strip_prefix('<') {
            self.rest = rest.trim_start();
            return Ok(Requirement::Less(key, self.bound()?));
        }
        if self.rest.is_empty() || self.rest.starts_with(',') {
            return Ok(Requirement::Exists(key));
        }
        match self.word() {
            "in" => Ok(Requirement::In(key, self.values()?)),
            "notin" => Ok(Requirement::NotIn(key, self.values()?)),
            _ => Err(self.unexpected("in, notin, =, ==, !=, >, <")),
        }
    }
}

/// One field requirement.
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
                    let tree = tree.get_or_insert_with(|| resource.show(object.value()));
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
    fn field_terms_unescape() {
        assert_eq!(split_terms(r"a=b\,c,d=e"), [r"a=b\,c", "d=e"]);
        assert_eq!(unescape(r"b\,c"), "b,c");
        assert_eq!(split_term("a!=b"), Some(("a", "b", false)));
        assert_eq!(split_term("nope"), None);
    }
}
