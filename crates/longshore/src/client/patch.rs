//! `longshore patch`.

use serde_json::Value;

use super::change::{self, DryRun, Manner};
use super::select::{Item, Selection};
use super::session::Session;
use super::show::without_managers;
use super::{ClientError, Failures, Screen};

const MANAGER: &str = "longshore-patch";

/// Change fields of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patch {
    pub selection: Selection,
    pub kind: PatchKind,
    pub patch: Value,
    /// `status`, `scale`, …; none is the object itself.
    pub subresource: Option<String>,
    pub manner: Manner,
}

/// How a patch is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    #[default]
    Strategic,
}

impl PatchKind {
    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// Patches objects one after the other.
pub(super) async fn patch(
    session: &Session,
    request: Patch,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    if request.manner.dry_run == DryRun::Client {
        let why = "what a patch does is for the server to say; use --dry-run=server";
        return Err(ClientError::Unsupported(why.into()));
    }
    let mut failures = Failures::default();
    for item in request.selection.items(session).await? {
        if let Err(error) = patch_one(session, &item, &request, screen).await {
            failures.note(screen, error)?;
        }
    }
    failures.end()
}

async fn patch_one(
    session: &Session,
    item: &Item<'_>,
    request: &Patch,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let before = item.live(session).await?;
    let mut path = item.path();
    if let Some(subresource) = &request.subresource {
        path += &format!("/{subresource}");
    }
    path += &request.manner.query(MANAGER);
    let body = (request.kind.content_type(), request.patch.clone());
    let patched = change::patch(session, &item.object(), path, body).await.map_err(|error| {
        match error.is_unsupported_media_type() {
            true => error.with_advice("use --type=merge for kinds that come from definitions"),
            false => error,
        }
    })?;
    let same = without_managers(&before) == without_managers(&patched);
    let verdict = if same { "patched (no change)" } else { "patched" };
    request.manner.show(screen, (item.resource, patched), (&item.shown(), verdict))
}
