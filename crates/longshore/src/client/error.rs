//! Why a client command failed.

use std::path::PathBuf;
use std::time::Duration;

use longshore_core::words;

/// Why a client command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// No client configuration can be used.
    #[error("cannot use the client configuration {from}: {why}")]
    Kubeconfig {
        /// Where it was looked for.
        from: String,
        why: String,
    },
    /// The server did not answer.
    #[error("cannot reach the API server at {url}: {why}; is `longshore up` running?")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// The innermost cause.
        why: String,
    },
    /// The server said no.
    #[error("cannot {verb} {object}: {message}")]
    Refused {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
        /// HTTP status code.
        code: u16,
        /// The server's words.
        message: String,
    },
    /// No such kind on this server.
    #[error("the server has no kind `{word}`{}", next(.why.as_deref(), .nearest.as_deref()))]
    UnknownKind {
        /// What was typed or written.
        word: String,
        /// Why a kind of Kubernetes is not there.
        why: Option<String>,
        /// The kind that looks most like it.
        nearest: Option<String>,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", .file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    /// A file that holds something else than objects.
    #[error("{}: {why}", .file.display())]
    Malformed {
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The wait ended before the objects did.
    #[error("{object} is still there after {}s; it is held by {holders}", .limit.as_secs())]
    StillThere {
        object: String,
        /// How long was waited.
        limit: Duration,
        /// Its finalizers.
        holders: String,
    },
    /// A stream from the server that broke or makes no sense.
    #[error("the stream of {object} ended: {why}")]
    Stream {
        /// Of what.
        object: String,
        why: String,
    },
    /// A template or path that does not fit the objects.
    #[error("`{template}` does not fit: {why}")]
    Template { template: String, why: String },
    /// The wait ended before the condition held.
    #[error("timed out waiting for {condition} on {object} after {}; {seen}", words::time(*.limit))]
    TimedOut {
        /// What was waited for, as it was typed.
        condition: String,
        /// `pod/web`.
        object: String,
        limit: Duration,
        /// What is known of the object, and what to do next.
        seen: String,
    },
    /// A command in a container ended with a code.
    #[error("command terminated with exit code {0}")]
    Exited(i32),
    /// Something the command cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// Nothing can be printed.
    #[error("cannot write the result: {0}")]
    Screen(#[from] std::io::Error),
}

impl ClientError {
    /// Whether the server said that the object does not exist.
    #[must_use]
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// The refusal with what would help.
    #[must_use]
    pub(crate) fn with_advice(self, advice: &str) -> Self {
        match self {
            Self::Refused { verb, object, code, message } => {
                Self::Refused { verb, object, code, message: format!("{message}; {advice}") }
            }
            other => other,
        }
    }

    /// Whether the server does not take this kind of body for the object.
    #[must_use]
    pub(crate) fn is_unsupported_media_type(&self) -> bool {
        matches!(self, Self::Refused { code: 415, .. })
    }

    /// Whether the server said that the object exists already.
    #[must_use]
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, .. })
    }
}

/// What helps whoever named a kind that is not there.
fn next(why: Option<&str>, nearest: Option<&str>) -> String {
    match (why, nearest) {
        (Some(why), _) => format!("; {why}"),
        (None, Some(name)) => format!("; did you mean {name}?"),
        (None, None) => String::new(),
    }
}
