//! `longshore events`, and how events are read.

use jiff::Timestamp;
use longshore_core::model::age;
use serde_json::Value;

use super::discovery::{Resource, array, text};
use super::select::{Word, list};
use super::session::{Ask, JSON, Session, encode};
use super::show::{Output, Shown, items_of};
use super::table::Printer;
use super::watch::{Watch, version_to_watch};
use super::{ClientError, Scope, Screen};

/// Show events, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub scope: Scope,
    /// The object that they are about.
    pub about: Option<Word>,
    /// `Normal`, `Warning`; empty means all.
    pub types: Vec<String>,
    /// None means a table.
    pub output: Option<Output>,
    pub watch: bool,
    pub no_headers: bool,
}

/// Shows events, and further ones if asked to.
pub(super) async fn events(
    session: &Session,
    request: Events,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let resource = session.resource("events").await?;
    let about = match &request.about {
        Some(word) => Some((session.resource(&word.kind).await?, word.name.clone())),
        None => None,
    };
    let wanted = |event: &Value| is_about(event, about.as_ref()) && has_type(event, &request.types);
    let namespace = request.scope.namespace(session);
    let all = list(session, resource, namespace, "", JSON).await?;
    let mut found: Vec<Value> = items_of(resource, &all).into_iter().filter(wanted).collect();
    found.sort_by_key(last_seen);
    let mut printer = Printer::default();
    if found.is_empty() && !request.watch {
        return nothing(namespace, screen);
    }
    show(&request, (resource, &found), !request.no_headers, &mut printer, screen)?;
    if !request.watch {
        return Ok(());
    }
    let watch = Watch { session, resource, namespace, query: String::new(), accept: JSON };
    watch
        .forever(version_to_watch(&all), |change| {
            let event = change["object"].clone();
            if change["type"] == "DELETED" || !wanted(&event) {
                return Ok(());
            }
            show(&request, (resource, &[event]), false, &mut printer, screen)
        })
        .await
}

fn nothing(namespace: Option<&str>, screen: &mut Screen<'_>) -> Result<(), ClientError> {
    match namespace {
        Some(namespace) => writeln!(screen.err, "No events found in {namespace} namespace.")?,
        None => writeln!(screen.err, "No events found.")?,
    }
    Ok(())
}

fn is_about(event: &Value, about: Option<&(&Resource, Option<String>)>) -> bool {
    let Some((resource, name)) = about else { return true };
    let involved = &event["involvedObject"];
    involved["kind"] == *resource.kind
        && name.as_ref().is_none_or(|name| involved["name"] == **name)
}

fn has_type(event: &Value, types: &[String]) -> bool {
    let own = text(&event["type"]);
    types.is_empty() || types.iter().any(|wanted| own.eq_ignore_ascii_case(wanted))
}

fn show(
    request: &Events,
    (resource, events): (&Resource, &[Value]),
    headers: bool,
    printer: &mut Printer,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    if let Some(output) = &request.output {
        let objects: Vec<_> = events.iter().map(|event| (resource, event.clone())).collect();
        return Shown { objects: &objects, single: false, output, headers }.write(printer, screen);
    }
    let with_namespace = request.scope == Scope::All;
    let mut header: Vec<String> = match headers {
        true => ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"].map(str::to_owned).to_vec(),
        false => Vec::new(),
    };
    if headers && with_namespace {
        header.insert(0, "NAMESPACE".into());
    }
    let now = Timestamp::now();
    let row = |event: &Value| {
        let involved = &event["involvedObject"];
        let object = format!("{}/{}", text(&involved["kind"]), text(&involved["name"]));
        let message = text(&event["message"]).trim().to_owned();
        let mut row = vec![
            how_long_ago(event, now),
            text(&event["type"]),
            text(&event["reason"]),
            object,
            message,
        ];
        if with_namespace {
            row.insert(0, text(&event["metadata"]["namespace"]));
        }
        row
    };
    let rows: Vec<Vec<String>> = events.iter().map(row).collect();
    write!(screen.out, "{}", printer.text(&header, &rows))?;
    Ok(screen.out.flush()?)
}

/// The events about an object, oldest first.
pub(super) async fn events_of(
    session: &Session,
    object: &Value,
) -> Result<Vec<Value>, ClientError> {
    let metadata = &object["metadata"];
    let namespace = text(&metadata["namespace"]);
    let mut selector = vec![
        format!("involvedObject.name={}", text(&metadata["name"])),
        format!("involvedObject.kind={}", text(&object["kind"])),
    ];
    if !text(&metadata["uid"]).is_empty() {
        selector.push(format!("involvedObject.uid={}", text(&metadata["uid"])));
    }
    let path = match namespace.is_empty() {
        true => "/api/v1/events".to_owned(),
        false => format!("/api/v1/namespaces/{}/events", encode(&namespace)),
    };
    let path = format!("{path}?fieldSelector={}", encode(&selector.join(",")));
    let list = session.json(Ask { verb: "list", ..Ask::get("events", path) }).await?;
    let mut events = array(&list["items"]).to_vec();
    events.sort_by_key(last_seen);
    Ok(events)
}

/// When an event was seen last, wherever its maker wrote that.
pub(super) fn last_seen(event: &Value) -> String {
    [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/firstTimestamp",
        "/metadata/creationTimestamp",
    ]
    .into_iter()
    .filter_map(|pointer| event.pointer(pointer).and_then(Value::as_str))
    .find(|text| !text.is_empty())
    .unwrap_or_default()
    .to_owned()
}

/// `10s`, or `10s (x3 over 10m)`.
pub(super) fn how_long_ago(event: &Value, now: Timestamp) -> String {
    let ago = age::since(&last_seen(event), now);
    let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
    if count <= 1 {
        return ago;
    }
    let first = match text(&event["firstTimestamp"]) {
        first if first.is_empty() => text(&event["eventTime"]),
        first => first,
    };
    format!("{ago} (x{count} over {})", age::since(&first, now))
}
