//! `longshore label` and `longshore annotate`.

use serde_json::{Map, Value, json};

use super::change::{self, DryRun, Manner};
use super::discovery::text;
use super::select::{Item, Selection};
use super::session::Session;
use super::{ClientError, Failures, Screen};

/// Set or remove labels or annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub marks: Marks,
    pub selection: Selection,
    /// What to set; none means to remove it.
    pub changes: Vec<(String, Option<String>)>,
    pub overwrite: bool,
    /// Whether to show what is there.
    pub list: bool,
    pub manner: Manner,
}

/// What is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    Labels,
    Annotations,
}

impl Marks {
    fn field(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
        }
    }

    fn manager(self) -> &'static str {
        match self {
            Self::Labels => "longshore-label",
            Self::Annotations => "longshore-annotate",
        }
    }

    /// What happened to an object.
    fn verdict(self, before: &Value, changes: &[(String, Option<String>)]) -> &'static str {
        let changed = changes.iter().any(|(key, value)| match value {
            Some(value) => before[key] != **value,
            None => !before[key].is_null(),
        });
        let only_removes = changes.iter().all(|(_, value)| value.is_none());
        match self {
            Self::Annotations => "annotated",
            Self::Labels if !changed => "not labeled",
            Self::Labels if only_removes => "unlabeled",
            Self::Labels => "labeled",
        }
    }
}

/// Sets or removes labels or annotations of objects.
pub(super) async fn mark(
    session: &Session,
    request: Mark,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let items = request.selection.items(session).await?;
    if items.is_empty() {
        writeln!(screen.err, "No resources found")?;
    }
    let mut failures = Failures::default();
    for item in &items {
        if let Err(error) = mark_one(session, item, &request, items.len() > 1, screen).await {
            failures.note(screen, error)?;
        }
    }
    failures.end()
}

async fn mark_one(
    session: &Session,
    item: &Item<'_>,
    request: &Mark,
    several: bool,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let live = item.live(session).await?;
    let field = request.marks.field();
    let before = &live["metadata"][field];
    let patch = patch_for(item, before, request, screen)?;
    let verdict = request.marks.verdict(before, &request.changes);
    let changed = match request.manner.dry_run == DryRun::Client || patch.is_empty() {
        true => live.clone(),
        false => {
            let path = format!("{}{}", item.path(), request.manner.query(request.marks.manager()));
            let body = json!({"metadata": {field: patch}});
            let body = ("application/merge-patch+json", body);
            change::patch(session, &item.object(), path, body).await?
        }
    };
    if request.list {
        return show_all(item, &changed["metadata"][field], several, screen);
    }
    request.manner.show(screen, (item.resource, changed), (&item.shown(), verdict))
}

/// The part of a merge patch for the labels or annotations.
fn patch_for(
    item: &Item<'_>,
    before: &Value,
    request: &Mark,
    screen: &mut Screen<'_>,
) -> Result<Map<String, Value>, ClientError> {
    let field = request.marks.field();
    let mut patch = Map::new();
    for (key, value) in &request.changes {
        match (value, before[key].as_str()) {
            (Some(value), Some(old)) if old != value && !request.overwrite => {
                return Err(ClientError::Unsupported(format!(
                    "{} has {field} {key}={old} already; change it with --overwrite",
                    item.shown()
                )));
            }
            (None, None) if request.marks == Marks::Labels => {
                writeln!(screen.out, "label \"{key}\" not found.")?;
            }
            (value, _) => {
                patch.insert(key.clone(), json!(value));
            }
        }
    }
    Ok(patch)
}

fn show_all(
    item: &Item<'_>,
    marks: &Value,
    several: bool,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let indent = if several { " " } else { "" };
    if several {
        let (kind, name) = (&item.resource.kind, &item.name);
        writeln!(screen.out, "Listing labels for {kind}.{}/{name}:", item.resource.api_version())?;
    }
    for (key, value) in marks.as_object().into_iter().flatten() {
        writeln!(screen.out, "{indent}{key}={}", text(value))?;
    }
    Ok(())
}
