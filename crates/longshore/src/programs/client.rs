//! `longshore apply`, `get`, `describe`, `delete`, `logs`, `exec` and `attach`: the client commands.
//!
//! Their flags are written as kubectl's: `-n demo`, `-n=demo`, `-ojson`, `--wait=false`.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{Program, Syntax, Threads};
use crate::client::{self, Access, Command, Scope};
use crate::flags::{Logging, UsageError, values};

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

/// Flags of `longshore apply`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ApplyFlags {
    /// File with the objects as YAML or JSON; `-` reads stdin. May be repeated.
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    #[command(flatten)]
    access: AccessFlags,
}

impl From<ApplyFlags> for Command {
    fn from(flags: ApplyFlags) -> Self {
        let ApplyFlags { filename, namespace, access } = flags;
        let request = client::Apply { files: filename, namespace };
        Self { access: access.into(), request: request.into() }
    }
}

/// Flags of `longshore get`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GetFlags {
    /// Kind of the objects (pvc, pv, sc, po, …), several with commas, or KIND/NAME.
    #[arg(value_name = "KIND")]
    kind: String,
    /// Names; all objects when none is given.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Look in all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// How to show them.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<client::Output>,
    /// Labels that objects must have.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Go on and show changes as they happen.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<GetFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: GetFlags) -> Result<Self, UsageError> {
        let GetFlags { kind, names, namespace, all_namespaces, output, selector, watch, access } =
            flags;
        let (kinds, names) = kinds_and_names(&kind, names)?;
        if watch && kinds.len() > 1 {
            return Err(UsageError::Together("--watch takes one kind at a time".into()));
        }
        if !names.is_empty() && (all_namespaces || selector.is_some()) {
            let flag = if all_namespaces { "--all-namespaces" } else { "--selector" };
            return Err(UsageError::Together(format!(
                "{flag} cannot be used together with a name"
            )));
        }
        let scope = scope(namespace, all_namespaces)?;
        let request = client::Get {
            kinds,
            names,
            scope,
            output: output.unwrap_or_default(),
            selector,
            watch,
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore describe`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DescribeFlags {
    /// Kind of the object, or KIND/NAME.
    #[arg(value_name = "KIND")]
    kind: String,
    /// Names; all objects of the namespace when none is given.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<DescribeFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: DescribeFlags) -> Result<Self, UsageError> {
        let DescribeFlags { kind, names, namespace, access } = flags;
        let (kinds, names) = kinds_and_names(&kind, names)?;
        let request = client::Describe { kinds, names, namespace };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore delete`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DeleteFlags {
    /// Kind of the objects, or KIND/NAME.
    #[arg(value_name = "KIND")]
    kind: Option<String>,
    /// Names of the objects.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// File with the objects to delete; `-` reads stdin. May be repeated.
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Return only when the objects are gone.
    #[arg(long, default_value_t = true)]
    wait: bool,
    /// Longest wait; 0 is no limit.
    #[arg(long, default_value = "0s", value_parser = values::duration)]
    timeout: Duration,
    /// Seconds that a pod gets to end; its own setting when unset.
    #[arg(long, value_name = "SECONDS", value_parser = values::count)]
    grace_period: Option<u32>,
    /// Say nothing about objects that are not there.
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<DeleteFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: DeleteFlags) -> Result<Self, UsageError> {
        let DeleteFlags {
            kind,
            names,
            filename,
            namespace,
            wait,
            timeout,
            grace_period,
            ignore_not_found,
            access,
        } = flags;
        let target = match (kind, filename.is_empty()) {
            (Some(kind), true) => {
                let (kinds, names) = kinds_and_names(&kind, names)?;
                if names.is_empty() {
                    return Err(UsageError::Other("say which object to delete by its name".into()));
                }
                client::Target::Named { kinds, names }
            }
            (None, false) => client::Target::Files(filename),
            (Some(_), false) => {
                return Err(UsageError::Together("give either a kind and names, or -f".into()));
            }
            (None, true) => {
                return Err(UsageError::Other("say what to delete: KIND NAME or -f FILE".into()));
            }
        };
        let request = client::Delete {
            target,
            namespace,
            wait,
            timeout: Some(timeout).filter(|limit| !limit.is_zero()),
            grace_period,
            ignore_not_found,
        };
        Ok(Self { access: access.into(), request: request.into() })
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

impl ClientFlags for ApplyFlags {
    const NAME: &'static str = "apply";
    const SUMMARY: &'static str = "Create or change objects from a file";
    const EXAMPLES: &'static str =
        "longshore apply -f claim.yaml\n  cat claim.yaml | longshore apply -n demo -f -";
}

impl ClientFlags for GetFlags {
    const NAME: &'static str = "get";
    const SUMMARY: &'static str = "Show objects";
    const EXAMPLES: &'static str = "longshore get pvc\n  longshore get pod web -o yaml\n  longshore get pvc,pv -A\n  longshore get pvc -w";
}

impl ClientFlags for DescribeFlags {
    const NAME: &'static str = "describe";
    const SUMMARY: &'static str = "Show one object in detail, with its events";
    const EXAMPLES: &'static str = "longshore describe pvc data";
}

impl ClientFlags for DeleteFlags {
    const NAME: &'static str = "delete";
    const SUMMARY: &'static str = "Delete objects by name or from a file";
    const EXAMPLES: &'static str =
        "longshore delete pod web\n  longshore delete -f claim.yaml --wait=false";
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

/// Takes `pvc,pv`, `pvc NAME…` and `pvc/NAME` apart.
fn kinds_and_names(
    kind: &str,
    mut names: Vec<String>,
) -> Result<(Vec<String>, Vec<String>), UsageError> {
    let kinds: Vec<String> = match kind.split_once('/') {
        Some((kind, name)) if !name.is_empty() => {
            names.insert(0, name.to_owned());
            vec![kind.to_owned()]
        }
        Some(_) => return Err(UsageError::Other(format!("the name is missing in `{kind}`"))),
        None => kind.split(',').filter(|kind| !kind.is_empty()).map(str::to_owned).collect(),
    };
    if kinds.is_empty() {
        return Err(UsageError::Other("the kind is missing".into()));
    }
    if let Some(name) = names.iter().skip(1).find(|name| name.contains('/')) {
        return Err(UsageError::UnexpectedArgument {
            argument: name.clone(),
            advice: Some("give one KIND/NAME, or one KIND and several names".into()),
        });
    }
    Ok((kinds, names))
}

fn scope(namespace: Option<String>, all: bool) -> Result<Scope, UsageError> {
    match (namespace, all) {
        (Some(_), true) => Err(UsageError::Together(
            "--namespace and --all-namespaces cannot be used together".into(),
        )),
        (Some(name), false) => Ok(Scope::Namespace(name)),
        (None, true) => Ok(Scope::All),
        (None, false) => Ok(Scope::Current),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Output, Request};
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

    #[test]
    fn kubectl_forms_of_get() {
        assert_eq!(get("get pvc").scope, Scope::Current);
        assert_eq!(get("get pvc data x").names, ["data", "x"]);
        assert_eq!(get("get pvc/data").names, ["data"]);
        assert_eq!(get("get pvc,pv -A").kinds, ["pvc", "pv"]);
        for line in
            ["get pvc -n demo", "get pvc -n=demo", "get -ndemo pvc", "get --namespace=demo pvc"]
        {
            assert_eq!(get(line).scope, Scope::Namespace("demo".into()), "{line}");
        }
        for line in
            ["get pvc -o yaml", "get pvc -oyaml", "get pvc -o=yaml", "get pvc --output yaml"]
        {
            assert_eq!(get(line).output, Output::Yaml, "{line}");
        }
        let both = get("get pvc -Aw");
        assert!(both.watch && both.scope == Scope::All);
        assert!(!get("get pvc --watch=false").watch);
        assert_eq!(get("get pvc -l app=web").selector.as_deref(), Some("app=web"));
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
    fn refusals() {
        for (line, part) in [
            ("get", "<KIND> is required"),
            ("get pvc -o xml", "--output cannot be `xml`: it is one of yaml, json, name, wide"),
            ("get pvc -A -n x", "cannot be used together"),
            ("get pvc data -A", "cannot be used together with a name"),
            ("get pvc,pv -w", "one kind at a time"),
            ("get pvc/", "the name is missing"),
            ("get pvc/a pv/b", "give one KIND/NAME"),
            ("apply", "--filename <FILE> is required"),
            ("delete pvc", "by its name"),
            ("delete", "KIND NAME or -f FILE"),
            ("delete pvc x -f y", "either"),
            ("delete pvc x --timeout=5", "a duration is written as in Go"),
            ("logs", "<POD> is required"),
            ("logs web --since=5", "a duration is written as in Go"),
            ("logs web --since=5m --since-time=x", "cannot be used together"),
            ("exec", "<POD> is required"),
            ("exec web", "<COMMAND>... is required"),
            ("logs web --folow", "unknown flag --folow; did you mean --follow?"),
        ] {
            let sentence = request(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
