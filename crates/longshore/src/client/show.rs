//! How objects are shown: YAML, JSON, names, templates, columns.

use serde_json::{Value, json};

use super::discovery::{Resource, array, text};
use super::jsonpath::{Template, go_text};
use super::table::Printer;
use super::{ClientError, Screen};

/// How to show objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Output {
    /// A table, as the server makes it.
    #[default]
    Table,
    /// A table with all its columns.
    Wide,
    Yaml,
    Json,
    /// Only `kind/name`.
    Name,
    JsonPath(Template),
    /// The values that a template finds, as a JSON list.
    JsonPathAsJson(Template),
    Columns(Vec<Column>),
}

/// One column of `-o custom-columns`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    header: String,
    path: Template,
}

impl Output {
    const FORMATS: &'static str = "yaml, json, name, wide, jsonpath=…, jsonpath-file=…, \
                                   jsonpath-as-json=…, custom-columns=…, custom-columns-file=…";

    /// Reads what `-o` of `get` says.
    ///
    /// # Errors
    /// The end of the sentence "--output cannot be `x`: …".
    pub(crate) fn parse(format: &str) -> Result<Self, String> {
        let (kind, rest) = match format.split_once('=') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (format, None),
        };
        let template = |text: &str| Template::parse(text).map_err(|error| error.to_string());
        match (kind, rest) {
            ("yaml", None) => Ok(Self::Yaml),
            ("json", None) => Ok(Self::Json),
            ("name", None) => Ok(Self::Name),
            ("wide", None) => Ok(Self::Wide),
            ("jsonpath", Some(text)) => template(text).map(Self::JsonPath),
            ("jsonpath-as-json", Some(text)) => template(text).map(Self::JsonPathAsJson),
            ("jsonpath-file", Some(file)) => template(&read(file)?).map(Self::JsonPath),
            ("custom-columns", Some(spec)) => columns(spec).map(Self::Columns),
            ("custom-columns-file", Some(file)) => columns_of_file(&read(file)?).map(Self::Columns),
            ("jsonpath" | "jsonpath-as-json" | "jsonpath-file", None) => {
                Err(format!("a template is needed, for example {kind}='{{.metadata.name}}'"))
            }
            ("custom-columns" | "custom-columns-file", None) => {
                Err("columns are needed, for example custom-columns=NAME:.metadata.name".into())
            }
            _ => Err(format!("it is one of {}", Self::FORMATS)),
        }
    }

    /// Reads what `-o` of a command says that has no tables.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub(crate) fn parse_without_tables(format: &str) -> Result<Self, String> {
        match Self::parse(format)? {
            Self::Wide => Err("it is one of yaml, json, name, jsonpath=…".into()),
            output => Ok(output),
        }
    }
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"))
}

fn columns(spec: &str) -> Result<Vec<Column>, String> {
    let column = |part: &str| {
        let (header, path) = part.split_once(':').ok_or_else(|| {
            format!("`{part}` is no column; write HEADER:PATH, for example NAME:.metadata.name")
        })?;
        column(header, path)
    };
    spec.split(',').map(column).collect()
}

fn column(header: &str, path: &str) -> Result<Column, String> {
    let path = Template::relaxed(path).map_err(|error| error.to_string())?;
    Ok(Column { header: header.to_owned(), path })
}

/// Headers in the first line, paths below them in the second.
fn columns_of_file(text: &str) -> Result<Vec<Column>, String> {
    let mut lines = text.lines();
    let mut words = || lines.next().unwrap_or_default().split_whitespace();
    let (headers, paths): (Vec<_>, Vec<_>) = (words().collect(), words().collect());
    if headers.is_empty() || headers.len() != paths.len() {
        return Err("the file needs a line of headers and a line of as many paths".into());
    }
    headers.iter().zip(paths).map(|(header, path)| column(header, path)).collect()
}

/// Objects that are shown together.
pub(super) struct Shown<'a> {
    pub(super) objects: &'a [(&'a Resource, Value)],
    /// Whether one object was asked for, which is then not wrapped into a list.
    pub(super) single: bool,
    pub(super) output: &'a Output,
    pub(super) headers: bool,
}

impl Shown<'_> {
    pub(super) fn write(
        &self,
        printer: &mut Printer,
        screen: &mut Screen<'_>,
    ) -> Result<(), ClientError> {
        match self.output {
            Output::Name => {
                for (resource, object) in self.objects {
                    let name = text(&object["metadata"]["name"]);
                    writeln!(screen.out, "{}/{name}", resource.display())?;
                }
            }
            Output::Columns(columns) => write!(screen.out, "{}", self.table(columns, printer)?)?,
            output => {
                if let Some(whole) = self.whole() {
                    write!(screen.out, "{}", rendered(&whole, output)?)?;
                }
            }
        }
        Ok(screen.out.flush()?)
    }

    fn table(&self, columns: &[Column], printer: &mut Printer) -> Result<String, ClientError> {
        let header: Vec<String> = match self.headers {
            true => columns.iter().map(|column| column.header.clone()).collect(),
            false => Vec::new(),
        };
        let mut rows = Vec::new();
        for (_, object) in self.objects {
            let cells = columns.iter().map(|column| column.cell(object));
            rows.push(cells.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(printer.text(&header, &rows))
    }

    /// The object, or the list of all.
    fn whole(&self) -> Option<Value> {
        let mut objects: Vec<Value> =
            self.objects.iter().map(|(_, object)| without_managers(object)).collect();
        match (self.single, objects.len()) {
            (true, 0) => None,
            (true, 1) => Some(objects.remove(0)),
            _ => Some(json!({
                "apiVersion": "v1", "items": objects, "kind": "List",
                "metadata": {"resourceVersion": ""},
            })),
        }
    }
}

impl Column {
    fn cell(&self, object: &Value) -> Result<String, ClientError> {
        let found = self.path.find(object).map_err(|error| misfit(&self.path, &error))?;
        let values: Vec<String> = found.iter().flatten().map(|value| go_text(value)).collect();
        Ok(if values.is_empty() { "<none>".into() } else { values.join(",") })
    }
}

fn rendered(whole: &Value, output: &Output) -> Result<String, ClientError> {
    match output {
        Output::Yaml => yaml(whole),
        Output::JsonPath(template) => {
            template.render(whole).map_err(|error| misfit(template, &error))
        }
        Output::JsonPathAsJson(template) => {
            let values = template.values(whole).map_err(|error| misfit(template, &error))?;
            Ok(pretty_json(&Value::Array(values))? + "\n")
        }
        _ => Ok(pretty_json(whole)? + "\n"),
    }
}

/// A template that does not fit what was found.
pub(super) fn misfit(template: &Template, why: &super::jsonpath::PathError) -> ClientError {
    ClientError::Template { template: template.source().to_owned(), why: why.to_string() }
}

/// The object with sorted keys and without the managers of its fields, which only programs read.
pub(super) fn without_managers(object: &Value) -> Value {
    let mut object = sorted(object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// The objects of a list. Their own kind is left out of lists, so it is put back.
pub(super) fn items_of(resource: &Resource, list: &Value) -> Vec<Value> {
    let mut items = array(&list["items"]).to_vec();
    for item in &mut items {
        item["apiVersion"] = json!(resource.api_version());
        item["kind"] = json!(resource.kind);
    }
    items
}

/// The same value with the keys of all its objects in order.
pub(super) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut pairs: Vec<_> = fields.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            Value::Object(
                pairs.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

pub(super) fn yaml(value: &Value) -> Result<String, ClientError> {
    let text =
        serde_saphyr::to_string(value).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// JSON indented by four spaces, as kubectl prints it.
pub(super) fn pretty_json(value: &Value) -> Result<String, ClientError> {
    use serde::Serialize;
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    value.serialize(&mut serializer).map_err(std::io::Error::from)?;
    Ok(html_safe(&String::from_utf8_lossy(&bytes)))
}

/// JSON with the escapes of Go's encoder, which guards against texts that end a script in a web page.
pub(super) fn html_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
