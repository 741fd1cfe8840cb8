//! `longshore describe`: one object in sections, with its events.

use jiff::Timestamp;
use serde_json::Value;

use super::discovery::{Resource, array, text};
use super::events::{events_of, how_long_ago};
use super::select::Selection;
use super::session::{Ask, Session, encode};
use super::table::Printer;
use super::{ClientError, Failures, Screen, describe_known};

/// Show objects in detail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Describe {
    pub selection: Selection,
    /// Whether events are shown.
    pub events: bool,
}

/// Shows objects in detail.
pub(super) async fn describe(
    session: &Session,
    request: Describe,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut failures = Failures::default();
    let items = request.selection.items(session).await?;
    if items.is_empty() {
        match request.selection.namespace(session) {
            Some(namespace) => {
                writeln!(screen.err, "No resources found in {namespace} namespace.")?;
            }
            None => writeln!(screen.err, "No resources found")?,
        }
    }
    let mut shown = 0;
    for item in items {
        let object = match item.listed.clone() {
            Some(object) => Ok(object),
            None => item.live(session).await,
        };
        match object {
            Ok(object) => {
                if shown > 0 {
                    writeln!(screen.out, "\n")?;
                }
                shown += 1;
                let page = page(session, item.resource, &object, request.events).await?;
                write!(screen.out, "{page}")?;
            }
            Err(error) => failures.note(screen, error)?,
        }
    }
    failures.end()
}

/// The whole text about one object.
async fn page(
    session: &Session,
    resource: &Resource,
    object: &Value,
    with_events: bool,
) -> Result<String, ClientError> {
    let mut lines = Lines::default();
    lines.field(0, "Name", &text(&object["metadata"]["name"]));
    if resource.namespaced {
        lines.field(0, "Namespace", &text(&object["metadata"]["namespace"]));
    }
    let used_by = match resource.kind.as_str() {
        "PersistentVolumeClaim" => Some(pods_with_claim(session, object).await?),
        _ => None,
    };
    describe_known::body(&mut lines, &resource.kind, object);
    if let Some(pods) = used_by {
        lines.field(0, "Used By", if pods.is_empty() { "<none>" } else { &pods });
    }
    if !with_events {
        return Ok(lines.text());
    }
    let events = events_of(session, object).await?;
    if events.is_empty() {
        lines.field(0, "Events", "<none>");
        return Ok(lines.text());
    }
    let header = ["  Type", "Reason", "Age", "From", "Message"].map(str::to_owned);
    let mut rows =
        vec![["  ----", "------", "----", "----", "-------"].map(str::to_owned).to_vec()];
    rows.extend(events.iter().map(|event| event_row(event, Timestamp::now())));
    Ok(format!("{}Events:\n{}", lines.text(), Printer::default().text(&header, &rows)))
}

/// The pods of the claim's namespace that use it.
async fn pods_with_claim(session: &Session, claim: &Value) -> Result<String, ClientError> {
    let namespace = text(&claim["metadata"]["namespace"]);
    let path = format!("/api/v1/namespaces/{}/pods", encode(&namespace));
    let pods = session.json(Ask { verb: "list", ..Ask::get("pods", path) }).await?;
    let name = &claim["metadata"]["name"];
    let uses = |pod: &&Value| {
        array(&pod["spec"]["volumes"])
            .iter()
            .any(|volume| volume["persistentVolumeClaim"]["claimName"] == *name)
    };
    let users: Vec<String> = array(&pods["items"])
        .iter()
        .filter(uses)
        .map(|pod| text(&pod["metadata"]["name"]))
        .collect();
    Ok(users.join(", "))
}

fn event_row(event: &Value, now: Timestamp) -> Vec<String> {
    let from = match text(&event["source"]["component"]) {
        component if component.is_empty() => text(&event["reportingComponent"]),
        component => component,
    };
    let message = text(&event["message"]).trim().to_owned();
    let ago = how_long_ago(event, now);
    vec![format!("  {}", text(&event["type"])), text(&event["reason"]), ago, from, message]
}

/// Fields whose keys were chosen by people, and are shown as they are.
const FREE_KEYS: &[&str] = &[
    "Annotations",
    "Data",
    "Labels",
    "Match Labels",
    "Node Selector",
    "Parameters",
    "Volume Attributes",
    "volumeAttributes",
];

/// Lines of a description: labels with values, in levels. Values of one level and run line up.
#[derive(Default)]
pub(super) struct Lines {
    lines: Vec<(usize, String, Option<String>)>,
}

impl Lines {
    /// A label with its value.
    pub(super) fn field(&mut self, level: usize, label: &str, value: &str) {
        self.lines.push((level, format!("{label}:"), Some(value.to_owned())));
    }

    /// A label above a section.
    pub(super) fn section(&mut self, level: usize, label: &str) {
        self.lines.push((level, format!("{label}:"), None));
    }

    /// A line of its own.
    pub(super) fn plain(&mut self, level: usize, text: &str) {
        self.lines.push((level, text.to_owned(), None));
    }

    /// Several values under one label, one per line; `<none>` if there are none.
    pub(super) fn many(&mut self, level: usize, label: &str, values: &[String]) {
        match values.split_first() {
            None => self.field(level, label, "<none>"),
            Some((first, rest)) => {
                self.field(level, label, first);
                for value in rest {
                    self.lines.push((level, String::new(), Some(value.clone())));
                }
            }
        }
    }

    /// Any value, taken apart.
    pub(super) fn tree(&mut self, level: usize, label: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::Object(fields) if fields.is_empty() => {}
            Value::Object(fields) => {
                self.section(level, label);
                let free_keys = FREE_KEYS.contains(&label);
                for (key, value) in fields {
                    let label = if free_keys { key.clone() } else { title(key) };
                    self.tree(level + 1, &label, value);
                }
            }
            Value::Array(items)
                if items.iter().all(|item| !item.is_object() && !item.is_array()) =>
            {
                self.many(level, label, &items.iter().map(scalar).collect::<Vec<_>>());
            }
            Value::Array(items) => {
                self.section(level, label);
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        self.plain(level + 1, "");
                    }
                    for (key, value) in item.as_object().into_iter().flatten() {
                        self.tree(level + 1, &title(key), value);
                    }
                }
            }
            other => self.field(level, label, &scalar(other)),
        }
    }

    /// The text. A run of lines of one level shares one column of values.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for (at, (level, label, value)) in self.lines.iter().enumerate() {
            let indent = "  ".repeat(*level);
            let line = match value {
                None => format!("{indent}{label}"),
                Some(value) => {
                    let width = self.width(at, *level);
                    let continued = format!("\n{indent}{:width$}  ", "");
                    let value = value.trim_end().replace('\n', &continued);
                    format!("{indent}{label:width$}  {value}")
                }
            };
            out += line.trim_end();
            out.push('\n');
        }
        out
    }

    /// The width of the widest label in the run around `at`.
    fn width(&self, at: usize, level: usize) -> usize {
        let same = |line: &&(usize, String, Option<String>)| line.0 == level && line.2.is_some();
        let before = self.lines[..at].iter().rev().take_while(same);
        let after = self.lines[at..].iter().take_while(same);
        before.chain(after).map(|(_, label, _)| label.chars().count()).max().unwrap_or_default()
    }
}

/// A single value as people write it.
pub(super) fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// `persistentVolumeReclaimPolicy` as `Persistent Volume Reclaim Policy`; keys with dots or slashes stay as they are.
fn title(key: &str) -> String {
    if key.contains(['.', '/', '-', '_']) {
        return key.to_owned();
    }
    let mut out = String::new();
    let mut last_was_small = false;
    for (at, letter) in key.chars().enumerate() {
        if letter.is_ascii_uppercase() && last_was_small {
            out.push(' ');
        }
        last_was_small = !letter.is_ascii_uppercase();
        match at {
            0 => out.extend(letter.to_uppercase()),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn titles() {
        for (key, words) in [
            ("driver", "Driver"),
            ("persistentVolumeName", "Persistent Volume Name"),
            ("nodeID", "Node ID"),
            ("fsType", "Fs Type"),
            ("csi.storage.k8s.io/fstype", "csi.storage.k8s.io/fstype"),
        ] {
            assert_eq!(title(key), words);
        }
    }

    #[test]
    fn trees_are_readable() {
        let mut lines = Lines::default();
        lines.field(0, "Name", "va");
        lines.field(0, "Status", "");
        let spec = json!({"attacher": "x", "nodeName": "n", "list": ["a", "b"], "drivers": [{"name": "d"}, {"name": "e"}]});
        lines.tree(0, "Spec", &spec);
        assert_eq!(
            lines.text(),
            "Name:    va\nStatus:\nSpec:\n  Attacher:  x\n  Drivers:\n    Name:  d\n\n    Name:  e\n  List:       a\n              b\n  Node Name:  n\n"
        );
    }

    #[test]
    fn keys_that_people_chose_stay() {
        let mut lines = Lines::default();
        lines.tree(0, "CSI", &json!({"volumeAttributes": {"aKey": "b"}}));
        assert_eq!(lines.text(), "CSI:\n  Volume Attributes:\n    aKey:  b\n");
    }

    #[test]
    fn events_say_how_often() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let event = json!({
            "type": "Warning", "reason": "ProvisioningFailed", "message": "no\n", "count": 3,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:09:50Z",
            "source": {"component": "provisioner"},
        });
        let row = ["  Warning", "ProvisioningFailed", "10s (x3 over 10m)", "provisioner", "no"];
        assert_eq!(event_row(&event, now), row);
    }
}
