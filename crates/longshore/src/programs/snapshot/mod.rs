//! `longshore snapshot`: a snapshot leaves a pool as a file, and comes into another one.
//!
//! Without `--pool` it is a VolumeSnapshot of the instance here, whose pools its data directory names. With it, only the
//! pool is touched: that of any driver, with no server to ask.

mod export;
mod import;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use longshore_cluster::Api;
use longshore_core::model::{ObjectKey, keys::embedded};

use super::apiserver::DEFAULT_DATA_DIR;
use super::up::{NodeConfig, absolute, nodes_of};
use crate::cli::{Program, Syntax, Threads};
use crate::client::{Access, Session};
use crate::flags::{Logging, UsageError};
use crate::process::root;

/// Flags of `longshore snapshot`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// What to do.
    #[arg(value_enum, value_name = "WHAT")]
    what: What,
    /// Name of the VolumeSnapshot; with --pool, export takes the driver's handle of it.
    #[arg(value_name = "NAME")]
    name: String,
    /// The file; - is the standard output or input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Namespace of the VolumeSnapshot; that of the client configuration when unset.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// With import: class of the snapshot, whose driver gets it.
    #[arg(long, value_name = "NAME", default_value = embedded::LOCAL_SNAPSHOT_CLASS)]
    class: String,
    /// With import: the node whose local driver gets it; the first one when unset.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// The instance's data directory.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// A pool of any driver instead of those of the instance; no server is asked then.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["namespace", "node", "kubeconfig"])]
    pool: Option<PathBuf>,
    /// Client configuration; that in the data directory when unset.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Write a snapshot into a file.
    Export,
    /// Make a snapshot of a file.
    Import,
}

/// What `longshore snapshot` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    what: What,
    name: String,
    /// None is the standard output or input.
    file: Option<PathBuf>,
    at: At,
}

/// Where the snapshot is or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    Pool(PathBuf),
    Instance(Place),
}

/// An instance of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    data_dir: PathBuf,
    kubeconfig: PathBuf,
    namespace: Option<String>,
    class: String,
    node: Option<String>,
}

impl Program for Config {
    const NAME: &'static str = "snapshot";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str =
        "Write a snapshot into a file, or make one of a file, on any machine";
    const EXAMPLES: &'static str = "longshore snapshot export nightly nightly.snap\n  \
        longshore snapshot import nightly nightly.snap\n  \
        longshore snapshot export nightly - | ssh other longshore snapshot import nightly -";
    const SYNTAX: Syntax = Syntax::Kubectl;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { what, name, file, namespace, class, node, data_dir, pool, kubeconfig } = flags;
        let at = match pool {
            Some(pool) => At::Pool(absolute("--pool", pool)?),
            None => {
                let data_dir = absolute("--data-dir", data_dir)?;
                let kubeconfig = kubeconfig.unwrap_or_else(|| data_dir.join("kubeconfig"));
                At::Instance(Place { data_dir, kubeconfig, namespace, class, node })
            }
        };
        Ok(Self { what, name, file: Some(file).filter(|file| file.as_os_str() != "-"), at })
    }

    fn logging(&self) -> Option<&Logging> {
        None
    }

    async fn run(self) -> Result<()> {
        root::require("snapshot")?;
        let Self { what, name, file, at } = self;
        match what {
            What::Export => export::run(name, file, at).await,
            What::Import => import::run(name, file, at).await,
        }
    }
}

impl Place {
    /// The server, and the full name of a VolumeSnapshot.
    async fn reach(&self, name: &str) -> Result<(Api, ObjectKey)> {
        let session =
            Session::connect(&Access { kubeconfig: Some(self.kubeconfig.clone()) }).await?;
        let namespace = self.namespace.as_deref().unwrap_or(session.namespace());
        let key = ObjectKey::new(namespace, name);
        Ok((Api::new(session.client().clone()), key))
    }

    fn nodes(&self) -> Result<Vec<NodeConfig>> {
        let data_dir = self.data_dir.display();
        let nodes = nodes_of(&self.data_dir);
        let nodes = nodes.with_context(|| format!("cannot read which pools {data_dir} has"))?;
        anyhow::ensure!(
            !nodes.is_empty(),
            "no instance has run in {data_dir}; name another with --data-dir, or a pool with --pool"
        );
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn config(line: &str) -> Result<Config, String> {
        let command = Flags::augment_args(clap::Command::new("test").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split(' '));
        let matches = matches.map_err(|error| UsageError::from_clap(&error).to_string())?;
        let flags = Flags::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn an_instance_or_a_pool() {
        let read = config("export s - -n demo --data-dir /d").unwrap();
        let place = Place {
            data_dir: "/d".into(),
            kubeconfig: "/d/kubeconfig".into(),
            namespace: Some("demo".into()),
            class: "longshore-local".into(),
            node: None,
        };
        let (name, at) = ("s".to_owned(), At::Instance(place));
        assert_eq!(read, Config { what: What::Export, name, file: None, at });
        let read = config("import s file --pool /p").unwrap();
        assert_eq!((read.what, read.at), (What::Import, At::Pool("/p".into())));
        assert_eq!(read.file, Some("file".into()));
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_reason() {
        for (line, part) in [
            ("export s", "FILE"),
            ("copy s file", "copy"),
            ("export s file --pool /p -n demo", "--pool"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
