//! The programs of the binary and the way from `argv` to one of them.
//!
//! Every program has `Flags`, what can be typed, and a `Config`, what can be run; one `TryFrom` leads from the first to
//! the second. [`decide`] does all of it without touching the world, [`main`] then acts.

pub mod attacher;
pub mod controllers;
pub mod driver;
pub mod limits;
pub mod liveness_probe;
mod logging;
pub mod node;
pub mod node_registrar;
pub mod people;
pub mod per_node;
pub mod plain;
pub mod pool;
pub mod provisioner;
mod tree;
pub mod up;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::client;
use crate::flags::{self, UsageError, nearest};
use crate::run;

pub use pool::Pool;

/// The version, as `--version` prints it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Delays after failures: the first, doubled with every further one, up to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub start: Duration,
    /// Never longer than this.
    pub max: Duration,
}

impl Backoff {
    fn new(start: Duration, max: Duration) -> Result<Self, UsageError> {
        if start > max {
            return Err(UsageError::Together(
                "--retry-interval-start may not be longer than --retry-interval-max".into(),
            ));
        }
        Ok(Self { start, max })
    }
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Action {
    /// Print this on stdout and be done.
    Print(String),
    /// `longshore up`.
    Up(up::Config),
    /// One node of `longshore up --nodes N`, started by it only.
    UpNode(Box<up::NodeConfig>),
    /// `longshore demo`.
    Demo(up::DemoConfig),
    /// `longshore apiserver`.
    ApiServer(up::ApiServerConfig),
    /// `longshore provisioner` or `csi-provisioner`.
    Provisioner(Box<provisioner::Config>),
    /// `longshore attacher` or `csi-attacher`.
    Attacher(Box<attacher::Config>),
    /// `longshore controllers`.
    Controllers(controllers::Config),
    /// `longshore node`.
    Node(node::Config),
    /// `longshore node-registrar` or `csi-node-driver-registrar`.
    NodeRegistrar(node_registrar::Registration),
    /// `longshore liveness-probe` or `livenessprobe`.
    LivenessProbe(liveness_probe::Config),
    /// `longshore driver`.
    Driver(driver::Config),
    /// `longshore hostpath-provisioner`.
    HostpathProvisioner(Box<plain::Hostpath>),
    /// `longshore nfs-provisioner`.
    NfsProvisioner(Box<plain::Nfs>),
    /// `longshore apply`, `get`, `describe`, `delete` or `logs`.
    Client(client::Command),
    /// The keeper of one pod's processes, started by the node agent only.
    PodShim(Vec<OsString>),
    /// The holder of a frozen filesystem, started by a driver only.
    FreezeHolder,
}

/// A command line that was refused.
#[derive(Debug)]
pub struct Refusal {
    /// What the sentence begins with: the name the program was called by.
    pub program: String,
    /// Why.
    pub error: UsageError,
    /// Where to read more, if that helps.
    pub help: Option<String>,
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

/// What the command line asks for.
///
/// # Errors
/// When it is wrong, or asks for something that is not part of this version.
pub fn decide(argv: &[OsString]) -> Result<Action, Refusal> {
    let name = called_as(argv);
    let rest = argv.get(1..).unwrap_or_default();
    match tree::OFFICIAL.iter().find(|(official, _)| *official == name) {
        Some((_, Some(program))) => official(&name, program, argv, rest),
        Some((_, None)) => Err(Refusal {
            program: name.clone(),
            error: UsageError::ProgramNotYet { name },
            help: None,
        }),
        None => subcommand(rest),
    }
}

/// The name of the link or file that was started.
fn called_as(argv: &[OsString]) -> String {
    let name = argv.first().and_then(|arg| Path::new(arg).file_name());
    let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match tree::OFFICIAL.iter().any(|(official, _)| *official == name) {
        true => name,
        false => "longshore".into(),
    }
}

/// Started under the name of an official program.
fn official(
    name: &str,
    program: &str,
    argv: &[OsString],
    rest: &[OsString],
) -> Result<Action, Refusal> {
    let refuse =
        |error| Refusal { program: name.to_owned(), error, help: Some(format!("{name} --help")) };
    let args = texts(rest).map_err(refuse)?;
    let argv0 = argv.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let command = tree::subcommand(program).name(name.to_owned()).bin_name(name.to_owned());
    program_action(program, command, &args, &format!("{argv0} {VERSION}")).map_err(refuse)
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
            return help(rest).map_err(|error| refuse(error, top));
        }
        tree::FREEZE_HOLDER => return Ok(Action::FreezeHolder),
        tree::POD_SHIM => return Ok(Action::PodShim(rest.to_vec())),
        tree::UP_NODE => return up_node(rest).map_err(|error| refuse(error, top)),
        _ => {}
    }
    if tree::NOT_YET.contains(&first.as_ref()) {
        let error = UsageError::ProgramNotYet { name: first.into_owned() };
        return Err(Refusal { program: "longshore".into(), error, help: None });
    }
    if !tree::names().any(|known| known == first) {
        let error = match first.starts_with('-') {
            true => UsageError::Other(format!("the command comes first, before {first}")),
            false => UsageError::UnknownCommand {
                nearest: nearest(&first, tree::names()).map(|name| format!("`{name}`")),
                name: first.into_owned(),
            },
        };
        return Err(refuse(error, top));
    }
    let help = format!("longshore {first} --help");
    let args = texts(rest).map_err(|error| refuse(error, &help))?;
    let command = tree::subcommand(&first).bin_name(format!("longshore {first}"));
    program_action(&first, command, &args, &format!("longshore {first} {VERSION}"))
        .map_err(|error| refuse(error, &help))
}

/// `longshore up-node FILE`, as `longshore up` starts it.
fn up_node(rest: &[OsString]) -> Result<Action, UsageError> {
    let [file] = rest else {
        return Err(UsageError::Other("up-node is started by `longshore up --nodes N`".into()));
    };
    let bad =
        |error: &dyn std::fmt::Display| UsageError::bad_value("up-node", file.display(), error);
    let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
    let config = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    Ok(Action::UpNode(Box::new(config)))
}

/// `longshore help [COMMAND]`.
fn help(rest: &[OsString]) -> Result<Action, UsageError> {
    let name = rest.first().map(|name| name.to_string_lossy());
    let mut command = match name {
        None => tree::tree(),
        Some(name) if tree::names().any(|known| known == name) => {
            tree::subcommand(&name).bin_name(format!("longshore {name}"))
        }
        Some(name) => {
            let nearest = nearest(&name, tree::names()).map(|name| format!("`{name}`"));
            return Err(UsageError::UnknownCommand { name: name.into_owned(), nearest });
        }
    };
    Ok(Action::Print(command.render_help().to_string()))
}

/// Reads the arguments of one program. `version` is the line that `--version` prints.
fn program_action(
    program: &str,
    command: clap::Command,
    args: &[String],
    version: &str,
) -> Result<Action, UsageError> {
    let go = GoProgram { command, args, version };
    match program {
        "up" => go.read(&[], Action::Up),
        "demo" => go.read(&[], Action::Demo),
        "apiserver" => go.read(&[], Action::ApiServer),
        "provisioner" => {
            go.read(provisioner::REMOVED, |config| Action::Provisioner(Box::new(config)))
        }
        "attacher" => go.read(attacher::REMOVED, |config| Action::Attacher(Box::new(config))),
        "controllers" => go.read(&[], Action::Controllers),
        "node" => go.read(&[], Action::Node),
        "node-registrar" => go.read(&[], |config| match config {
            node_registrar::Config::OldProbe => Action::Print(String::new()),
            node_registrar::Config::Register(registration) => Action::NodeRegistrar(registration),
        }),
        "liveness-probe" => go.read(&[], Action::LivenessProbe),
        "driver" => go.read(&[], Action::Driver),
        "hostpath-provisioner" => {
            go.read(&[], |config| Action::HostpathProvisioner(Box::new(config)))
        }
        "nfs-provisioner" => go.read(&[], |config| Action::NfsProvisioner(Box::new(config))),
        "completions" => people::completions(go.command, args),
        _ => people::action(program, go.command, args),
    }
}

/// A program with Go's flag syntax, about to be read.
struct GoProgram<'a> {
    command: clap::Command,
    args: &'a [String],
    version: &'a str,
}

impl GoProgram<'_> {
    fn read<C: Readable>(
        self,
        removed: &[(&str, &'static str)],
        action: impl FnOnce(C) -> Action,
    ) -> Result<Action, UsageError> {
        let line = flags::normalise(&self.command, self.args, removed)?;
        let matches = match self.command.no_binary_name(true).try_get_matches_from(line) {
            Ok(matches) => matches,
            Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {
                return Ok(Action::Print(error.to_string()));
            }
            Err(error) => return Err(UsageError::from_clap(&error)),
        };
        let version = matches.get_one::<bool>("version").copied().unwrap_or_default();
        let flags = <C::Flags as clap::FromArgMatches>::from_arg_matches(&matches)
            .map_err(|error| UsageError::from_clap(&error))?;
        // The official sidecars check their flags before they print their version; the others have
        // required flags, which nobody wants to give to see a version.
        if version && !C::CHECK_BEFORE_VERSION {
            return Ok(Action::Print(format!("{}\n", self.version)));
        }
        let config = C::try_from(flags)?;
        match version {
            true => Ok(Action::Print(format!("{}\n", self.version))),
            false => Ok(action(config)),
        }
    }
}

/// A config that is read from flags.
trait Readable: TryFrom<Self::Flags, Error = UsageError> {
    type Flags: clap::Args;
    const CHECK_BEFORE_VERSION: bool = false;
}

impl Readable for up::Config {
    type Flags = up::Flags;
}
impl Readable for up::DemoConfig {
    type Flags = up::DemoFlags;
}
impl Readable for up::ApiServerConfig {
    type Flags = up::ApiServerFlags;
}
impl Readable for provisioner::Config {
    type Flags = provisioner::Flags;
    const CHECK_BEFORE_VERSION: bool = true;
}
impl Readable for attacher::Config {
    type Flags = attacher::Flags;
    const CHECK_BEFORE_VERSION: bool = true;
}
impl Readable for controllers::Config {
    type Flags = controllers::Flags;
}
impl Readable for node::Config {
    type Flags = node::Flags;
}
impl Readable for node_registrar::Config {
    type Flags = node_registrar::Flags;
}
impl Readable for liveness_probe::Config {
    type Flags = liveness_probe::Flags;
}
impl Readable for driver::Config {
    type Flags = driver::Flags;
}
impl Readable for plain::Hostpath {
    type Flags = plain::HostpathFlags;
}
impl Readable for plain::Nfs {
    type Flags = plain::NfsFlags;
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
        Action::Print(text) => print(&text),
        Action::PodShim(args) => match run::pod_shim(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Action::FreezeHolder => return longshore_driver::freeze::holder::main(),
        Action::Client(command) => on(Threads::One, client::run(command)),
        Action::Up(config) => logged(&config.logging.clone(), Threads::Many, run::up(config)),
        Action::UpNode(config) => {
            logged(&flags::Logging::default(), Threads::Many, run::up_node(*config))
        }
        Action::Demo(config) => logged(&config.logging.clone(), Threads::Many, run::demo(config)),
        Action::ApiServer(config) => {
            logged(&config.logging.clone(), Threads::Many, run::apiserver(config))
        }
        Action::Provisioner(config) => {
            logged(&config.logging.clone(), Threads::One, run::provisioner(*config))
        }
        Action::Attacher(config) => {
            logged(&config.logging.clone(), Threads::One, run::attacher(*config))
        }
        Action::Controllers(config) => {
            logged(&config.logging.clone(), Threads::One, run::controllers(config))
        }
        Action::Node(config) => logged(&config.logging.clone(), Threads::Many, run::node(config)),
        Action::NodeRegistrar(config) => {
            logged(&config.logging.clone(), Threads::One, run::node_registrar(config))
        }
        Action::LivenessProbe(config) => {
            logged(&config.logging.clone(), Threads::One, run::liveness_probe(config))
        }
        Action::Driver(config) => {
            logged(&config.logging.clone(), Threads::Many, run::driver(config))
        }
        Action::HostpathProvisioner(config) => {
            let logging = config.common.logging.clone();
            logged(&logging, Threads::One, run::hostpath_provisioner(*config))
        }
        Action::NfsProvisioner(config) => {
            let logging = config.common.logging.clone();
            logged(&logging, Threads::One, run::nfs_provisioner(*config))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How many threads a program's runtime has. Sidecars mostly wait, and memory counts there.
enum Threads {
    One,
    Many,
}

fn logged(
    logging: &flags::Logging,
    threads: Threads,
    program: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    logging::start(logging)?;
    // Files that are not private have the usual modes, whatever the caller's mask is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    run::raise_descriptors()?;
    on(threads, program)
}

fn on(threads: Threads, program: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut builder = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread(),
        Threads::Many => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.enable_all().build()?.block_on(program)
}

fn print(text: &str) -> anyhow::Result<()> {
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
        let line = flags::normalise(&command, &args, removed).map_err(|error| error.to_string())?;
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
        tree::tree().debug_assert();
    }

    #[test]
    fn names_lead_to_programs() {
        assert!(matches!(decided("longshore up --nodes 2"), Ok(Action::Up(_))));
        assert!(matches!(decided("/usr/bin/longshore demo"), Ok(Action::Demo(_))));
        assert!(matches!(decided("anything apiserver"), Ok(Action::ApiServer(_))));
        assert!(matches!(decided("longshore provisioner -v=5"), Ok(Action::Provisioner(_))));
        assert!(matches!(decided("/bin/csi-provisioner -v 5"), Ok(Action::Provisioner(_))));
        assert!(matches!(decided("csi-attacher --timeout=1m"), Ok(Action::Attacher(_))));
        assert!(
            matches!(decided("longshore pod-shim --x y"), Ok(Action::PodShim(args)) if args.len() == 2)
        );
        assert!(matches!(decided("longshore freeze-holder"), Ok(Action::FreezeHolder)));
        assert!(matches!(decided("longshore get pvc"), Ok(Action::Client(_))));
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
            ("longshore resizer", "longshore: `resizer` is not part of this version yet"),
            (
                "longshore snapshotter --x",
                "longshore: `snapshotter` is not part of this version yet",
            ),
            (
                "/a/csi-snapshotter -v=5",
                "csi-snapshotter: `csi-snapshotter` is not part of this version yet",
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
