//! Why a request to the API failed, with the verb and the object in every message.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use longshore_core::words;
use serde::Deserialize;

/// The verb and the object of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The API verb: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// The object (or collection), for example `PersistentVolumeClaim default/data`.
    pub object: String,
}

impl Target {
    pub(crate) fn new(verb: &'static str, object: impl Into<String>) -> Self {
        Self { verb, object: object.into() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.object)
    }
}

/// A failed request to the API. Every variant names verb and object through [`Target`].
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// 404: no such object (or no such kind).
    #[error("{at}: not found: {message}")]
    NotFound { at: Target, message: String },
    /// 409 `AlreadyExists`: a create met an object of that name.
    #[error("{at}: already exists: {message}")]
    AlreadyExists { at: Target, message: String },
    /// 409: the resourceVersion or a precondition no longer holds.
    #[error("{at}: conflict: {message}")]
    Conflict { at: Target, message: String },
    /// 410: the resourceVersion or continue token is too old.
    #[error("{at}: gone: {message}")]
    Gone { at: Target, message: String },
    /// 400 or 422: the server refuses the content; the same request can never succeed.
    #[error("{at}: invalid: {message}")]
    Invalid { at: Target, message: String },
    /// 401 or 403: the identity may not do this.
    #[error("{at}: forbidden: {message}")]
    Forbidden { at: Target, message: String },
    /// 429: the server asked for fewer requests, and kept asking.
    #[error("{at}: too many requests{}", after(.retry_after))]
    TooManyRequests { at: Target, retry_after: Option<Duration> },
    /// No response came: a write may or may not have happened.
    #[error("{at}: no answer from the API server: {}", words::causes(&**source))]
    Unreachable { at: Target, source: Box<dyn std::error::Error + Send + Sync> },
    /// The response was not the JSON that was expected.
    #[error("{at}: unreadable answer: {source}")]
    Decode { at: Target, source: serde_json::Error },
    /// Any other status.
    #[error("{at}: HTTP status {code}: {message}")]
    Other { at: Target, code: u16, message: String },
}

fn after(retry_after: &Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |d| format!("; retry after {}s", d.as_secs()))
}

impl ApiError {
    /// The verb and object of the failed request.
    #[must_use]
    pub fn at(&self) -> &Target {
        match self {
            Self::NotFound { at, .. }
            | Self::AlreadyExists { at, .. }
            | Self::Conflict { at, .. }
            | Self::Gone { at, .. }
            | Self::Invalid { at, .. }
            | Self::Forbidden { at, .. }
            | Self::TooManyRequests { at, .. }
            | Self::Unreachable { at, .. }
            | Self::Decode { at, .. }
            | Self::Other { at, .. } => at,
        }
    }

    /// The server's own words, where it gave some.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::NotFound { message, .. }
            | Self::AlreadyExists { message, .. }
            | Self::Conflict { message, .. }
            | Self::Gone { message, .. }
            | Self::Invalid { message, .. }
            | Self::Forbidden { message, .. }
            | Self::Other { message, .. } => Some(message),
            Self::TooManyRequests { .. } | Self::Unreachable { .. } | Self::Decode { .. } => None,
        }
    }

    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::AlreadyExists { .. })
    }

    /// True for 409 other than `AlreadyExists`.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// True if the request may have taken effect although it failed: no verdict was received.
    #[must_use]
    pub fn is_without_verdict(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Decode { .. } => true,
            Self::Other { code, .. } => *code >= 500,
            _ => false,
        }
    }

    /// Classifies an HTTP failure. `body` is the response's body, normally a `Status`.
    pub(crate) fn from_response(
        at: Target,
        code: StatusCode,
        retry_after: Option<Duration>,
        body: &[u8],
    ) -> Self {
        let status = Status::parse(body);
        let message = if status.message.is_empty() {
            code.canonical_reason().unwrap_or("no message").to_owned()
        } else {
            status.message
        };
        Self::classify(at, code.as_u16(), &status.reason, message, retry_after)
    }

    /// Classifies a `Status` that came inside a watch.
    pub(crate) fn from_status(at: Target, status: Status) -> Self {
        Self::classify(at, status.code, &status.reason, status.message, None)
    }

    fn classify(
        at: Target,
        code: u16,
        reason: &str,
        message: String,
        retry_after: Option<Duration>,
    ) -> Self {
        match code {
            404 => Self::NotFound { at, message },
            409 if reason == "AlreadyExists" => Self::AlreadyExists { at, message },
            409 => Self::Conflict { at, message },
            410 => Self::Gone { at, message },
            400 | 422 => Self::Invalid { at, message },
            401 => Self::Forbidden {
                at,
                message: format!("the credentials are not accepted: {message}"),
            },
            403 => Self::Forbidden {
                at,
                message: format!("{message}; grant this identity the verb through RBAC"),
            },
            429 => Self::TooManyRequests { at, retry_after },
            code => Self::Other { at, code, message },
        }
    }
}

/// Reads the result of a request to an object that may be gone.
pub trait OptionalExt<T> {
    /// `None` instead of the error when the object does not exist.
    ///
    /// # Errors
    /// All but [`ApiError::NotFound`].
    fn optional(self) -> Result<Option<T>, ApiError>;
}

impl<T> OptionalExt<T> for Result<T, ApiError> {
    fn optional(self) -> Result<Option<T>, ApiError> {
        match self {
            Ok(found) => Ok(Some(found)),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The part of `metav1.Status` that classification needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Status {
    /// Reads a `Status`; a body that is none (a proxy's page) becomes the message, cut short.
    fn parse(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_else(|_| Self {
            message: String::from_utf8_lossy(body).trim().chars().take(200).collect(),
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(code: u16, body: &str) -> ApiError {
        let at = Target::new("update", "PersistentVolumeClaim default/data");
        let code = StatusCode::from_u16(code).expect("a status");
        ApiError::from_response(at, code, None, body.as_bytes())
    }

    #[test]
    fn statuses_become_variants_that_name_verb_and_object() {
        let cases: &[(u16, &str, &str)] = &[
            (404, r#"{"message":"m"}"#, "not found: m"),
            (409, r#"{"reason":"AlreadyExists","message":"m"}"#, "already exists: m"),
            (409, r#"{"reason":"Conflict","message":"m"}"#, "conflict: m"),
            (410, r#"{"reason":"Expired","message":"m"}"#, "gone: m"),
            (422, r#"{"reason":"Invalid","message":"m"}"#, "invalid: m"),
            (400, "", "invalid: Bad Request"),
            (403, r#"{"message":"m"}"#, "forbidden: m; grant this identity the verb through RBAC"),
            (429, "", "too many requests"),
            (502, "<html>bad gateway</html>", "HTTP status 502: <html>bad gateway</html>"),
        ];
        for (code, body, want) in cases {
            let got = classify(*code, body).to_string();
            assert_eq!(got, format!("update PersistentVolumeClaim default/data: {want}"));
        }
    }

    #[test]
    fn no_answer_says_why() {
        #[derive(Debug, thiserror::Error)]
        #[error("client error (Connect)")]
        struct Connect(#[source] std::io::Error);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let at = Target::new("list", "nodes");
        let error = ApiError::Unreachable { at, source: Box::new(Connect(refused)) };
        let want =
            "list nodes: no answer from the API server: client error (Connect): connection refused";
        assert_eq!(error.to_string(), want);
        assert_eq!(words::causes(&error), want, "each cause once");
    }

    #[test]
    fn only_requests_without_verdict_may_have_taken_effect() {
        assert!(classify(500, "").is_without_verdict());
        assert!(classify(504, "").is_without_verdict());
        assert!(!classify(409, "").is_without_verdict());
        assert!(!classify(429, "").is_without_verdict());
    }
}
