//! `additionalPrinterColumns`: simple JSON paths into an object.

use serde_json::Value;

/// A column of a custom resource's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: String,
    pub format: String,
    pub description: String,
    /// Zero is always shown.
    pub priority: i64,
    path: Path,
}

impl Column {
    /// Reads a column; `None` when its path is not understood.
    pub fn parse(column: &Value) -> Option<Self> {
        let text = |name: &str| column[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description: text("description"),
            priority: column["priority"].as_i64().unwrap_or(0),
            path: Path::parse(column["jsonPath"].as_str()?)?,
        })
    }

    /// The column that stands in for missing ones.
    pub fn age() -> Self {
        Self {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: "When the object was made.".into(),
            priority: 0,
            path: Path(vec![
                Step::Field("metadata".into()),
                Step::Field("creationTimestamp".into()),
            ]),
        }
    }

    /// The value of the column, null when there is none or it has another type.
    pub fn cell(&self, object: &Value, age: impl Fn(&str) -> String) -> Value {
        let Some(value) = self.path.first(object) else { return Value::Null };
        match (self.kind.as_str(), value) {
            ("date", Value::String(time)) => age(time).into(),
            ("date", _) => "<unknown>".into(),
            ("integer", Value::Number(n)) if n.is_i64() || n.is_u64() => value.clone(),
            ("integer", Value::Number(n)) => n.as_f64().map_or(Value::Null, |f| (f as i64).into()),
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("string", Value::String(_)) => value.clone(),
            ("string", Value::Null) => Value::Null,
            ("string", other) => other.to_string().into(),
            _ => Value::Null,
        }
    }
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// `?(@.field=="value")`
    Where {
        field: Vec<String>,
        equal: bool,
        value: Value,
    },
}

/// A parsed path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

impl Path {
    /// Parses a path; `None` when it is not understood.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim().trim_start_matches('{').trim_end_matches('}');
        if !rest.starts_with(['.', '[']) {
            return None;
        }
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let end = closing(inner)?;
                steps.push(bracket(&inner[..end])?);
                rest = &inner[end + 1..];
            } else {
                let inner = rest.strip_prefix('.')?;
                let (field, used) = word(inner);
                if !field.is_empty() {
                    steps.push(if field == "*" { Step::All } else { Step::Field(field) });
                } else if used == 0 && !inner.is_empty() && !inner.starts_with('[') {
                    return None;
                }
                rest = &inner[used..];
            }
        }
        Some(Self(steps))
    }

    /// Whether the path goes through fields only.
    pub(super) fn is_simple(&self) -> bool {
        self.0.iter().all(|step| matches!(step, Step::Field(_)))
    }

    /// The names of the fields.
    pub(super) fn fields(&self) -> Vec<&str> {
        let names = self.0.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        });
        names.collect()
    }

    /// The first value found.
    pub(super) fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| follow(step, value)).collect();
        }
        found.first().copied()
    }
}

fn follow<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(index) => {
            let Some(list) = value.as_array() else { return Vec::new() };
            let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
            let index = if *index < 0 { length + index } else { *index };
            usize::try_from(index).ok().and_then(|i| list.get(i)).into_iter().collect()
        }
        Step::All => match value {
            Value::Array(list) => list.iter().collect(),
            Value::Object(map) => map.values().collect(),
            _ => Vec::new(),
        },
        Step::Where { field, equal, value: wanted } => value
            .as_array()
            .into_iter()
            .flatten()
            .filter(|item| {
                let found = field.iter().try_fold(*item, |at, name| at.get(name));
                found.is_some_and(|v| (v == wanted) == *equal)
            })
            .collect(),
    }
}

/// A field name, where `\.` is a dot of the name; and how much text it took.
fn word(text: &str) -> (String, usize) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, at),
            c => name.push(c),
        }
    }
    (name, text.len())
}

/// Where the bracket ends, quotes considered.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, ']') => return Some(at),
            (None, '\'' | '"') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquote(text) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        let (left, equal, right) = match filter.split_once("==") {
            Some((left, right)) => (left, true, right),
            None => filter.split_once("!=").map(|(left, right)| (left, false, right))?,
        };
        let field = left.trim().strip_prefix("@.")?.split('.').map(str::to_owned).collect();
        let right = right.trim();
        let value = match unquote(right) {
            Some(text) => text.into(),
            None => serde_json::from_str(right).ok()?,
        };
        return Some(Step::Where { field, equal, value });
    }
    text.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<&str> {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\''))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_their_value() {
        let object = json!({
            "spec": {"size": 3, "tags": ["t1", "t2"], "a.b": 1, "deep": [{"x": 1}, {"x": 2}]},
            "status": {"conditions": [{"type": "X", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let rows = [
            (".spec.size", Some(json!(3))),
            (".spec.tags[0]", Some(json!("t1"))),
            (".spec.tags[-1]", Some(json!("t2"))),
            (".spec['a.b']", Some(json!(1))),
            (r".spec.a\.b", Some(json!(1))),
            (".spec.deep[*].x", Some(json!(1))),
            (".status.conditions[?(@.type==\"Ready\")].status", Some(json!("True"))),
            (".status.conditions[?(@.type!='X')].status", Some(json!("True"))),
            (".spec.nope", None),
            (".spec.tags[9]", None),
        ];
        for (path, wanted) in rows {
            assert_eq!(Path::parse(path).unwrap().first(&object).cloned(), wanted, "{path}");
        }
        for bad in ["spec", ".a[", ".a[?(x)]"] {
            assert!(Path::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        let cell = |kind: &str, value: Value| {
            let column = json!({"name": "A", "type": kind, "jsonPath": ".v"});
            Column::parse(&column).unwrap().cell(&json!({"v": value}), |_| "1s".into())
        };
        assert_eq!(cell("integer", json!(3)), json!(3));
        assert_eq!(cell("integer", json!("x")), Value::Null);
        assert_eq!(cell("boolean", json!(true)), json!(true));
        assert_eq!(cell("date", json!("2020-01-01T00:00:00Z")), json!("1s"));
        assert_eq!(cell("string", json!(["a"])), json!("[\"a\"]"));
    }
}
