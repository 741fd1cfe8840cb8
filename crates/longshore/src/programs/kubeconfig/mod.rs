//! `longshore kubeconfig`: shows the client configuration of an instance, or puts it into the user's own.

mod edit;
mod merge;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::apiserver::DEFAULT_DATA_DIR;
use super::up::absolute;
use crate::cli::{self, Program, Syntax, Threads};
use crate::flags::{Logging, UsageError};
use merge::Merge;

/// Flags of `longshore kubeconfig`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// What to do; the contents are printed when nothing is said.
    #[arg(value_enum, value_name = "WHAT")]
    what: Option<What>,
    /// The instance's data directory.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Another name or address of the server than 127.0.0.1, for other machines; the port stays unless given.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = server)]
    server: Option<(String, Option<u16>)>,
    /// The file to merge into; ~/.kube/config when unset.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Name of the context, the cluster and the user in that file.
    #[arg(long, value_name = "NAME", default_value = "longshore", value_parser = name)]
    context: String,
    /// Make it the current context, too. The first context of a file is the current one anyway.
    #[arg(long)]
    set_current: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Print where the file is.
    Path,
    /// Put it into ~/.kube/config, or the file that --into names.
    Merge,
}

/// What `longshore kubeconfig` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kubeconfig {
    data_dir: PathBuf,
    server: Option<(String, Option<u16>)>,
    task: Task,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Task {
    Print,
    Path,
    Merge(Merge),
}

impl Program for Kubeconfig {
    const NAME: &'static str = "kubeconfig";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str =
        "Print the kubeconfig of the instance here, or merge it into ~/.kube/config";
    const EXAMPLES: &'static str = "longshore kubeconfig merge --set-current\n  longshore kubeconfig --server box.example.org > for-a-colleague";
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { what, data_dir, server, into, context, set_current } = flags;
        let data_dir = absolute("--data-dir", data_dir)?;
        let task = match what {
            Some(What::Merge) => {
                let into = into.map_or_else(default_file, |file| absolute("--into", file))?;
                Task::Merge(Merge { into, name: context, set_current })
            }
            _ if into.is_some() || set_current => {
                let text = "--into and --set-current go with `longshore kubeconfig merge`";
                return Err(UsageError::Together(text.to_owned()));
            }
            Some(What::Path) => Task::Path,
            None => Task::Print,
        };
        Ok(Self { data_dir, server, task })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> Result<()> {
        let file = self.data_dir.join("kubeconfig");
        let text = read(&file)?;
        let text = match &self.server {
            Some((host, port)) => with_server(&text, host, *port)
                .with_context(|| format!("{} does not say where the server is", file.display()))?,
            None => text,
        };
        match self.task {
            Task::Path => cli::print(&format!("{}\n", file.display())),
            Task::Print => cli::print(&text),
            Task::Merge(merge) => cli::print(&format!("{}\n", merge.run(&text, &self.data_dir)?)),
        }
    }
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| {
        let next = match error.kind() {
            std::io::ErrorKind::NotFound => "start `longshore up`, or name its --data-dir",
            std::io::ErrorKind::PermissionDenied => "it is root's; use sudo",
            _ => "see whether the file can be read",
        };
        anyhow::anyhow!("cannot read {}: {error}; {next}", file.display())
    })
}

/// The same configuration with another server. The port stays unless it is given.
fn with_server(text: &str, host: &str, port: Option<u16>) -> Option<String> {
    const KEY: &str = "server: https://";
    let (before, rest) = text.split_once(KEY)?;
    let (old, after) = rest.split_once('\n')?;
    let port = port.or_else(|| old.rsplit_once(':')?.1.parse().ok())?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Some(format!("{before}{KEY}{host}:{port}\n{after}"))
}

/// Reads `HOST`, `HOST:PORT` or the URL of these.
fn server(text: &str) -> Result<(String, Option<u16>), String> {
    let wrong = || "it is HOST, HOST:PORT or https://HOST:PORT".to_owned();
    let text = text.strip_prefix("https://").unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    if let Ok(address) = text.parse::<std::net::IpAddr>() {
        return Ok((address.to_string(), None));
    }
    if let Ok(address) = text.parse::<std::net::SocketAddr>() {
        return Ok((address.ip().to_string(), Some(address.port())));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    super::listen::tls_san(host).map_err(|_| wrong())?;
    Ok((host.to_owned(), port))
}

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err("a name has letters, digits, -, _, . and @ only".to_owned())
}

fn default_file() -> Result<PathBuf, UsageError> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| {
        UsageError::Other("$HOME is not set; name the file to merge into with --into".to_owned())
    })?;
    absolute("--into", PathBuf::from(home).join(".kube/config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_replaced_and_its_port_stays() {
        let text = "clusters:\n- cluster:\n    server: https://127.0.0.1:6443\n    x: y\n";
        for (host, port, shown) in [
            ("box.lan", None, "https://box.lan:6443\n    x: y"),
            ("::1", Some(1), "https://[::1]:1\n"),
        ] {
            let found = with_server(text, host, port).unwrap();
            assert!(found.contains(shown), "{found}");
        }
        assert_eq!(with_server("clusters: []\n", "a", None), None);
        assert_eq!(server("https://box:7/"), Ok(("box".to_owned(), Some(7))));
        assert_eq!(server("fe80::1"), Ok(("fe80::1".to_owned(), None)));
        for bad in ["", "a b", "box:x", "http://box"] {
            server(bad).expect_err(bad);
        }
    }
}
