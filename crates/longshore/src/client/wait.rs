//! `longshore wait`.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::discovery::{array, text};
use super::jsonpath::{Template, go_text};
use super::select::{Item, Selection, list, query};
use super::session::{JSON, Session};
use super::show::misfit;
use super::watch::{Watch, version_to_watch};
use super::{ClientError, Failures, Screen};

/// Wait until objects are as somebody wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    pub selection: Selection,
    pub condition: Condition,
    /// Longest wait for all objects together; zero looks once.
    pub timeout: Duration,
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    Create,
    Delete,
    /// A condition in the status with this value, whatever its letter case.
    Status {
        name: String,
        value: String,
    },
    /// A single value at a path; none means any.
    Path {
        path: Template,
        value: Option<String>,
    },
}

impl Condition {
    /// Reads what `--for` says.
    ///
    /// # Errors
    /// The end of the sentence "--for cannot be `x`: …".
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.to_lowercase().as_str() {
            "create" => return Ok(Self::Create),
            "delete" => return Ok(Self::Delete),
            _ => {}
        }
        if let Some(rest) = text.strip_prefix("condition=") {
            let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
            return Ok(Self::Status { name: name.to_owned(), value: value.to_owned() });
        }
        let Some(rest) = text.strip_prefix("jsonpath=") else {
            let forms = "condition=NAME[=VALUE], create, delete or jsonpath='{.PATH}'[=VALUE]";
            return Err(format!("it is {forms}"));
        };
        // A path in braces may have `=` in its filters.
        let end = rest.strip_prefix('{').and_then(|_| rest.rfind('}'));
        let (path, value) = match end {
            Some(end) => (&rest[..=end], rest[end + 1..].strip_prefix('=')),
            None => rest.split_once('=').map_or((rest, None), |(path, value)| (path, Some(value))),
        };
        if value == Some("") {
            return Err("a value is missing after the last `=`".into());
        }
        let path = Template::relaxed(path).map_err(|error| error.to_string())?;
        Ok(Self::Path { path, value: value.map(str::to_owned) })
    }

    /// Whether it holds for an object, or for one that is not there.
    fn holds(&self, object: Option<&Value>) -> Result<bool, ClientError> {
        let Some(object) = object else { return Ok(*self == Self::Delete) };
        match self {
            Self::Create => Ok(true),
            Self::Delete => Ok(false),
            Self::Status { name, value } => Ok(status(object, name)
                .is_some_and(|status| current(object, status) && is(&status["status"], value))),
            Self::Path { path, value } => {
                let found = path.find(object).map_err(|error| misfit(path, &error))?;
                let mut found = found.iter().flatten();
                match (found.next(), found.next(), value) {
                    (None, _, _) => Ok(false),
                    (Some(_), _, None) => Ok(true),
                    (Some(one), None, Some(value)) => Ok(go_text(one) == *value),
                    (Some(_), Some(_), Some(_)) => Err(ClientError::Template {
                        template: path.source().to_owned(),
                        why: "it matches more than one value; name one of them".into(),
                    }),
                }
            }
        }
    }

    /// What an error calls it.
    fn words(&self) -> String {
        match self {
            Self::Create => "its creation".into(),
            Self::Delete => "its deletion".into(),
            Self::Status { name, value } if value == "true" => format!("condition {name}"),
            Self::Status { name, value } => format!("condition {name}={value}"),
            Self::Path { path, value: None } => path.source().to_owned(),
            Self::Path { path, value: Some(value) } => format!("{}={value}", path.source()),
        }
    }
}

fn is(value: &Value, wanted: &str) -> bool {
    value.as_str().is_some_and(|value| value.eq_ignore_ascii_case(wanted))
}

fn status<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    array(&object["status"]["conditions"]).iter().find(|one| is(&one["type"], name))
}

/// Whether a condition speaks of the object as it is now, and not of an older generation.
fn current(object: &Value, status: &Value) -> bool {
    let observed = [&status["observedGeneration"], &object["status"]["observedGeneration"]];
    let observed = observed.into_iter().find_map(Value::as_i64);
    let generation = object["metadata"]["generation"].as_i64();
    observed.zip(generation).is_none_or(|(observed, generation)| observed >= generation)
}

/// Waits for all objects, and says of each that it is as wanted.
pub(super) async fn wait(
    session: &Session,
    request: Wait,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let deadline = Instant::now() + request.timeout;
    let items = request.selection.items(session).await?;
    if items.is_empty() && request.condition != Condition::Delete {
        let advice = "no object matches; see them with `longshore get`, or wait with --for=create";
        return Err(ClientError::Unsupported(advice.into()));
    }
    let mut failures = Failures::default();
    for item in items {
        match wait_for(session, &item, &request, deadline).await {
            Ok(true) => {
                writeln!(screen.out, "{} condition met", item.shown())?;
                screen.out.flush()?;
            }
            Ok(false) => {}
            Err(error) => failures.note(screen, error)?,
        }
    }
    failures.end()
}

/// Waits for one object. False means that there was nothing to wait for.
async fn wait_for(
    session: &Session,
    item: &Item<'_>,
    request: &Wait,
    deadline: Instant,
) -> Result<bool, ClientError> {
    let live = match item.live(session).await {
        Ok(live) => Some(live),
        Err(error) if error.is_not_found() => match request.condition {
            Condition::Create => None,
            Condition::Delete => return Ok(item.listed.is_some()),
            Condition::Status { .. } | Condition::Path { .. } => return Err(error),
        },
        Err(error) => return Err(error),
    };
    if request.condition.holds(live.as_ref())? {
        return Ok(true);
    }
    let uid = live.as_ref().map(|live| text(&live["metadata"]["uid"])).unwrap_or_default();
    match timeout_at(deadline, until(session, item, &request.condition, &uid)).await {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Err(ClientError::TimedOut {
            condition: request.condition.words(),
            object: item.shown(),
            limit: request.timeout,
            seen: seen(session, item, &request.condition).await,
        }),
    }
}

/// Returns when the condition holds. An object that another has replaced counts as deleted.
pub(super) async fn until(
    session: &Session,
    item: &Item<'_>,
    condition: &Condition,
    uid: &str,
) -> Result<(), ClientError> {
    let named = query(None, Some(&format!("metadata.name={}", item.name)));
    let replaced = |object: &Value| {
        *condition == Condition::Delete && !uid.is_empty() && object["metadata"]["uid"] != uid
    };
    loop {
        let found = list(session, item.resource, Some(&item.namespace), &named, JSON).await?;
        let object = array(&found["items"]).first();
        if condition.holds(object)? || object.is_some_and(replaced) {
            return Ok(());
        }
        let watch = Watch {
            session,
            resource: item.resource,
            namespace: Some(&item.namespace),
            query: named.clone(),
            accept: JSON,
        };
        let see = |event: Value| {
            let object = Some(&event["object"]).filter(|_| event["type"] != "DELETED");
            let done = condition.holds(object)? || object.is_some_and(replaced);
            Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        match watch.once(version_to_watch(&found), see).await {
            Ok((ControlFlow::Break(()), _)) => return Ok(()),
            // However the stream ends, the next list tells the truth.
            Ok((ControlFlow::Continue(()), _)) | Err(ClientError::Stream { .. }) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is known of an object whose condition did not come.
async fn seen(session: &Session, item: &Item<'_>, condition: &Condition) -> String {
    let Ok(live) = item.live(session).await else { return "it is not there".into() };
    let found = match condition {
        Condition::Status { name, .. } => match status(&live, name) {
            Some(status) => {
                let said = [&status["reason"], &status["message"]].map(text);
                let said: Vec<&str> =
                    said.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
                let because =
                    if said.is_empty() { String::new() } else { format!(" ({})", said.join(": ")) };
                format!("{name} is {}{because}", text(&status["status"]))
            }
            None => format!("it has no condition {name}"),
        },
        Condition::Path { path, .. } => match path.render(&live) {
            Ok(text) if !text.is_empty() => format!("it is `{text}`"),
            _ => "there is nothing at that path".into(),
        },
        Condition::Delete => {
            let finalizers: Vec<String> =
                array(&live["metadata"]["finalizers"]).iter().map(text).collect();
            match finalizers.is_empty() {
                true => "it is still there".into(),
                false => format!("it is held by {}", finalizers.join(", ")),
            }
        }
        Condition::Create => "it is there now".into(),
    };
    let namespace = match item.resource.namespaced && item.namespace != session.namespace() {
        true => format!(" -n {}", item.namespace),
        false => String::new(),
    };
    format!("{found}; see `longshore describe {}{namespace}`", item.shown())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_are_written_as_for_kubectl() {
        let holds = |text: &str, object: &Value| {
            Condition::parse(text).unwrap().holds(Some(object)).map_err(|error| error.to_string())
        };
        let object = json!({
            "metadata": {"generation": 2},
            "spec": {"list": [{"n": "a", "v": 1}, {"n": "b", "v": 2}]},
            "status": {"phase": "Bound", "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Old", "status": "True", "observedGeneration": 1},
                {"type": "No", "status": "False"},
            ]},
        });
        for (text, want) in [
            ("condition=Ready", true),
            ("condition=ready=TRUE", true),
            ("condition=Ready=false", false),
            ("condition=No=false", true),
            ("condition=Old", false),
            ("condition=Missing", false),
            ("create", true),
            ("delete", false),
            ("Delete", false),
            ("jsonpath={.status.phase}=Bound", true),
            ("jsonpath=.status.phase=Bound", true),
            ("jsonpath={.status.phase}=Pending", false),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.nothing}", false),
            ("jsonpath={.spec.list[?(@.n==\"b\")].v}=2", true),
        ] {
            assert_eq!(holds(text, &object), Ok(want), "{text}");
        }
        let several = holds("jsonpath={.spec.list[*].v}=1", &object).unwrap_err();
        assert!(several.contains("more than one value"), "{several}");
        for text in ["", "Ready", "jsonpath={.a}=", "jsonpath={.a}{.b}=1", "jsonpath="] {
            assert!(Condition::parse(text).is_err(), "{text}");
        }
    }
}
