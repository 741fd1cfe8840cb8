//! The client commands, for people without kubectl: `apply`, `get`, `wait` and their like.
//!
//! A [`Command`] says which server to ask and what for. [`perform`] carries a [`Request`] out over any `kube::Client`,
//! so the same code runs against a server on the network and against one in the same process.

mod apply;
mod change;
pub(crate) mod complete;
mod delete;
mod describe;
mod describe_known;
mod discovery;
mod edit;
mod error;
mod events;
mod exec;
mod get;
pub(crate) mod jsonpath;
mod logs;
mod manifest;
mod mark;
mod merge;
mod not_served;
mod patch;
mod select;
mod session;
mod show;
mod sort;
mod status;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use apply::{Apply, Create, Source};
pub(crate) use change::{DryRun, Manner};
pub(crate) use delete::{Cascade, Delete};
pub(crate) use describe::Describe;
pub(crate) use edit::Edit;
pub(crate) use error::ClientError;
pub(crate) use events::Events;
pub(crate) use get::{Follow, Get};
pub(crate) use mark::{Mark, Marks};
pub(crate) use patch::{Patch, PatchKind};
pub(crate) use select::{Selection, Word};
pub(crate) use session::Session;
pub(crate) use show::Output;
pub(crate) use status::Status;
pub(crate) use wait::{Condition, Wait};

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
    /// From `--kubeconfig`; none means `KUBECONFIG`, then the running instance's, then the account of the pod.
    pub kubeconfig: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Apply(Apply),
    Create(Create),
    Get(Get),
    Describe(Describe),
    Delete(Delete),
    Patch(Patch),
    Edit(Edit),
    /// `longshore label` and `longshore annotate`.
    Mark(Mark),
    Wait(Wait),
    Events(Events),
    Status(Status),
    Logs(Logs),
    /// `longshore exec` and `longshore attach`.
    Exec(Exec),
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The namespace of the kubeconfig's context.
    #[default]
    Current,
    /// This namespace.
    Namespace(String),
    /// All namespaces.
    All,
}

impl Scope {
    /// The namespace; none means all.
    fn namespace<'a>(&'a self, session: &'a Session) -> Option<&'a str> {
        match self {
            Self::Current => Some(session.namespace()),
            Self::Namespace(name) => Some(name),
            Self::All => None,
        }
    }
}

/// Makes each request a [`Request`].
macro_rules! requests {
    ($($name:ident),*) => {$(
        impl From<$name> for Request {
            fn from(request: $name) -> Self {
                Self::$name(request)
            }
        }
    )*};
}

requests!(
    Apply, Create, Get, Describe, Delete, Patch, Edit, Mark, Wait, Events, Status, Logs, Exec
);

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
        Request::Create(request) => apply::create(session, request, screen).await,
        Request::Get(request) => get::get(session, request, screen).await,
        Request::Describe(request) => describe::describe(session, request, screen).await,
        Request::Delete(request) => delete::delete(session, request, screen).await,
        Request::Patch(request) => patch::patch(session, request, screen).await,
        Request::Edit(request) => edit::edit(session, request, screen).await,
        Request::Mark(request) => mark::mark(session, request, screen).await,
        Request::Wait(request) => wait::wait(session, request, screen).await,
        Request::Events(request) => events::events(session, request, screen).await,
        Request::Status(request) => status::status(session, request, screen).await,
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
