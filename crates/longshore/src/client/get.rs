//! `longshore get`.

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};

use super::discovery::{Resource, array, text};
use super::session::{Ask, JSON, Session, TABLE, encode};
use super::table::{Columns, Printer, View};
use super::{ClientError, Failures, Get, Output, Scope, Screen};

/// Shows objects, and their changes if asked to.
pub(super) async fn get(
    session: &Session,
    request: Get,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let discovery = session.discovery().await?;
    let mut kinds = Vec::new();
    for word in &request.kinds {
        kinds.extend(discovery.named_or_category(word)?);
    }
    let looks: Vec<Look<'_>> = kinds
        .iter()
        .map(|resource| Look::new(session, resource, &request, kinds.len() > 1))
        .collect();
    match request.output {
        Output::Table | Output::Wide => tables(&looks, &request, screen).await,
        Output::Yaml | Output::Json | Output::Name => objects(&looks, &request, screen).await,
    }
}

/// One kind, looked at in one place.
struct Look<'a> {
    session: &'a Session,
    resource: &'a Resource,
    namespace: Option<&'a str>,
    view: View,
}

impl<'a> Look<'a> {
    fn new(session: &'a Session, resource: &'a Resource, request: &'a Get, several: bool) -> Self {
        let namespace = match &request.scope {
            Scope::Current => Some(session.namespace()),
            Scope::Namespace(name) => Some(name.as_str()),
            Scope::All => None,
        };
        let view = View {
            wide: request.output == Output::Wide,
            with_namespace: request.scope == Scope::All && resource.namespaced,
            prefix: several.then(|| resource.display()),
        };
        Self { session, resource, namespace, view }
    }

    async fn one(&self, name: &str, accept: &'static str) -> Result<Value, ClientError> {
        let namespace = self.namespace.unwrap_or_default();
        let object = format!("{} {name}", self.resource.display());
        let path = self.resource.object(namespace, name);
        self.session.json(Ask { accept, ..Ask::get(&object, path) }).await
    }

    /// Everything, page by page, as one list or Table.
    async fn all(
        &self,
        selector: Option<&str>,
        accept: &'static str,
    ) -> Result<Value, ClientError> {
        let mut whole = Value::Null;
        let mut token = String::new();
        loop {
            let mut path = format!("{}?limit=500", self.resource.collection(self.namespace));
            if let Some(selector) = selector {
                path += &format!("&labelSelector={}", encode(selector));
            }
            if !token.is_empty() {
                path += &format!("&continue={}", encode(&token));
            }
            let ask = Ask { verb: "list", accept, ..Ask::get(&self.resource.plural, path) };
            let mut page = self.session.json(ask).await?;
            token = text(&page["metadata"]["continue"]);
            if whole.is_null() {
                whole = page;
            } else {
                for key in ["items", "rows"] {
                    if let (Some(all), Some(more)) =
                        (whole[key].as_array_mut(), page[key].as_array_mut())
                    {
                        all.append(more);
                    }
                }
            }
            if token.is_empty() {
                return Ok(whole);
            }
        }
    }

    /// Changes from `version` on, handed to `see` until the stream breaks or `see` says stop.
    async fn changes(
        &self,
        field: Option<&str>,
        selector: Option<&str>,
        version: String,
        accept: &'static str,
        mut see: impl FnMut(Value) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut version = version;
        loop {
            let mut path = format!(
                "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}",
                self.resource.collection(self.namespace),
                encode(&version)
            );
            if let Some(name) = field {
                path += &format!("&fieldSelector={}", encode(&format!("metadata.name={name}")));
            }
            if let Some(selector) = selector {
                path += &format!("&labelSelector={}", encode(selector));
            }
            let plural = &self.resource.plural;
            let broken = |why: String| ClientError::Stream { object: plural.clone(), why };
            let ask = Ask {
                verb: "watch",
                object: plural,
                method: Method::GET,
                path,
                accept,
                body: None,
            };
            let mut lines = self.session.stream(ask).await?.lines();
            while let Some(line) =
                lines.try_next().await.map_err(|error| broken(error.to_string()))?
            {
                let event: Value =
                    serde_json::from_str(&line).map_err(|error| broken(error.to_string()))?;
                if event["type"] == "ERROR" {
                    return Err(broken(text(&event["object"]["message"])));
                }
                if let Some(newer) = version_of(&event["object"]) {
                    version = newer;
                }
                if event["type"] != "BOOKMARK" {
                    see(event)?;
                }
            }
            // The server ends a watch now and then; it goes on where it was.
        }
    }
}

/// The version of an object, or of the object in a Table's row.
fn version_of(object: &Value) -> Option<String> {
    let row = &object["rows"][0]["object"]["metadata"]["resourceVersion"];
    let own = &object["metadata"]["resourceVersion"];
    [row, own]
        .into_iter()
        .filter_map(Value::as_str)
        .find(|text| !text.is_empty())
        .map(str::to_owned)
}

/// Shows the server's Tables.
async fn tables(
    looks: &[Look<'_>],
    request: &Get,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut failures = Failures::default();
    let mut shown = 0;
    for look in looks {
        let mut table = Value::Null;
        if request.names.is_empty() {
            table = look.all(request.selector.as_deref(), TABLE).await?;
        }
        for name in &request.names {
            match look.one(name, TABLE).await {
                Ok(next) if table.is_null() => table = next,
                Ok(next) => append_rows(&mut table, next),
                Err(error) => failures.note(screen, error)?,
            }
        }
        let mut printer = Printer::default();
        let columns = Columns::of(&table, &look.view);
        let rows = columns.rows(&table, &look.view);
        if !rows.is_empty() {
            if shown > 0 {
                writeln!(screen.out)?;
            }
            shown += 1;
            write!(screen.out, "{}", printer.text(columns.header(), &rows))?;
            screen.out.flush()?;
        }
        if request.watch {
            watch_table(look, request, (table, printer), screen).await?;
        }
    }
    if shown == 0 && request.names.is_empty() {
        nothing_found(looks, screen)?;
    }
    failures.end()
}

fn append_rows(table: &mut Value, mut next: Value) {
    if let (Some(rows), Some(more)) = (table["rows"].as_array_mut(), next["rows"].as_array_mut()) {
        rows.append(more);
    }
}

/// Goes on with the rows that change. Columns come with the first Table only.
async fn watch_table(
    look: &Look<'_>,
    request: &Get,
    (first, mut printer): (Value, Printer),
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let version = version_to_watch(&first);
    let mut columns = Columns::of(&first, &look.view);
    let mut header_due = array(&first["rows"]).is_empty();
    let see = |event: Value| {
        let table = &event["object"];
        if !array(&table["columnDefinitions"]).is_empty() {
            columns = Columns::of(table, &look.view);
        }
        let header = if header_due { columns.header() } else { &[] };
        write!(screen.out, "{}", printer.text(header, &columns.rows(table, &look.view)))?;
        header_due = false;
        Ok(screen.out.flush()?)
    };
    let field = request.names.first().map(String::as_str);
    look.changes(field, request.selector.as_deref(), version, TABLE, see).await
}

/// A list is watched from its own version on, a single object from the object's.
fn version_to_watch(answer: &Value) -> String {
    let own = text(&answer["metadata"]["resourceVersion"]);
    if own.is_empty() { version_of(answer).unwrap_or_default() } else { own }
}

fn nothing_found(looks: &[Look<'_>], screen: &mut Screen<'_>) -> Result<(), ClientError> {
    let namespace =
        looks.iter().filter(|look| look.resource.namespaced).find_map(|look| look.namespace);
    match namespace {
        Some(namespace) => writeln!(screen.err, "No resources found in {namespace} namespace.")?,
        None => writeln!(screen.err, "No resources found")?,
    }
    Ok(())
}

/// Shows the objects themselves.
async fn objects(
    looks: &[Look<'_>],
    request: &Get,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut failures = Failures::default();
    let mut found = Vec::new();
    let mut version = String::new();
    for look in looks {
        if request.names.is_empty() {
            let list = look.all(request.selector.as_deref(), JSON).await?;
            version = version_to_watch(&list);
            found.extend(
                items_of(look.resource, &list).into_iter().map(|item| (look.resource, item)),
            );
        }
        for name in &request.names {
            match look.one(name, JSON).await {
                Ok(object) => {
                    version = version_to_watch(&object);
                    found.push((look.resource, object));
                }
                Err(error) => failures.note(screen, error)?,
            }
        }
    }
    let single = request.names.len() == 1 && looks.len() == 1;
    show(&found, single, request.output, screen)?;
    if let (true, [look]) = (request.watch, looks) {
        let see = |event: Value| {
            if request.output == Output::Yaml {
                writeln!(screen.out, "---")?;
            }
            show(&[(look.resource, event["object"].clone())], true, request.output, screen)
        };
        let field = request.names.first().map(String::as_str);
        look.changes(field, request.selector.as_deref(), version, JSON, see).await?;
    }
    failures.end()
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

fn show(
    found: &[(&Resource, Value)],
    single: bool,
    output: Output,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    if output == Output::Name {
        for (resource, object) in found {
            writeln!(screen.out, "{}/{}", resource.display(), text(&object["metadata"]["name"]))?;
        }
        return Ok(screen.out.flush()?);
    }
    let mut objects: Vec<Value> = found.iter().map(|(_, object)| sorted(object)).collect();
    for object in &mut objects {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
    }
    let whole = match (single, objects.len()) {
        (true, 0) => return Ok(()),
        (true, 1) => objects.remove(0),
        _ => json!({
            "apiVersion": "v1", "items": objects, "kind": "List", "metadata": {"resourceVersion": ""},
        }),
    };
    match output {
        Output::Yaml => write!(screen.out, "{}", yaml(&whole)?)?,
        _ => writeln!(screen.out, "{}", pretty_json(&whole)?)?,
    }
    Ok(screen.out.flush()?)
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

fn yaml(value: &Value) -> Result<String, ClientError> {
    let text =
        serde_saphyr::to_string(value).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// JSON indented by four spaces, as kubectl prints it.
fn pretty_json(value: &Value) -> Result<String, ClientError> {
    use serde::Serialize;
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    value.serialize(&mut serializer).map_err(std::io::Error::from)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
