//! `longshore apply`.

use http::Method;
use serde_json::{Value, json};

use super::discovery::Resource;
use super::get::sorted;
use super::manifest::{self, Manifest};
use super::patch::three_way;
use super::session::{Ask, JSON, Session};
use super::{Apply, ClientError, Failures, Screen};

/// Where kubectl keeps what was applied last; sharing it lets people change tools at any time.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const OPTIONS: &str = "fieldManager=longshore-apply&fieldValidation=Strict";

/// Creates or changes the objects of the files.
pub(super) async fn apply(
    session: &Session,
    request: Apply,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let manifests = manifest::read_all(&request.files)?;
    let mut failures = Failures::default();
    for manifest in &manifests {
        match apply_one(session, manifest, request.namespace.as_deref()).await {
            Ok((name, verdict)) => writeln!(screen.out, "{name} {verdict}")?,
            Err(error) => failures.note(screen, error)?,
        }
    }
    failures.end()
}

/// Applies one object and says what that meant.
async fn apply_one(
    session: &Session,
    manifest: &Manifest,
    namespace: Option<&str>,
) -> Result<(String, &'static str), ClientError> {
    let resource = session.discovery().await?.of_manifest(&manifest.api_version, &manifest.kind)?;
    let namespace = place(session, resource, manifest, namespace)?;
    let wanted = prepared(manifest, resource.namespaced.then_some(namespace.as_str()));
    let shown = format!("{}/{}", resource.display(), manifest.name);
    let path = resource.object(&namespace, &manifest.name);
    let live = match find(session, &shown, &path).await? {
        Some(live) => live,
        None => {
            let created = create(session, resource, &namespace, &shown, &wanted).await;
            match created {
                Ok(()) => return Ok((shown, "created")),
                // Another client created it meanwhile, so it is an update.
                Err(error) if error.is_conflict() => {
                    find(session, &shown, &path).await?.ok_or(error)?
                }
                Err(error) => return Err(error),
            }
        }
    };
    let patch = patch_for(&wanted, &live);
    if patch.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok((shown, "unchanged"));
    }
    let ask = Ask {
        verb: "change",
        object: &shown,
        method: Method::PATCH,
        path: format!("{path}?{OPTIONS}"),
        accept: JSON,
        body: Some(("application/merge-patch+json", patch)),
    };
    session.json(ask).await?;
    Ok((shown, "configured"))
}

async fn create(
    session: &Session,
    resource: &Resource,
    namespace: &str,
    shown: &str,
    wanted: &Value,
) -> Result<(), ClientError> {
    let ask = Ask {
        verb: "create",
        object: shown,
        method: Method::POST,
        path: format!("{}?{OPTIONS}", resource.collection(Some(namespace))),
        accept: JSON,
        body: Some((JSON, with_last_applied(wanted))),
    };
    session.json(ask).await.map(drop)
}

async fn find(session: &Session, object: &str, path: &str) -> Result<Option<Value>, ClientError> {
    match session.json(Ask::get(object, path.to_owned())).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The namespace of a manifest: its own, which must agree with the flag, then the flag, then the context's.
pub(super) fn place(
    session: &Session,
    resource: &Resource,
    manifest: &Manifest,
    flag: Option<&str>,
) -> Result<String, ClientError> {
    match (&manifest.namespace, flag) {
        (Some(own), Some(flag)) if own != flag && resource.namespaced => {
            Err(ClientError::Unsupported(format!(
                "{}/{} is in namespace {own}, not in {flag}",
                resource.display(),
                manifest.name
            )))
        }
        (Some(own), _) => Ok(own.clone()),
        (None, Some(flag)) => Ok(flag.to_owned()),
        (None, None) => Ok(session.namespace().to_owned()),
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
    object["metadata"]["annotations"][LAST_APPLIED] = json!(format!("{prepared}\n"));
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
        Manifest {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: "a".into(),
            namespace: None,
            object,
        }
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
