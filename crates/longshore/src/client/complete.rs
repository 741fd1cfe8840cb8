//! Candidates for a shell: kinds, names and namespaces of the server.

use std::time::Duration;

use serde_json::Value;

use super::discovery::text;
use super::select::list;
use super::session::{JSON, Session};
use super::show::items_of;
use super::{Access, ClientError};

/// How long a person may have to wait for candidates.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What can stand where the cursor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    Kinds,
    Namespaces,
    /// Names of a kind, each after a prefix (`pod/`).
    Names {
        kind: String,
        prefix: String,
        namespace: Option<String>,
    },
}

/// The candidates; none when the server does not answer in time, whatever the reason.
pub(crate) async fn candidates(access: Access, wanted: Wanted) -> Vec<String> {
    let ask = async {
        let session = Session::connect(&access).await?;
        find(&session, wanted).await
    };
    match tokio::time::timeout(PATIENCE, ask).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

async fn find(session: &Session, wanted: Wanted) -> Result<Vec<String>, ClientError> {
    match wanted {
        Wanted::Kinds => Ok(session.discovery().await?.words()),
        Wanted::Namespaces => names(session, "namespaces", None, "").await,
        Wanted::Names { kind, prefix, namespace } => {
            names(session, &kind, namespace.as_deref(), &prefix).await
        }
    }
}

async fn names(
    session: &Session,
    kind: &str,
    namespace: Option<&str>,
    prefix: &str,
) -> Result<Vec<String>, ClientError> {
    let resource = session.resource(kind).await?;
    let namespace = namespace.unwrap_or_else(|| session.namespace());
    let all = list(session, resource, Some(namespace), "", JSON).await?;
    let objects = items_of(resource, &all);
    let name = |object: &Value| format!("{prefix}{}", text(&object["metadata"]["name"]));
    Ok(objects.iter().map(name).collect())
}
