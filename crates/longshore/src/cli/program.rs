//! What a program of the binary declares, and the row that the dispatcher sees of it.
//!
//! A program is a type that implements [`Program`]: everything that is known of it is there, and nothing else has to be
//! edited but the table of rows in [`crate::programs`]. An item that is forgotten does not compile, and neither does a
//! program without a row: nothing uses it then, and unused code is refused.

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::{Args as _, FromArgMatches as _};

use crate::flags::{self, Logging, UsageError};
use crate::process;

/// A program of the binary. The implementing type is its checked configuration.
pub(crate) trait Program: Sized + 'static {
    /// The word after `longshore`.
    const NAME: &'static str;
    /// Names of links under which the binary is this program: those of its official counterpart.
    const OFFICIAL: &'static [&'static str];
    /// One line of help.
    const SUMMARY: &'static str;
    /// Lines of help.
    const EXAMPLES: &'static str;
    /// How its flags are written.
    const SYNTAX: Syntax;
    /// Whether `--version` is printed only when all other flags are right, as csi-provisioner and csi-attacher do.
    /// Programs with required flags cannot ask for that.
    const CHECKS_BEFORE_VERSION: bool = false;
    /// Threads of its runtime.
    const THREADS: Threads;
    /// Files below `deploy` with the RBAC rules that it needs; none when it talks to no API server, or has a
    /// kubeconfig of the person who calls it.
    const RBAC: &'static [&'static str];

    /// What can be typed.
    type Flags: clap::Args;

    /// Checks the flags against each other.
    ///
    /// # Errors
    /// When they cannot be run.
    fn from_flags(flags: Self::Flags) -> Result<Self, UsageError>;

    /// How it logs. A program without a log is left with the file mode mask and the limits that it was started with.
    fn logging(&self) -> Option<&Logging>;

    /// Runs it to its end.
    fn run(self) -> impl Future<Output = anyhow::Result<()>>;
}

/// How a program's flags are written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Syntax {
    /// As Go's flag package reads them.
    Go {
        /// Flags that the official program once had, and what to write instead.
        removed: &'static [(&'static str, &'static str)],
    },
    /// As kubectl reads them.
    Kubectl,
    /// As Go's flag package reads them, for several programs at once: rewritten to one spelling of each flag.
    Merged(fn(&[String]) -> Result<flags::Normalized, UsageError>),
}

impl Syntax {
    /// Go's syntax, for a program that never lost a flag.
    pub(crate) const GO: Self = Self::Go { removed: &[] };
}

/// How many threads a program's runtime has. Sidecars mostly wait, and memory counts there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Threads {
    One,
    /// One that goes on while another is held up.
    Two,
    Many,
}

/// One line of the table of programs.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) official: &'static [&'static str],
    pub(crate) body: Body,
}

/// What stands behind a name.
pub(crate) enum Body {
    /// A program that users and manifests start.
    Program(Entry),
    /// A program that only this binary starts.
    Internal(fn(&[OsString]) -> Result<Action, UsageError>),
    /// A program that this version does not have yet.
    NotYet,
}

/// A [`Program`] without its types.
pub(crate) struct Entry {
    pub(crate) summary: &'static str,
    pub(crate) examples: &'static str,
    pub(crate) augment: fn(clap::Command) -> clap::Command,
    pub(crate) read: fn(Line<'_>) -> Result<Action, UsageError>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare it with the files of deploy"))]
    pub(crate) rbac: &'static [&'static str],
}

impl Row {
    /// The row of a program.
    pub(crate) const fn of<P: Program>() -> Self {
        let entry = Entry {
            summary: P::SUMMARY,
            examples: P::EXAMPLES,
            augment: <P::Flags as clap::Args>::augment_args,
            read: read::<P>,
            rbac: P::RBAC,
        };
        Self { name: P::NAME, official: P::OFFICIAL, body: Body::Program(entry) }
    }

    /// The row of a program that only this binary starts.
    pub(crate) const fn internal(
        name: &'static str,
        read: fn(&[OsString]) -> Result<Action, UsageError>,
    ) -> Self {
        Self { name, official: &[], body: Body::Internal(read) }
    }

    /// The row of a program that is to come.
    pub(crate) const fn not_yet(name: &'static str, official: &'static [&'static str]) -> Self {
        Self { name, official, body: Body::NotYet }
    }

    /// The program, if users can start it.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        match &self.body {
            Body::Program(entry) => Some(entry),
            Body::Internal(_) | Body::NotYet => None,
        }
    }
}

/// A command line for one program.
pub(crate) struct Line<'a> {
    /// The program as clap sees it.
    pub(crate) command: clap::Command,
    /// What follows its name.
    pub(crate) args: &'a [String],
    /// What `--version` prints.
    pub(crate) version: &'a str,
}

/// What a command line asks for.
#[derive(Debug)]
pub(crate) enum Action {
    /// Print this on stdout and be done.
    Print(String),
    /// Run a program.
    Run(Start),
}

/// A checked program that was not started yet.
pub(crate) struct Start {
    program: &'static str,
    start: Box<dyn FnOnce() -> anyhow::Result<ExitCode>>,
}

impl Start {
    /// A program that needs no runtime, or brings its own.
    pub(crate) fn new(
        program: &'static str,
        start: impl FnOnce() -> anyhow::Result<ExitCode> + 'static,
    ) -> Self {
        Self { program, start: Box::new(start) }
    }

    /// Runs it in this process.
    pub(crate) fn start(self) -> anyhow::Result<ExitCode> {
        (self.start)()
    }
}

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)
    }
}

/// Reads the arguments of one program.
fn read<P: Program>(line: Line<'_>) -> Result<Action, UsageError> {
    let Line { command, args, version } = line;
    let args = match P::SYNTAX {
        Syntax::Go { removed } => flags::normalize(&command, args, removed)?,
        Syntax::Kubectl => args.to_vec(),
        Syntax::Merged(merge) => merge(args)?,
    };
    let matches = match command.no_binary_name(true).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {
            return Ok(Action::Print(error.to_string()));
        }
        Err(error) => return Err(UsageError::from_clap(&error)),
    };
    // The commands of the client have no such flag.
    let asked = matches.try_get_one::<bool>("version").ok().flatten().copied();
    let version = asked.unwrap_or_default().then(|| Action::Print(format!("{version}\n")));
    let flags =
        P::Flags::from_arg_matches(&matches).map_err(|error| UsageError::from_clap(&error))?;
    match version {
        Some(print) if !P::CHECKS_BEFORE_VERSION => Ok(print),
        Some(print) => P::from_flags(flags).map(|_| print),
        None => {
            let program = P::from_flags(flags)?;
            Ok(Action::Run(Start::new(P::NAME, move || start(program))))
        }
    }
}

/// Reads arguments that are normalized already.
///
/// # Errors
/// When they cannot be run.
pub(crate) fn config_of<P: Program>(args: &[String]) -> Result<P, UsageError> {
    let command = flags::goify(P::Flags::augment_args(clap::Command::new(P::NAME)));
    let matches = command.no_binary_name(true).try_get_matches_from(args);
    let read = matches.and_then(|matches| P::Flags::from_arg_matches(&matches));
    P::from_flags(read.map_err(|error| UsageError::from_clap(&error))?)
}

fn start<P: Program>(program: P) -> anyhow::Result<ExitCode> {
    if let Some(logging) = program.logging() {
        process::prepare(logging)?;
    }
    match block_on(P::THREADS, program.run()) {
        Err(error) if error.is::<process::Stopped>() => Ok(ExitCode::SUCCESS),
        ended => match ended.map_err(anyhow::Error::downcast::<process::ExitWith>) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(Ok(process::ExitWith(code))) => Ok(ExitCode::from(code)),
            Err(Err(error)) => Err(error),
        },
    }
}

/// Runs a future on a runtime of its own.
///
/// # Errors
/// Those of the future, and when the runtime cannot be made.
pub(crate) fn block_on(
    threads: Threads,
    program: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut builder = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread(),
        Threads::Two | Threads::Many => tokio::runtime::Builder::new_multi_thread(),
    };
    if matches!(threads, Threads::Two) {
        builder.worker_threads(2);
    }
    builder.enable_all().build()?.block_on(program)
}
