//! The client commands: `longshore apply`, `get`, `wait`, `logs` and their like.
//!
//! Their flags are written as kubectl's: `-n demo`, `-n=demo`, `-ojson`, `--wait=false`.

mod change;
pub(crate) mod complete;
mod select;
mod show;
mod wait;

use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{Program, Syntax, Threads};
use crate::client::{self, Access, Command};
use crate::flags::{Logging, UsageError, values};

pub(crate) use change::{
    AnnotateFlags, ApplyFlags, CreateFlags, EditFlags, LabelFlags, PatchFlags,
};
pub(crate) use show::{DescribeFlags, EventsFlags, GetFlags, StatusFlags};
pub(crate) use wait::{DeleteFlags, WaitFlags};

/// Which server to ask.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AccessFlags {
    /// Client configuration; $KUBECONFIG when unset, else that of the running instance.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl From<AccessFlags> for Access {
    fn from(flags: AccessFlags) -> Self {
        let AccessFlags { kubeconfig } = flags;
        Self { kubeconfig }
    }
}

/// Flags of `longshore logs`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LogsFlags {
    /// Name of the pod.
    #[arg(value_name = "POD")]
    pod: String,
    /// Name of the container; needed when the pod has several.
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Go on and show lines as they are written, until the container ends.
    #[arg(short, long)]
    follow: bool,
    /// Show the container's run before the current one.
    #[arg(short, long)]
    previous: bool,
    /// Put the time before each line.
    #[arg(long)]
    timestamps: bool,
    /// Show so many of the last lines; -1 shows all.
    #[arg(long, value_name = "LINES", default_value = "-1", allow_hyphen_values = true)]
    tail: i64,
    /// Show lines that are not older than this; 0 shows all.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    since: Duration,
    /// Show lines from this time on, as RFC 3339.
    #[arg(long, value_name = "TIME")]
    since_time: Option<String>,
    /// Show at most so many bytes; 0 shows all.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    limit_bytes: u64,
    /// Namespace of the pod.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<LogsFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: LogsFlags) -> Result<Self, UsageError> {
        let LogsFlags {
            pod,
            container,
            follow,
            previous,
            timestamps,
            tail,
            since,
            since_time,
            limit_bytes,
            namespace,
            access,
        } = flags;
        if since_time.is_some() && !since.is_zero() {
            return Err(UsageError::Together(
                "--since and --since-time cannot be used together".into(),
            ));
        }
        let request = client::Logs {
            pod: pod_name(pod),
            container,
            follow,
            previous,
            timestamps,
            tail: u32::try_from(tail).ok(),
            since: Some(since).filter(|since| !since.is_zero()),
            since_time,
            limit_bytes: Some(limit_bytes).filter(|bytes| *bytes > 0),
            namespace,
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// The name in `web` and in `pod/web`.
fn pod_name(pod: String) -> String {
    match pod.split_once('/') {
        Some(("pod" | "pods" | "po", name)) => name.to_owned(),
        _ => pod,
    }
}

/// Flags of `longshore exec`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExecFlags {
    /// Name of the pod.
    #[arg(value_name = "POD")]
    pod: String,
    /// The command and its arguments, after `--`.
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<String>,
    #[command(flatten)]
    streams: StreamFlags,
}

/// Flags of `longshore attach`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AttachFlags {
    /// Name of the pod.
    #[arg(value_name = "POD")]
    pod: String,
    #[command(flatten)]
    streams: StreamFlags,
}

#[derive(Debug, Clone, clap::Args)]
struct StreamFlags {
    /// Name of the container; needed when the pod has several.
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Send standard input to the container.
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Use a terminal.
    #[arg(short, long)]
    tty: bool,
    /// Namespace of the pod.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    #[command(flatten)]
    access: AccessFlags,
}

impl StreamFlags {
    fn command(self, pod: String, command: Option<Vec<String>>) -> Command {
        let Self { container, stdin, tty, namespace, access } = self;
        let request =
            client::Exec { pod: pod_name(pod), container, command, stdin, tty, namespace };
        Command { access: access.into(), request: request.into() }
    }
}

impl From<ExecFlags> for Command {
    fn from(flags: ExecFlags) -> Self {
        let ExecFlags { pod, command, streams } = flags;
        streams.command(pod, Some(command))
    }
}

impl From<AttachFlags> for Command {
    fn from(flags: AttachFlags) -> Self {
        let AttachFlags { pod, streams } = flags;
        streams.command(pod, None)
    }
}

/// One command of the client, which knows which flags it was read from.
pub(crate) struct Client<F> {
    command: Command,
    flags: PhantomData<F>,
}

/// What differs between the commands of the client.
pub(crate) trait ClientFlags:
    clap::Args + TryInto<Command, Error: Into<UsageError>> + 'static
{
    const NAME: &'static str;
    const SUMMARY: &'static str;
    const EXAMPLES: &'static str;
}

impl ClientFlags for LogsFlags {
    const NAME: &'static str = "logs";
    const SUMMARY: &'static str = "Show what a pod's container wrote";
    const EXAMPLES: &'static str = "longshore logs web -f\n  longshore logs web --previous --tail=20\n  longshore logs web --since=5m --timestamps";
}

impl ClientFlags for ExecFlags {
    const NAME: &'static str = "exec";
    const SUMMARY: &'static str = "Run a command in a container";
    const EXAMPLES: &'static str = "longshore exec web -- ls /data\n  longshore exec -it web -- sh";
}

impl ClientFlags for AttachFlags {
    const NAME: &'static str = "attach";
    const SUMMARY: &'static str = "Show what a container writes, and write to it";
    const EXAMPLES: &'static str = "longshore attach web\n  longshore attach -it shell";
}

impl<F: ClientFlags> Program for Client<F> {
    const NAME: &'static str = F::NAME;
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = F::SUMMARY;
    const EXAMPLES: &'static str = F::EXAMPLES;
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = F;

    fn from_flags(flags: F) -> Result<Self, UsageError> {
        let command = flags.try_into().map_err(Into::into)?;
        Ok(Self { command, flags: PhantomData })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> anyhow::Result<()> {
        client::run(self.command).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{DryRun, Follow, Output, Request, Scope};
    use crate::flags::goify;

    fn read<F: ClientFlags>(args: &[&str]) -> Result<Request, String> {
        let command = goify(F::augment_args(clap::Command::new("test"))).no_binary_name(true);
        let matches = command
            .try_get_matches_from(args)
            .map_err(|error| UsageError::from_clap(&error).to_string())?;
        let flags = F::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let client = Client::from_flags(flags).map_err(|error| error.to_string())?;
        Ok(client.command.request)
    }

    fn request(line: &str) -> Result<Request, String> {
        let args: Vec<&str> = line.split_whitespace().collect();
        match args[0] {
            "apply" => read::<ApplyFlags>(&args[1..]),
            "get" => read::<GetFlags>(&args[1..]),
            "describe" => read::<DescribeFlags>(&args[1..]),
            "delete" => read::<DeleteFlags>(&args[1..]),
            "create" => read::<CreateFlags>(&args[1..]),
            "patch" => read::<PatchFlags>(&args[1..]),
            "label" => read::<LabelFlags>(&args[1..]),
            "annotate" => read::<AnnotateFlags>(&args[1..]),
            "wait" => read::<WaitFlags>(&args[1..]),
            "events" => read::<EventsFlags>(&args[1..]),
            "logs" => read::<LogsFlags>(&args[1..]),
            "exec" => read::<ExecFlags>(&args[1..]),
            "attach" => read::<AttachFlags>(&args[1..]),
            other => panic!("{other} is no command of the client"),
        }
    }

    fn get(line: &str) -> client::Get {
        match request(line) {
            Ok(Request::Get(get)) => get,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// `pvc/data pod`: what a line selects.
    fn selected(line: &str) -> String {
        let words = get(line).selection.words.into_iter();
        let texts = words.map(|word| match word.name {
            Some(name) => format!("{}/{name}", word.kind),
            None => word.kind,
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn kubectl_forms_of_get() {
        assert_eq!(get("get pvc").selection.scope, Scope::Current);
        for (line, words) in [
            ("get pvc data x", "pvc/data pvc/x"),
            ("get pvc/data", "pvc/data"),
            ("get pvc/data pod/web", "pvc/data pod/web"),
            ("get pvc,pv -A", "pvc pv"),
            ("get pvc,pod web", "pvc/web pod/web"),
        ] {
            assert_eq!(selected(line), words, "{line}");
        }
        for line in
            ["get pvc -n demo", "get pvc -n=demo", "get -ndemo pvc", "get --namespace=demo pvc"]
        {
            assert_eq!(get(line).selection.scope, Scope::Namespace("demo".into()), "{line}");
        }
        for line in
            ["get pvc -o yaml", "get pvc -oyaml", "get pvc -o=yaml", "get pvc --output yaml"]
        {
            assert_eq!(get(line).output, Output::Yaml, "{line}");
        }
        let both = get("get pvc -Aw");
        assert!(both.follow == Follow::Watch && both.selection.scope == Scope::All);
        assert_eq!(get("get pvc --watch=false").follow, Follow::No);
        assert_eq!(get("get pvc --watch-only").follow, Follow::WatchOnly);
        assert_eq!(get("get pvc -l app=web").selection.labels.as_deref(), Some("app=web"));
        assert_eq!(get("get pvc -L a,b -L c").label_columns, ["a", "b", "c"]);
        let path = get("get pvc --sort-by metadata.name").sort_by;
        assert_eq!(path.unwrap().source(), "{.metadata.name}");
        let columns = get("get pvc -o custom-columns=NAME:.metadata.name,X:.spec.x").output;
        assert!(matches!(columns, Output::Columns(columns) if columns.len() == 2));
    }

    #[test]
    fn labels_are_told_from_names() {
        let marks = |line: &str| match request(line) {
            Ok(Request::Mark(mark)) => (mark.selection.words.len(), mark.changes),
            other => panic!("{line}: {other:?}"),
        };
        let set = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        assert_eq!(marks("label pod a b x=1 y-"), (2, vec![set("x", "1"), ("y".into(), None)]));
        assert_eq!(marks("label pod/a x="), (1, vec![set("x", "")]));
        assert_eq!(marks("annotate pod --all a=b=c"), (1, vec![set("a", "b=c")]));
        assert_eq!(marks("label -f x.yaml a=b"), (0, vec![set("a", "b")]));
    }

    #[test]
    fn grace_periods_are_kubectls() {
        let delete = |line: &str| match request(line) {
            Ok(Request::Delete(delete)) => (delete.grace_period, delete.force, delete.dry_run),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(delete("delete pod a"), (None, false, DryRun::None));
        assert_eq!(delete("delete pod a --grace-period=-1"), (None, false, DryRun::None));
        assert_eq!(delete("delete pod a --grace-period 0"), (Some(0), false, DryRun::None));
        assert_eq!(delete("delete pod a --now"), (Some(1), false, DryRun::None));
        assert_eq!(delete("delete pod a --force"), (None, true, DryRun::None));
        assert_eq!(delete("delete pod a --dry-run=client").2, DryRun::Client);
    }

    #[test]
    fn delete_waits_unless_told_not_to() {
        for (line, wait) in [
            ("delete pvc data", true),
            ("delete pvc data --wait", true),
            ("delete pvc data --wait=false", false),
            ("delete -f x.yaml --wait=F", false),
        ] {
            match request(line) {
                Ok(Request::Delete(delete)) => assert_eq!(delete.wait, wait, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn kubectl_forms_of_logs_and_exec() {
        let Ok(Request::Logs(logs)) =
            request("logs pod/web -fp --since=5m --tail=3 --timestamps --limit-bytes=10")
        else {
            panic!("logs");
        };
        assert_eq!(
            logs,
            client::Logs {
                pod: "web".into(),
                container: None,
                follow: true,
                previous: true,
                timestamps: true,
                tail: Some(3),
                since: Some(Duration::from_secs(300)),
                since_time: None,
                limit_bytes: Some(10),
                namespace: None,
            }
        );
        for line in ["exec -it web -c main -- sh -c true", "exec web -cmain -i -t -- sh -c true"] {
            let exec = client::Exec {
                pod: "web".into(),
                container: Some("main".into()),
                command: Some(["sh", "-c", "true"].map(str::to_owned).to_vec()),
                stdin: true,
                tty: true,
                namespace: None,
            };
            assert_eq!(request(line), Ok(Request::Exec(exec)), "{line}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_reason() {
        for (line, part) in [
            ("get", "<KIND> is required"),
            ("get pvc -o xml", "--output cannot be `xml`: it is one of yaml, json, name, wide"),
            ("get pvc -o jsonpath={.a", "--output cannot be `jsonpath={.a`: unclosed action"),
            ("get pvc -o jsonpath", "a template is needed"),
            ("get pvc -o custom-columns=NAME", "`NAME` is no column; write HEADER:PATH"),
            ("get pvc --sort-by={.a}{.b}", "is no path"),
            ("get pvc data -l a=b", "--selector cannot be used together with a name"),
            ("get pvc data pod/web", "give one KIND and its names, or only KIND/NAME"),
            ("apply -f x --force-conflicts", "only works with --server-side"),
            ("apply -f x --server-side --dry-run=client", "use --dry-run=server"),
            ("apply -f x --dry-run=maybe", "it is one of none, client, server"),
            ("patch pvc x", "--patch or --patch-file"),
            ("patch pvc x -p [1]", "an object is expected"),
            ("patch pvc x -p {} --type=json", "a list of operations is expected"),
            ("patch pvc -p {}", "say which pvc by its name: pvc/NAME"),
            ("label pvc x", "KEY=VALUE sets, KEY- removes"),
            ("label pvc x a=b c", "KEY=VALUE sets, KEY- removes"),
            ("wait pod/web", "--for <CONDITION> is required"),
            ("wait pod/web --for=Ready", "it is condition=NAME[=VALUE], create, delete"),
            ("wait pod --for=create", "say which pod by its name: pod/NAME, or all with --all"),
            ("wait pod/x --all --for=create", "cannot be used together with a name"),
            ("events --types=Bad", "it is one of Normal, Warning"),
            ("delete pod x --now --grace-period=3", "cannot be used together"),
            ("delete pod x --force --grace-period=3", "cannot be used together"),
            ("delete pod x --all", "cannot be used together with a name"),
            ("delete pod --all -l a=b", "--all and --selector"),
            ("get pvc -A -n x", "cannot be used together"),
            ("get pvc data -A", "cannot be used together with a name"),
            ("get pvc,pv -w", "one kind at a time"),
            ("get pvc/", "the name is missing"),
            ("get pvc/a b", "after KIND/NAME only further KIND/NAME can follow"),
            ("apply", "--filename <FILE> is required"),
            ("delete pvc", "by its name"),
            ("delete", "say which object: KIND NAME or -f FILE"),
            ("delete pvc x -f y", "either"),
            ("delete pvc x --timeout=5", "a duration is written as in Go"),
            ("logs", "<POD> is required"),
            ("logs web --since=5", "a duration is written as in Go"),
            ("logs web --since=5m --since-time=x", "cannot be used together"),
            ("exec", "<POD> and <COMMAND>... is required"),
            ("exec web", "<COMMAND>... is required"),
            ("logs web --folow", "unknown flag --folow; did you mean --follow?"),
        ] {
            let sentence = request(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
