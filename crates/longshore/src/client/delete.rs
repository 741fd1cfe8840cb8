//! `longshore delete`.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::change::DryRun;
use super::discovery::{array, text};
use super::select::{Item, Selection};
use super::session::{Ask, JSON, Session};
use super::wait::{Condition, until};
use super::{ClientError, Failures, Screen};

/// Delete objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delete {
    pub selection: Selection,
    /// Whether to return only when they are gone.
    pub wait: bool,
    /// Longest wait.
    pub timeout: Option<Duration>,
    /// Seconds for pods to end.
    pub grace_period: Option<u32>,
    /// Whether pods are forgotten before they have ended.
    pub force: bool,
    /// Whether a missing object is fine.
    pub ignore_not_found: bool,
    /// What happens to objects that these own.
    pub cascade: Cascade,
    pub dry_run: DryRun,
    /// Whether only `kind/name` is printed.
    pub only_names: bool,
}

/// What happens to the objects that an object owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cascade {
    #[default]
    Background,
    Foreground,
    Orphan,
}

impl Cascade {
    fn policy(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

const FORCED: &str = "Warning: Immediate deletion does not wait for confirmation that the running resource has been \
                      terminated. The resource may continue to run on the cluster indefinitely.";

/// Deletes objects and, if asked to, waits until they are gone.
pub(super) async fn delete(
    session: &Session,
    request: Delete,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    if request.force {
        writeln!(screen.err, "{FORCED}")?;
    }
    let items = request.selection.items(session).await?;
    let listed = items.iter().any(|item| item.listed.is_some());
    let named = request.selection.words.iter().any(|word| word.name.is_some());
    if items.is_empty() && !named {
        writeln!(screen.out, "No resources found")?;
    }
    let mut failures = Failures::default();
    let mut going = Vec::new();
    for item in items {
        match delete_one(session, &item, &request).await {
            Ok(uid) => {
                say(screen, &item, &request)?;
                going.push((item, uid));
            }
            Err(error) if error.is_not_found() && (request.ignore_not_found || listed) => {}
            Err(error) => failures.note(screen, error)?,
        }
    }
    screen.out.flush()?;
    if request.wait && request.dry_run == DryRun::None {
        wait_until_gone(session, &going, request.timeout).await?;
    }
    failures.end()
}

fn say(screen: &mut Screen<'_>, item: &Item<'_>, request: &Delete) -> Result<(), ClientError> {
    if request.only_names {
        return Ok(writeln!(screen.out, "{}", item.shown())?);
    }
    let deleted = if request.force { "force deleted" } else { "deleted" };
    let (kind, remark) = (item.resource.display(), request.dry_run.remark());
    Ok(writeln!(screen.out, "{kind} \"{}\" {deleted}{remark}", item.name)?)
}

/// Deletes one object and returns the UID it had.
async fn delete_one(
    session: &Session,
    item: &Item<'_>,
    request: &Delete,
) -> Result<String, ClientError> {
    let object = item.object();
    if request.dry_run == DryRun::Client {
        return Ok(text(&item.live(session).await?["metadata"]["uid"]));
    }
    let mut options = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": request.cascade.policy(),
    });
    // As kubectl does: nothing is forgotten at once unless that is forced.
    let grace_period = match (request.grace_period, request.force) {
        (None, true) => Some(0),
        (Some(0), false) => Some(1),
        (seconds, _) => seconds,
    };
    if let Some(seconds) = grace_period {
        options["gracePeriodSeconds"] = json!(seconds);
    }
    if request.dry_run == DryRun::Server {
        options["dryRun"] = json!(["All"]);
    }
    let ask = Ask {
        verb: "delete",
        object: &object,
        method: Method::DELETE,
        path: item.path(),
        accept: JSON,
        body: Some((JSON, options)),
    };
    let answer = session.json(ask).await?;
    let own = text(&answer["metadata"]["uid"]);
    Ok(if own.is_empty() { text(&answer["details"]["uid"]) } else { own })
}

async fn wait_until_gone(
    session: &Session,
    going: &[(Item<'_>, String)],
    limit: Option<Duration>,
) -> Result<(), ClientError> {
    let until_gone = async {
        for (item, uid) in going {
            until(session, item, &Condition::Delete, uid).await?;
        }
        Ok::<(), ClientError>(())
    };
    match limit {
        None => until_gone.await,
        Some(limit) => match tokio::time::timeout(limit, until_gone).await {
            Ok(outcome) => outcome,
            Err(_) => Err(still_there(session, going, limit).await),
        },
    }
}

/// Says who holds the first object that did not go.
async fn still_there(
    session: &Session,
    going: &[(Item<'_>, String)],
    limit: Duration,
) -> ClientError {
    for (item, _) in going {
        let Ok(live) = item.live(session).await else { continue };
        let finalizers: Vec<String> =
            array(&live["metadata"]["finalizers"]).iter().map(text).collect();
        let holders = match finalizers.is_empty() {
            true => "whatever runs in it".to_owned(),
            false => finalizers.join(", "),
        };
        return ClientError::StillThere { object: item.object(), limit, holders };
    }
    ClientError::Unsupported("the objects went away just after the wait ended".into())
}
