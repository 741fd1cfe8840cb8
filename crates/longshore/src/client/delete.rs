//! `longshore delete`.

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};

use super::discovery::{Resource, array, text};
use super::session::{Ask, JSON, Session, encode};
use super::{ClientError, Delete, Failures, Screen, Target, apply, manifest};

/// One object that shall go.
struct Doomed<'a> {
    resource: &'a Resource,
    namespace: String,
    name: String,
}

impl Doomed<'_> {
    fn object(&self) -> String {
        format!("{} {}", self.resource.display(), self.name)
    }

    fn path(&self) -> String {
        self.resource.object(&self.namespace, &self.name)
    }
}

/// Deletes objects and, if asked to, waits until they are gone.
pub(super) async fn delete(
    session: &Session,
    request: Delete,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut failures = Failures::default();
    let mut going = Vec::new();
    for doomed in targets(session, &request).await? {
        match delete_one(session, &doomed, request.grace_period).await {
            Ok(uid) => {
                writeln!(screen.out, "{} \"{}\" deleted", doomed.resource.display(), doomed.name)?;
                going.push((doomed, uid));
            }
            Err(error) if error.is_not_found() && request.ignore_not_found => {}
            Err(error) => failures.note(screen, error)?,
        }
    }
    screen.out.flush()?;
    if request.wait {
        let until_gone = async {
            for (doomed, uid) in &going {
                gone(session, doomed, uid).await?;
            }
            Ok::<(), ClientError>(())
        };
        match request.timeout {
            None => until_gone.await?,
            Some(limit) => match tokio::time::timeout(limit, until_gone).await {
                Ok(outcome) => outcome?,
                Err(_) => return Err(still_there(session, &going, limit).await),
            },
        }
    }
    failures.end()
}

async fn targets<'a>(
    session: &'a Session,
    request: &Delete,
) -> Result<Vec<Doomed<'a>>, ClientError> {
    let mut doomed = Vec::new();
    match &request.target {
        Target::Named { kinds, names } => {
            let namespace = request.namespace.as_deref().unwrap_or_else(|| session.namespace());
            for kind in kinds {
                let resource = session.resource(kind).await?;
                doomed.extend(names.iter().map(|name| Doomed {
                    resource,
                    namespace: namespace.to_owned(),
                    name: name.clone(),
                }));
            }
        }
        Target::Files(files) => {
            for manifest in manifest::read_all(files)? {
                let discovery = session.discovery().await?;
                let resource = discovery.of_manifest(&manifest.api_version, &manifest.kind)?;
                let namespace =
                    apply::place(session, resource, &manifest, request.namespace.as_deref())?;
                doomed.push(Doomed { resource, namespace, name: manifest.name });
            }
        }
    }
    Ok(doomed)
}

/// Deletes one object and returns the UID it had.
async fn delete_one(
    session: &Session,
    doomed: &Doomed<'_>,
    grace_period: Option<u32>,
) -> Result<String, ClientError> {
    let mut options =
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
    if let Some(seconds) = grace_period {
        options["gracePeriodSeconds"] = json!(seconds);
    }
    let object = doomed.object();
    let ask = Ask {
        verb: "delete",
        object: &object,
        method: Method::DELETE,
        path: doomed.path(),
        accept: JSON,
        body: Some((JSON, options)),
    };
    let answer = session.json(ask).await?;
    let own = text(&answer["metadata"]["uid"]);
    Ok(if own.is_empty() { text(&answer["details"]["uid"]) } else { own })
}

/// Returns when the object is gone or another took its name.
async fn gone(session: &Session, doomed: &Doomed<'_>, uid: &str) -> Result<(), ClientError> {
    let object = doomed.object();
    loop {
        let live = match session.json(Ask::get(&object, doomed.path())).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        if !uid.is_empty() && live["metadata"]["uid"] != uid {
            return Ok(());
        }
        let path = format!(
            "{}?watch=true&fieldSelector={}&resourceVersion={}",
            doomed.resource.collection(Some(&doomed.namespace)),
            encode(&format!("metadata.name={}", doomed.name)),
            encode(&text(&live["metadata"]["resourceVersion"])),
        );
        let ask = Ask { verb: "watch", ..Ask::get(&object, path) };
        let mut lines = session.stream(ask).await?.lines();
        // However the stream ends, the next look at the object tells the truth.
        while let Ok(Some(line)) = lines.try_next().await {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            match event["type"].as_str() {
                Some("DELETED") => return Ok(()),
                Some("ADDED" | "MODIFIED") => {}
                _ => break,
            }
        }
    }
}

/// Says who holds the first object that did not go.
async fn still_there(
    session: &Session,
    going: &[(Doomed<'_>, String)],
    limit: std::time::Duration,
) -> ClientError {
    for (doomed, _) in going {
        let object = doomed.object();
        let Ok(live) = session.json(Ask::get(&object, doomed.path())).await else { continue };
        let finalizers: Vec<String> =
            array(&live["metadata"]["finalizers"]).iter().map(text).collect();
        let holders = match finalizers.is_empty() {
            true => "whatever runs in it".to_owned(),
            false => finalizers.join(", "),
        };
        return ClientError::StillThere { object, limit, holders };
    }
    ClientError::Unsupported("the objects went away just after the wait ended".into())
}
