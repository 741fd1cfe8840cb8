//! `longshore apply` and `longshore create`.
//!
//! Without `--server-side`, `apply` compares three sides as kubectl does: what was applied last, which is an annotation
//! of the object, the manifest, and the live object. What it finds is sent as a JSON merge patch.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};

use super::change::{DryRun, Manner, patch};
use super::discovery::Resource;
use super::manifest::{self, Manifest};
use super::merge::three_way;
use super::session::{Ask, JSON, Session};
use super::show::{html_safe, sorted};
use super::{ClientError, Failures, Screen};

/// Where kubectl keeps what was applied last; sharing it lets people change tools at any time.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// In whose name fields are changed. With server-side apply it is kubectl's, so that both tools own the same fields.
const MANAGER: &str = "longshore-apply";
const SERVER_SIDE_MANAGER: &str = "kubectl";
const CREATE_MANAGER: &str = "longshore-create";

/// Create or change the objects of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Apply {
    pub source: Source,
    /// Whether the server merges.
    pub server_side: bool,
    /// Whether fields of other managers are taken over; only with `server_side`.
    pub force_conflicts: bool,
    pub manner: Manner,
}

/// Create the objects of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Create {
    pub source: Source,
    /// Whether a later `apply` shall know what was created.
    pub save_config: bool,
    pub manner: Manner,
}

/// Where objects come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Source {
    /// Files or directories; `-` is stdin.
    pub files: Vec<PathBuf>,
    /// Whether directories are read with all that is below them.
    pub recursive: bool,
    /// For objects that name none.
    pub namespace: Option<String>,
}

/// One object of a file and where it belongs.
struct Target<'a> {
    resource: &'a Resource,
    namespace: String,
    /// The manifest in the form that is recorded.
    wanted: Value,
    /// `pod/web`.
    shown: String,
}

impl<'a> Target<'a> {
    async fn of(
        session: &'a Session,
        manifest: &Manifest,
        source: &Source,
    ) -> Result<Self, ClientError> {
        let resource = manifest.resource(session).await?;
        let namespace = manifest.place(session, resource, source.namespace.as_deref())?;
        let wanted = prepared(manifest, resource.namespaced.then_some(namespace.as_str()));
        let name = manifest.name.as_deref().unwrap_or_default();
        let shown = format!("{}/{name}", resource.display());
        Ok(Self { resource, namespace, wanted, shown })
    }

    async fn create(
        &self,
        session: &Session,
        query: &str,
        object: Value,
    ) -> Result<Value, ClientError> {
        let path = self.resource.collection(Some(&self.namespace));
        let ask = Ask {
            verb: "create",
            object: &self.shown,
            method: Method::POST,
            path: format!("{path}{query}&fieldValidation=Strict"),
            accept: JSON,
            body: Some((JSON, object)),
        };
        session.json(ask).await
    }
}

/// Creates or changes the objects of the files.
pub(super) async fn apply(
    session: &Session,
    request: Apply,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let manifests = manifest::read_all(&request.source.files, request.source.recursive)?;
    let mut failures = Failures::default();
    for manifest in &manifests {
        if let Err(error) = apply_one(session, manifest, &request, screen).await {
            failures.note(screen, error)?;
        }
    }
    failures.end()
}

/// Applies one object and says what that meant.
async fn apply_one(
    session: &Session,
    manifest: &Manifest,
    request: &Apply,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let name = manifest.required_name()?;
    let target = Target::of(session, manifest, &request.source).await?;
    let path = target.resource.object(&target.namespace, name);
    let (object, verdict) = match request.server_side {
        true => {
            (server_side(session, &target, manifest, &path, request).await?, "serverside-applied")
        }
        false => client_side(session, &target, &path, &request.manner).await?,
    };
    let outcome = (target.resource, object);
    request.manner.show(screen, outcome, (&target.shown, verdict))
}

async fn server_side(
    session: &Session,
    target: &Target<'_>,
    manifest: &Manifest,
    path: &str,
    request: &Apply,
) -> Result<Value, ClientError> {
    let query = request.manner.query(SERVER_SIDE_MANAGER);
    let path = format!("{path}{query}&force={}&fieldValidation=Strict", request.force_conflicts);
    let mut object = manifest.object.clone();
    if target.resource.namespaced {
        object["metadata"]["namespace"] = json!(target.namespace);
    }
    // JSON is YAML, too.
    let body = ("application/apply-patch+yaml", object);
    patch(session, &target.shown, path, body).await.map_err(|error| match error.is_conflict() {
        true => error.with_advice("take the fields over with --force-conflicts, or leave them out"),
        false => error,
    })
}

async fn client_side(
    session: &Session,
    target: &Target<'_>,
    path: &str,
    manner: &Manner,
) -> Result<(Value, &'static str), ClientError> {
    let query = manner.query(MANAGER);
    let dry = manner.dry_run == DryRun::Client;
    let live = match find(session, &target.shown, path).await? {
        Some(live) => live,
        None if dry => return Ok((target.wanted.clone(), "created")),
        None => match target.create(session, &query, with_last_applied(&target.wanted)).await {
            Ok(object) => return Ok((object, "created")),
            // Another client created it meanwhile, so it is an update.
            Err(error) if error.is_conflict() => {
                find(session, &target.shown, path).await?.ok_or(error)?
            }
            Err(error) => return Err(error),
        },
    };
    if dry {
        return Ok((live, "configured"));
    }
    let merge = patch_for(&target.wanted, &live);
    if merge.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok((live, "unchanged"));
    }
    let path = format!("{path}{query}&fieldValidation=Strict");
    let changed =
        patch(session, &target.shown, path, ("application/merge-patch+json", merge)).await?;
    Ok((changed, "configured"))
}

/// Creates the objects of the files.
pub(super) async fn create(
    session: &Session,
    request: Create,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let manifests = manifest::read_all(&request.source.files, request.source.recursive)?;
    let mut failures = Failures::default();
    for manifest in &manifests {
        if let Err(error) = create_one(session, manifest, &request, screen).await {
            failures.note(screen, error)?;
        }
    }
    failures.end()
}

async fn create_one(
    session: &Session,
    manifest: &Manifest,
    request: &Create,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let target = Target::of(session, manifest, &request.source).await?;
    let mut object = match request.save_config {
        true => with_last_applied(&target.wanted),
        false => manifest.object.clone(),
    };
    if request.manner.dry_run != DryRun::Client {
        let query = request.manner.query(CREATE_MANAGER);
        object = target.create(session, &query, object).await?;
    }
    // The server chooses the name after a generateName.
    let name = super::discovery::text(&object["metadata"]["name"]);
    let shown = format!("{}/{name}", target.resource.display());
    request.manner.show(screen, (target.resource, object), (&shown, "created"))
}

async fn find(session: &Session, object: &str, path: &str) -> Result<Option<Value>, ClientError> {
    match session.json(Ask::get(object, path.to_owned())).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The manifest in the form that is recorded: with its namespace, annotations present, and without the record itself.
fn prepared(manifest: &Manifest, namespace: Option<&str>) -> Value {
    let mut object = manifest.object.clone();
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    let annotations = &mut object["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    sorted(&object)
}

/// The manifest with itself as annotation.
fn with_last_applied(prepared: &Value) -> Value {
    let mut object = prepared.clone();
    object["metadata"]["annotations"][LAST_APPLIED] = json!(html_safe(&format!("{prepared}\n")));
    object
}

/// What to send so that the live object becomes what the manifest says.
fn patch_for(prepared: &Value, live: &Value) -> Value {
    let last: Value = live["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    three_way(&last, &with_last_applied(prepared), live)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(labels: Value) -> Manifest {
        let object =
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "labels": labels}});
        manifest::parse("x".as_ref(), &object.to_string()).unwrap().remove(0)
    }

    #[test]
    fn the_record_is_kubectls() {
        let first = with_last_applied(&prepared(&manifest(json!({"x": "1"})), Some("demo")));
        assert_eq!(
            first["metadata"]["annotations"][LAST_APPLIED],
            "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"annotations\":{},\"labels\":{\"x\":\"1\"},\"name\":\"a\",\"namespace\":\"demo\"}}\n"
        );
    }

    #[test]
    fn the_same_again_changes_nothing_and_less_removes() {
        let first = prepared(&manifest(json!({"x": "1", "y": "2"})), Some("demo"));
        let mut live = with_last_applied(&first);
        live["metadata"]["uid"] = json!("u");
        live["metadata"]["labels"]["others"] = json!("kept");
        assert_eq!(patch_for(&first, &live), json!({}));
        let patch = patch_for(&prepared(&manifest(json!({"x": "1"})), Some("demo")), &live);
        assert_eq!(patch["metadata"]["labels"], json!({"y": null}));
        assert!(patch["metadata"]["annotations"][LAST_APPLIED].is_string());
    }
}
