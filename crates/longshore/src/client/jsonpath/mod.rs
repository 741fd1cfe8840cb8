//! kubectl's JSONPath templates: text with `{…}` in it, `range` and `end`.
//!
//! RFC 9535, which crates implement, has paths only and differs in quoting, escapes, unions and missing keys. So the
//! grammar is read here as `client-go/util/jsonpath` reads it; the tables of [`tests`] were compared with kubectl.

mod eval;
mod parse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::Value;

use super::show::html_safe;

/// A template that cannot be read, or that does not fit an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PathError(String);

/// A template that was read once and can be applied to any object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    source: String,
    parts: Vec<Part>,
}

/// One part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// `{.a.b}`.
    Action(Vec<Step>),
    /// `{range .items[*]}…{end}`.
    Range(Vec<Step>, Vec<Part>),
}

/// One step of a path: each takes values and gives values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Wildcard,
    /// `..`: every value that has values in it.
    Recursive,
    Slice(Slice),
    Union(Vec<Vec<Step>>),
    Filter(Filter),
    /// A quoted text, a number, `true` or `false`.
    Literal(Value),
    /// The word `range`.
    Range,
    /// The word `end`.
    End,
}

/// `[from:to:step]`; `[3]` is `[3:4]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    from: Option<i64>,
    to: Option<i64>,
    /// Whether `to` was not written but follows from `from`.
    single: bool,
    step: Option<i64>,
}

/// `[?(@.a=="b")]`; without an operator it asks whether the left side exists.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Filter {
    left: Vec<Step>,
    comparison: Option<(String, Vec<Step>)>,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// When its grammar is wrong.
    pub(crate) fn parse(source: &str) -> Result<Self, PathError> {
        Ok(Self { source: source.to_owned(), parts: parse::template(source)? })
    }

    /// Reads one path that may lack its braces or its first dot, as columns and sort keys are written.
    ///
    /// # Errors
    /// When it is more than one path, or its grammar is wrong.
    pub(crate) fn relaxed(path: &str) -> Result<Self, PathError> {
        let inner = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
        let inner = inner.strip_prefix('.').unwrap_or(inner);
        if inner.is_empty() || inner.contains(['{', '}']) {
            return Err(PathError(format!(
                "`{path}` is no path; write `.name1.name2` or `{{.name1.name2}}`"
            )));
        }
        Self::parse(&format!("{{.{inner}}}"))
    }

    /// The template as it was written.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The values of each part, one list a part.
    ///
    /// # Errors
    /// When the template does not fit the object. A missing key is no error.
    pub(crate) fn find<'a>(
        &self,
        object: &'a Value,
    ) -> Result<Vec<Vec<Cow<'a, Value>>>, PathError> {
        let mut results = Vec::new();
        eval::parts(&self.parts, Cow::Borrowed(object), &mut results)?;
        Ok(results)
    }

    /// The text for an object: values of one part are separated by spaces.
    ///
    /// # Errors
    /// When the template does not fit the object.
    pub(crate) fn render(&self, object: &Value) -> Result<String, PathError> {
        let parts = self.find(object)?;
        let texts = parts
            .iter()
            .map(|values| values.iter().map(|value| printed(value)).collect::<Vec<_>>().join(" "));
        Ok(texts.collect())
    }

    /// The values of all parts that are paths, for `-o jsonpath-as-json`.
    ///
    /// # Errors
    /// When the template does not fit the object.
    pub(crate) fn values(&self, object: &Value) -> Result<Vec<Value>, PathError> {
        Ok(self.find(object)?.into_iter().flatten().map(Cow::into_owned).collect())
    }
}

/// A value as kubectl prints it: texts plain, lists and objects as JSON.
fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => html_safe(&value.to_string()),
        other => other.to_string(),
    }
}

/// A value as Go's `%v` prints it, which is what columns show.
pub(super) fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" "))
        }
        Value::Object(fields) => {
            let mut pairs: Vec<_> = fields.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            let pairs = pairs.iter().map(|(key, value)| format!("{key}:{}", go_text(value)));
            format!("map[{}]", pairs.collect::<Vec<_>>().join(" "))
        }
        other => other.to_string(),
    }
}
