//! The way from `argv` to a program.
//!
//! [`decide`] finds the program's row and checks the whole command line without touching the world; [`main`] then runs
//! what was decided.

pub(crate) mod help;
mod program;
pub(crate) mod upstream;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use longshore_core::words;

use crate::flags::{UsageError, nearest};
use crate::programs::PROGRAMS;

pub(crate) use program::{
    Action, Entry, Program, Row, Start, Syntax, Threads, block_on, config_of,
};
use program::{Body, Line};

/// The version, as `--version` prints it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A command line that was refused.
#[derive(Debug)]
struct Refusal {
    /// What the sentence begins with: the name the program was called by.
    program: String,
    error: UsageError,
    /// Where to read more, if that helps.
    help: Option<String>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.program, self.error)?;
        match &self.help {
            Some(help) => write!(f, " (see `{help}`)"),
            None => Ok(()),
        }
    }
}

/// Runs the binary with these arguments, the program's own name included.
#[must_use]
pub fn main(argv: Vec<OsString>) -> ExitCode {
    match decide(&argv) {
        Err(refusal) => {
            eprintln!("{refusal}");
            ExitCode::from(refusal.error.exit_code())
        }
        Ok(action) => act(action, &called_as(&argv)),
    }
}

/// Decides what the command line asks for.
///
/// # Errors
/// When it is wrong, or asks for something that is not part of this version.
fn decide(argv: &[OsString]) -> Result<Action, Refusal> {
    let name = called_as(argv);
    let rest = argv.get(1..).unwrap_or_default();
    match official(&name) {
        Some((official, row)) => as_official(official, row, argv, rest),
        None => subcommand(rest),
    }
}

/// The row of the program that is officially called `name`.
fn official(name: &str) -> Option<(&'static str, &'static Row)> {
    PROGRAMS.iter().find_map(|row| {
        row.official.iter().find(|official| **official == name).map(|official| (*official, row))
    })
}

/// The official name of the link that was started, or our own.
fn called_as(argv: &[OsString]) -> String {
    let name = argv.first().and_then(|arg| Path::new(arg).file_name());
    let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if official(&name).is_some() { name } else { "longshore".into() }
}

/// Started under the name of an official program.
fn as_official(
    name: &'static str,
    row: &Row,
    argv: &[OsString],
    rest: &[OsString],
) -> Result<Action, Refusal> {
    let Some(entry) = row.entry() else { return Err(not_yet(name, name)) };
    let refuse =
        |error| Refusal { program: name.to_owned(), error, help: Some(format!("{name} --help")) };
    let argv0 = argv.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let command = help::command(name, entry).bin_name(name);
    read(entry, command, rest, &format!("{argv0} {VERSION}")).map_err(refuse)
}

/// Started as `longshore`: the first word chooses the program.
fn subcommand(rest: &[OsString]) -> Result<Action, Refusal> {
    let refuse = |error, help: &str| Refusal {
        program: "longshore".into(),
        error,
        help: Some(help.to_owned()),
    };
    let top = "longshore --help";
    let Some(first) = rest.first() else {
        let error = UsageError::Other("say what to do, for example `longshore demo`".into());
        return Err(refuse(error, top));
    };
    let first = first.to_string_lossy();
    let rest = &rest[1..];
    match first.as_ref() {
        "--version" | "-version" | "-V" | "version" => {
            return Ok(Action::Print(format!("longshore {VERSION}\n")));
        }
        "--help" | "-help" | "-h" | "help" => {
            return help_about(rest).map_err(|error| refuse(error, top));
        }
        _ => {}
    }
    let Some(row) = PROGRAMS.iter().find(|row| row.name == first) else {
        let error = match first.starts_with('-') {
            true => UsageError::Other(format!("the command comes first, before {first}")),
            false => unknown(&first),
        };
        return Err(refuse(error, top));
    };
    match &row.body {
        Body::NotYet => Err(not_yet("longshore", row.name)),
        Body::Internal(read) => read(rest).map_err(|error| refuse(error, top)),
        Body::Program(entry) => {
            let help = format!("longshore {first} --help");
            let command = help::command(row.name, entry).bin_name(format!("longshore {first}"));
            read(entry, command, rest, &format!("longshore {first} {VERSION}"))
                .map_err(|error| refuse(error, &help))
        }
    }
}

fn read(
    entry: &Entry,
    command: clap::Command,
    rest: &[OsString],
    version: &str,
) -> Result<Action, UsageError> {
    let args = texts(rest)?;
    (entry.read)(Line { command, args: &args, version })
}

fn not_yet(program: &str, name: &str) -> Refusal {
    let error = UsageError::ProgramNotYet { name: name.to_owned() };
    Refusal { program: program.to_owned(), error, help: None }
}

fn unknown(name: &str) -> UsageError {
    let nearest = nearest(name, help::names()).map(|name| format!("`{name}`"));
    UsageError::UnknownCommand { name: name.to_owned(), nearest }
}

/// `longshore help [COMMAND]`.
fn help_about(rest: &[OsString]) -> Result<Action, UsageError> {
    let mut command = match rest.first().map(|name| name.to_string_lossy()) {
        None => help::tree(),
        Some(name) => {
            let row = PROGRAMS.iter().find(|row| row.name == name);
            let found = row.and_then(|row| row.entry().map(|entry| (row, entry)));
            let (row, entry) = found.ok_or_else(|| unknown(&name))?;
            help::command(row.name, entry).bin_name(format!("longshore {name}"))
        }
    };
    Ok(Action::Print(command.render_help().to_string()))
}

fn texts(args: &[OsString]) -> Result<Vec<String>, UsageError> {
    args.iter()
        .map(|arg| {
            let wrong = || UsageError::Other(format!("the argument {arg:?} is not valid UTF-8"));
            arg.to_str().map(str::to_owned).ok_or_else(wrong)
        })
        .collect()
}

/// Does what was decided and says how it went.
fn act(action: Action, program: &str) -> ExitCode {
    let outcome = match action {
        Action::Print(text) => print(&text).map(|()| ExitCode::SUCCESS),
        Action::Run(start) => start.start(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {}", words::causes_of(error.chain()));
            ExitCode::FAILURE
        }
    }
}

/// Writes a text to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The reader of our output went away, as with `| head`: nothing worth a sentence.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::flags;

    /// Reads one line of flags as the dispatcher does, up to the conversion.
    pub(crate) fn flags<F: clap::Args>(
        line: &str,
        removed: &[(&str, &'static str)],
    ) -> Result<F, String> {
        let command = flags::goify(F::augment_args(clap::Command::new("test")));
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let line = flags::normalize(&command, &args, removed).map_err(|error| error.to_string())?;
        let matches = command
            .no_binary_name(true)
            .try_get_matches_from(line)
            .map_err(|error| flags::UsageError::from_clap(&error).to_string())?;
        F::from_arg_matches(&matches).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(line: &str) -> Result<Action, String> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        decide(&argv).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn the_tree_is_sound() {
        help::tree().debug_assert();
    }

    #[test]
    fn names_lead_to_programs() {
        for (line, program) in [
            ("longshore up --nodes 2", "up"),
            ("/usr/bin/longshore demo", "demo"),
            ("anything apiserver", "apiserver"),
            ("longshore provisioner -v=5", "provisioner"),
            ("/bin/csi-provisioner -v 5", "provisioner"),
            ("csi-attacher --timeout=1m", "attacher"),
            ("longshore pod-shim --x y", "pod-shim"),
            ("longshore freeze-holder", "freeze-holder"),
            ("longshore get pvc", "get"),
        ] {
            match decided(line) {
                Ok(Action::Run(start)) => assert_eq!(format!("{start:?}"), program, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn refusals_are_one_sentence() {
        for (line, sentence) in [
            (
                "longshore",
                "longshore: say what to do, for example `longshore demo` (see `longshore --help`)",
            ),
            (
                "longshore upp",
                "longshore: unknown command `upp`; did you mean `up`? (see `longshore --help`)",
            ),
            (
                "longshore -v=5 up",
                "longshore: the command comes first, before -v=5 (see `longshore --help`)",
            ),
            (
                "longshore up --data-dri=x",
                "longshore: unknown flag --data-dri; did you mean --data-dir? (see `longshore up --help`)",
            ),
            (
                "csi-attacher -timout=1s",
                "csi-attacher: unknown flag -timout; did you mean --timeout? (see `csi-attacher --help`)",
            ),
            (
                "longshore get --otput=yaml pvc",
                "longshore: unknown flag --otput; did you mean --output? (see `longshore get --help`)",
            ),
            (
                "longshore help upp",
                "longshore: unknown command `upp`; did you mean `up`? (see `longshore --help`)",
            ),
        ] {
            assert_eq!(decided(line).expect_err(line), sentence);
        }
    }

    #[test]
    fn programs_of_later_versions_are_refused_by_every_name() {
        for row in PROGRAMS.iter().filter(|row| matches!(row.body, Body::NotYet)) {
            let name = row.name;
            let sentence = format!("longshore: `{name}` is not part of this version yet");
            for flags in ["", "--x", "-v=5", "--help"] {
                let line = format!("longshore {name} {flags}");
                assert_eq!(decided(&line).expect_err(&line), sentence);
            }
            for official in row.official {
                let sentence = format!("{official}: `{official}` is not part of this version yet");
                let line = format!("/a/{official} -v=5");
                assert_eq!(decided(&line).expect_err(&line), sentence);
            }
        }
    }

    #[test]
    fn versions_and_help() {
        let printed = |line: &str| match decided(line) {
            Ok(Action::Print(text)) => text,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(printed("longshore --version"), format!("longshore {VERSION}\n"));
        assert_eq!(printed("longshore -version"), format!("longshore {VERSION}\n"));
        assert_eq!(printed("/x/csi-attacher --version"), format!("/x/csi-attacher {VERSION}\n"));
        assert_eq!(printed("longshore node -version"), format!("longshore node {VERSION}\n"));
        assert!(decided("csi-provisioner --version --feature-gates=Nope=true").is_err());
        assert!(printed("longshore --help").contains("demo"));
        assert!(printed("longshore help up").contains("--data-dir"));
        assert!(printed("longshore up -h").contains("Usage: longshore up"));
        assert!(printed("csi-provisioner -help").contains("Usage: csi-provisioner"));
        assert!(printed("longshore get --help").contains("Usage: longshore get"));
    }
}
