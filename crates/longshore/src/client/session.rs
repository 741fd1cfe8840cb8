//! One server, asked with raw requests.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use futures::AsyncBufRead;
use http::{Method, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::discovery::{Discovery, Resource};
use super::{Access, ClientError};

/// Where a running instance keeps its client configuration.
const INSTANCE: &str = "/var/lib/longshore/kubeconfig";

/// What is asked from the server.
pub(super) struct Ask<'a> {
    pub(super) verb: &'static str,
    /// For error messages: `pod web`.
    pub(super) object: &'a str,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) accept: &'static str,
    /// Content type and body.
    pub(super) body: Option<(&'static str, Value)>,
}

impl<'a> Ask<'a> {
    pub(super) fn get(object: &'a str, path: String) -> Self {
        Self { verb: "get", object, method: Method::GET, path, accept: JSON, body: None }
    }

    fn request(&self) -> Result<Request<Vec<u8>>, ClientError> {
        let mut builder = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(http::header::ACCEPT, self.accept);
        let mut bytes = Vec::new();
        if let Some((kind, value)) = &self.body {
            builder = builder.header(http::header::CONTENT_TYPE, *kind);
            bytes = value.to_string().into_bytes();
        }
        builder.body(bytes).map_err(|error| self.refused(0, error.to_string()))
    }

    fn refused(&self, code: u16, message: String) -> ClientError {
        ClientError::Refused { verb: self.verb, object: self.object.to_owned(), code, message }
    }
}

pub(super) const JSON: &str = "application/json";
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// A server and what is known about it.
pub(crate) struct Session {
    client: kube::Client,
    url: String,
    discovery: OnceCell<Discovery>,
}

impl Session {
    /// A session over a client that exists already.
    #[must_use]
    pub(crate) fn new(client: kube::Client) -> Self {
        Self { client, url: "the given address".into(), discovery: OnceCell::new() }
    }

    /// A session with the server that the client configuration names.
    ///
    /// # Errors
    /// When there is no usable client configuration.
    pub(crate) async fn connect(access: &Access) -> Result<Self, ClientError> {
        let (mut config, from) = match pod_account(access.kubeconfig.as_deref()) {
            Some(config) => (config, "the service account of the pod".to_owned()),
            None => from_file(access.kubeconfig.as_deref()).await?,
        };
        let wrong = |why: String| ClientError::Kubeconfig { from: from.clone(), why };
        // A watch may be silent for long; the server ends it in time.
        config.read_timeout = None;
        // People ask again themselves; kube would do so for a quarter of an hour, silently.
        config.default_retry = false;
        let url = config.cluster_url.to_string();
        let client = kube::Client::try_from(config).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { url, ..Self::new(client) })
    }

    /// Where the server is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The client, for what is no exchange of JSON.
    pub(crate) fn client(&self) -> &kube::Client {
        &self.client
    }

    /// The namespace of the kubeconfig's context.
    pub(crate) fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// The kinds of the server, asked for once.
    pub(super) async fn discovery(&self) -> Result<&Discovery, ClientError> {
        self.discovery.get_or_try_init(|| Discovery::ask(self)).await
    }

    /// The kind that a person calls `word`.
    pub(super) async fn resource(&self, word: &str) -> Result<&Resource, ClientError> {
        self.discovery().await?.named(word)
    }

    /// Asks and reads the answer as JSON.
    pub(super) async fn json(&self, ask: Ask<'_>) -> Result<Value, ClientError> {
        let request = ask.request()?;
        self.client.request(request).await.map_err(|error| self.explain(&ask, error))
    }

    /// Asks and hands out the answer as it arrives.
    pub(super) async fn stream(
        &self,
        ask: Ask<'_>,
    ) -> Result<Pin<Box<dyn AsyncBufRead + Send>>, ClientError> {
        let request = ask.request()?;
        let stream =
            self.client.request_stream(request).await.map_err(|error| self.explain(&ask, error))?;
        Ok(Box::pin(stream))
    }

    fn explain(&self, ask: &Ask<'_>, error: kube::Error) -> ClientError {
        match error {
            kube::Error::Api(status) => {
                let message = match status.message.is_empty() {
                    true => status.reason.clone(),
                    false => status.message.clone(),
                };
                ask.refused(status.code, message)
            }
            kube::Error::SerdeError(error) => ask.refused(0, format!("unreadable answer: {error}")),
            error => self.unreachable(&error),
        }
    }

    /// The server did not answer.
    pub(super) fn unreachable(&self, error: &kube::Error) -> ClientError {
        ClientError::Unreachable { url: self.url.clone(), why: innermost(error) }
    }
}

/// The last cause of a chain: `connection refused` rather than the layers around it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Inside a pod, its service account, as kubectl does: where nothing names a kubeconfig and no instance runs.
fn pod_account(path: Option<&Path>) -> Option<kube::Config> {
    let named =
        path.is_some() || std::env::var_os("KUBECONFIG").is_some_and(|list| !list.is_empty());
    if named || Path::new(INSTANCE).exists() {
        return None;
    }
    kube::Config::incluster().ok()
}

/// The server and identity of a client configuration, and a word on where it came from.
async fn from_file(path: Option<&Path>) -> Result<(kube::Config, String), ClientError> {
    let (kubeconfig, from) = read_kubeconfig(path)?;
    let options = kube::config::KubeConfigOptions::default();
    match kube::Config::from_custom_kubeconfig(kubeconfig, &options).await {
        Ok(config) => Ok((config, from)),
        Err(error) => Err(ClientError::Kubeconfig { from, why: error.to_string() }),
    }
}

/// The client configuration and a word on where it came from.
fn read_kubeconfig(path: Option<&Path>) -> Result<(kube::config::Kubeconfig, String), ClientError> {
    let variable = std::env::var("KUBECONFIG").ok().filter(|text| !text.is_empty());
    let (paths, from) = match (path, variable) {
        (Some(path), _) => (vec![path.to_owned()], path.display().to_string()),
        (None, Some(list)) => {
            (std::env::split_paths(&list).collect(), format!("$KUBECONFIG ({list})"))
        }
        (None, None) => (vec![PathBuf::from(INSTANCE)], INSTANCE.to_owned()),
    };
    let wrong = |why: String| ClientError::Kubeconfig { from: from.clone(), why };
    // As kubectl does, files of a list that do not exist are passed over; one that may not be read is not.
    let missing = |path: &&PathBuf| {
        path.metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    let existing: Vec<_> = paths.iter().filter(|path| !missing(path)).collect();
    if existing.is_empty() {
        return Err(wrong(
            "there is no such file; start `longshore up` or give another with --kubeconfig".into(),
        ));
    }
    let mut merged = kube::config::Kubeconfig::default();
    for path in existing {
        std::fs::File::open(path).map_err(|error| wrong(unreadable(path, &error)))?;
        let next =
            kube::config::Kubeconfig::read_from(path).map_err(|error| wrong(innermost(&error)))?;
        merged = merged.merge(next).map_err(|error| wrong(error.to_string()))?;
    }
    Ok((merged, from))
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!(
            "permission denied; run as the owner of {}, or give this user a copy with --kubeconfig",
            path.display()
        ),
        _ => error.to_string(),
    }
}

/// What is encoded in a piece of a path or query: all but letters, digits and a few harmless marks.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A piece of a path or query, encoded.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}
