//! `apply`, `get`, `describe`, `delete`, `logs`, `exec` and `attach`, for people without kubectl.
//!
//! A [`Command`] says which server to ask and what for. [`perform`] carries a [`Request`] out over any `kube::Client`,
//! so the same code runs against a server on the network and against one in the same process.

mod apply;
mod delete;
mod describe;
mod describe_known;
mod discovery;
mod error;
mod exec;
mod get;
mod logs;
mod manifest;
mod patch;
mod session;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use error::ClientError;
pub(crate) use session::Session;

use crate::process::ExitWith;

/// What one of the commands was asked to do, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub access: Access,
    /// What to do there.
    pub request: Request,
}

/// Which server to ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// From `--kubeconfig`; none means `KUBECONFIG`, then the running instance's.
    pub kubeconfig: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// `longshore apply`.
    Apply(Apply),
    /// `longshore get`.
    Get(Get),
    /// `longshore describe`.
    Describe(Describe),
    /// `longshore delete`.
    Delete(Delete),
    /// `longshore logs`.
    Logs(Logs),
    /// `longshore exec` and `longshore attach`.
    Exec(Exec),
}

/// Create or change the objects of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Apply {
    /// Files; `-` is stdin.
    pub files: Vec<PathBuf>,
    /// For objects that name none.
    pub namespace: Option<String>,
}

/// Show objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Get {
    /// Kinds as they were typed; at least one.
    pub kinds: Vec<String>,
    /// Names; empty means all.
    pub names: Vec<String>,
    /// Where to look.
    pub scope: Scope,
    /// How to show them.
    pub output: Output,
    /// Labels that objects must have.
    pub selector: Option<String>,
    /// Whether to go on with changes.
    pub watch: bool,
}

/// Show objects in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Describe {
    /// Kinds as they were typed; at least one.
    pub kinds: Vec<String>,
    /// Names; empty means all of the namespace.
    pub names: Vec<String>,
    /// Where to look.
    pub namespace: Option<String>,
}

/// Delete objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delete {
    /// Which ones.
    pub target: Target,
    /// Where to look.
    pub namespace: Option<String>,
    /// Whether to return only when they are gone.
    pub wait: bool,
    /// Longest wait.
    pub timeout: Option<Duration>,
    /// Seconds for pods to end.
    pub grace_period: Option<u32>,
    /// Whether a missing object is fine.
    pub ignore_not_found: bool,
}

/// What to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// By kind and name.
    Named {
        /// Kinds as they were typed.
        kinds: Vec<String>,
        /// Names; at least one.
        names: Vec<String>,
    },
    /// What these files describe.
    Files(Vec<PathBuf>),
}

/// Show what a container wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Logs {
    pub pod: String,
    /// Name of the container.
    pub container: Option<String>,
    /// Whether to go on with new lines.
    pub follow: bool,
    /// Whether to show the run before the current one.
    pub previous: bool,
    /// Whether to put the time before each line.
    pub timestamps: bool,
    /// Only so many of the last lines.
    pub tail: Option<u32>,
    /// Only lines that are not older.
    pub since: Option<Duration>,
    /// Only lines from this time on, as RFC 3339.
    pub since_time: Option<String>,
    pub limit_bytes: Option<u64>,
    /// Where to look.
    pub namespace: Option<String>,
}

/// Run a command in a container, or attach to the one that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exec {
    pub pod: String,
    /// Name of the container.
    pub container: Option<String>,
    /// The command; none means to attach.
    pub command: Option<Vec<String>>,
    /// Whether to send standard input.
    pub stdin: bool,
    pub tty: bool,
    /// Where to look.
    pub namespace: Option<String>,
}

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The namespace of the kubeconfig's context.
    Current,
    /// This namespace.
    Namespace(String),
    /// All namespaces.
    All,
}

/// How to show objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// A table, as the server makes it.
    #[default]
    #[value(skip)]
    Table,
    /// YAML.
    Yaml,
    /// JSON.
    Json,
    /// Only `kind/name`.
    Name,
    /// A table with all its columns.
    Wide,
}

impl From<Apply> for Request {
    fn from(request: Apply) -> Self {
        Self::Apply(request)
    }
}
impl From<Get> for Request {
    fn from(request: Get) -> Self {
        Self::Get(request)
    }
}
impl From<Describe> for Request {
    fn from(request: Describe) -> Self {
        Self::Describe(request)
    }
}
impl From<Delete> for Request {
    fn from(request: Delete) -> Self {
        Self::Delete(request)
    }
}
impl From<Exec> for Request {
    fn from(request: Exec) -> Self {
        Self::Exec(request)
    }
}
impl From<Logs> for Request {
    fn from(request: Logs) -> Self {
        Self::Logs(request)
    }
}

/// Where results and remarks go.
pub(crate) struct Screen<'a> {
    /// Results.
    pub out: &'a mut (dyn Write + Send),
    /// Remarks, such as that nothing was found.
    pub err: &'a mut (dyn Write + Send),
}

/// Carries a command out on the server it names, with stdout and stderr as the screen.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let session = Session::connect(&command.access).await?;
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let mut screen = Screen { out: &mut out, err: &mut err };
    match perform(&session, command.request, &mut screen).await {
        Err(ClientError::Exited(code)) => {
            out.flush()?;
            writeln!(err, "command terminated with exit code {code}")?;
            Err(ExitWith(u8::try_from(code).unwrap_or(1)).into())
        }
        done => {
            done?;
            Ok(out.flush()?)
        }
    }
}

/// Carries a request out in a session.
///
/// # Errors
/// When the server refuses, an object is missing, or the screen cannot be written.
pub(crate) async fn perform(
    session: &Session,
    request: Request,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    match request {
        Request::Apply(request) => apply::apply(session, request, screen).await,
        Request::Get(request) => get::get(session, request, screen).await,
        Request::Describe(request) => describe::describe(session, request, screen).await,
        Request::Delete(request) => delete::delete(session, request, screen).await,
        Request::Logs(request) => logs::logs(session, request, screen).await,
        Request::Exec(request) => exec::exec(session, request, screen).await,
    }
}

/// Goes on after a failure and reports all of them: each but the last as a line of its own.
#[derive(Default)]
struct Failures {
    last: Option<ClientError>,
}

impl Failures {
    fn note(&mut self, screen: &mut Screen<'_>, error: ClientError) -> Result<(), ClientError> {
        if let Some(earlier) = self.last.replace(error) {
            writeln!(screen.err, "longshore: {earlier}")?;
        }
        Ok(())
    }

    fn end(self) -> Result<(), ClientError> {
        self.last.map_or(Ok(()), Err)
    }
}
