//! `longshore driver`: the CSI drivers `local` and `shared`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use longshore_cluster::shutdown;
use longshore_driver::freeze::HolderProgram;
use longshore_driver::{Driver, DriverConfig, FsType};

use super::internal;
use super::pool::{self, Pool};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, Logging, UsageError, values};
use crate::process::root;

/// Which of the two drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Volumes of one node.
    Local,
    /// Volumes in a directory that all nodes see.
    Shared,
}

impl Kind {
    /// The driver's name unless `--driver-name` gives another.
    #[must_use]
    fn default_name(self) -> &'static str {
        match self {
            Self::Local => "local.csi.longshore.dev",
            Self::Shared => "shared.csi.longshore.dev",
        }
    }
}

/// Which services a driver process offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Mode {
    /// Controller and node.
    All,
    /// The controller service.
    Controller,
    /// The node service.
    Node,
}

/// Flags of `longshore driver`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Socket to serve on (required).
    #[arg(long, value_name = "unix:///PATH", value_parser = values::socket)]
    endpoint: Option<PathBuf>,
    /// Id of the node this driver runs on (required).
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,
    /// Which driver to be.
    #[arg(long, value_enum, default_value = "local")]
    kind: Kind,
    /// Name of the driver; local.csi.longshore.dev or shared.csi.longshore.dev when unset.
    #[arg(long, value_name = "NAME")]
    driver_name: Option<String>,
    /// What else is known about where the node is, for instance `topology.kubernetes.io/zone=a`; the
    /// node itself is always named (kind local; may be repeated).
    #[arg(long, value_name = "KEY=VALUE")]
    topology: Vec<String>,
    /// A directory for volumes, named `default` unless a name is given (required; may be repeated).
    #[arg(long, value_name = "[NAME=]DIR")]
    pool: Vec<String>,
    /// Which services to offer.
    #[arg(long, value_enum, default_value = "all")]
    mode: Mode,
    /// How many volumes one node can hold; 0 is no limit.
    #[arg(long, default_value = "128", value_parser = values::count, value_name = "N")]
    max_volumes: u32,
    /// File system when neither class nor volume names one.
    #[arg(long, default_value = "ext4", value_name = "TYPE")]
    default_fstype: String,
    /// How much may be promised for each byte of the pool.
    #[arg(long, default_value = "1", value_name = "RATIO")]
    overcommit: f64,
    /// How long writers may be held up while a volume in use is copied for a snapshot or clone.
    #[arg(long, default_value = "5s", value_parser = values::positive_duration, value_name = "TIME")]
    copy_budget: Duration,
}

/// What a driver runs on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub logging: Logging,
    /// Socket to serve on.
    pub endpoint: PathBuf,
    /// Id of the node.
    pub node_id: String,
    pub kind: Kind,
    pub driver_name: String,
    /// Where the node is, beside the node itself.
    pub topology: BTreeMap<String, String>,
    /// At least one.
    pub pools: Vec<Pool>,
    pub mode: Mode,
    /// Volumes per node; none is no limit.
    pub max_volumes: Option<u32>,
    /// File system when nothing else names one.
    pub default_fstype: FsType,
    /// Promise per byte of pool, at least 1.
    pub overcommit: f64,
    /// How long a copy may hold up writers.
    pub copy_budget: Duration,
}

impl Program for Config {
    const NAME: &'static str = "driver";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Serve a CSI driver with volumes in directories of this machine";
    const EXAMPLES: &'static str =
        "longshore driver --endpoint unix:///run/csi.sock --node-id n1 --pool /srv/volumes";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::Many;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            endpoint,
            node_id,
            kind,
            driver_name,
            topology,
            pool,
            mode,
            max_volumes,
            default_fstype,
            overcommit,
            copy_budget,
        } = flags;
        let required = |flag, why| UsageError::Required { flag, why };
        let pools = pool.iter().map(|text| pool::read(text)).collect::<Result<Vec<_>, _>>()?;
        if pools.is_empty() {
            return Err(required("--pool", "volumes are kept there"));
        }
        if !(overcommit >= 1.0 && overcommit.is_finite()) {
            return Err(UsageError::bad_value(
                "--overcommit",
                overcommit,
                "it is a number of at least 1",
            ));
        }
        let driver_name = driver_name.unwrap_or_else(|| kind.default_name().to_owned());
        Ok(Self {
            logging: Logging::try_from(common)?,
            endpoint: endpoint.ok_or_else(|| required("--endpoint", "the driver listens there"))?,
            node_id: node_id
                .filter(|id| !id.is_empty())
                .ok_or_else(|| required("--node-id", "it tells nodes apart"))?,
            kind,
            driver_name: checked_name(driver_name)?,
            topology: segments(&topology, kind)?,
            pools: pool::distinct(pools)?,
            mode,
            max_volumes: Some(max_volumes).filter(|count| *count > 0),
            default_fstype: file_system(&default_fstype)?,
            overcommit,
            copy_budget,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run(self).await
    }
}

impl Config {
    /// What the driver is opened with.
    fn driver_config(self) -> DriverConfig {
        let kind = match self.kind {
            Kind::Local => longshore_driver::DriverKind::Local,
            Kind::Shared => longshore_driver::DriverKind::Shared,
        };
        let pool = |pool: Pool| longshore_driver::PoolConfig::new(pool.name, pool.dir);
        DriverConfig {
            kind,
            driver_name: self.driver_name,
            node_id: self.node_id,
            topology: self.topology,
            pools: self.pools.into_iter().map(pool).collect(),
            mode: match self.mode {
                Mode::All => longshore_driver::Mode::All,
                Mode::Controller => longshore_driver::Mode::Controller,
                Mode::Node => longshore_driver::Mode::Node,
            },
            max_volumes: self.max_volumes.unwrap_or(0),
            default_fstype: self.default_fstype,
            overcommit: self.overcommit,
            faults: crate::process::faults::of_driver(),
            copy_budget: self.copy_budget,
            freeze_holder: Some(freeze_holder()),
        }
    }
}

/// This program, as the holder of a frozen filesystem. Named so that it is found even when its
/// file was replaced meanwhile.
#[must_use]
pub(super) fn freeze_holder() -> HolderProgram {
    HolderProgram {
        program: "/proc/self/exe".into(),
        args: vec![internal::FREEZE_HOLDER.to_owned()],
    }
}

/// The parts of a place, each named once.
fn segments(given: &[String], kind: Kind) -> Result<BTreeMap<String, String>, UsageError> {
    let bad = |text: &str, why| UsageError::bad_value("--topology", text, why);
    let mut segments = BTreeMap::new();
    for text in given {
        if kind == Kind::Shared {
            return Err(bad(text, "volumes of a shared driver are everywhere"));
        }
        let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
        let (key, value) = pair.ok_or_else(|| bad(text, "it is of the form KEY=VALUE"))?;
        if segments.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(bad(text, "its key is given twice"));
        }
    }
    Ok(segments)
}

/// A file system that the driver can make.
fn file_system(name: &str) -> Result<FsType, UsageError> {
    name.parse().map_err(|why: String| UsageError::bad_value("--default-fstype", name, why))
}

/// CSI's rule for driver names: up to 63 characters in domain-name notation.
fn checked_name(name: String) -> Result<String, UsageError> {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let valid = (1..=63).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
    if valid {
        return Ok(name);
    }
    let why = "a driver name has up to 63 letters, digits, - and ., and begins and ends with a letter or digit";
    Err(UsageError::bad_value("--driver-name", name, why))
}

/// `longshore driver`.
async fn run(config: Config) -> anyhow::Result<()> {
    root::require("driver")?;
    config.pools.iter().try_for_each(|pool| pool::check_parent("--pool", &pool.dir))?;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let endpoint = config.endpoint.clone();
    let config = config.driver_config();
    let opened = tokio::task::spawn_blocking(|| Driver::open(config)).await?;
    longshore_driver::serve(&opened?, &endpoint, signal).await.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        flags::<Flags>(line, &[])
            .and_then(|flags| Config::from_flags(flags).map_err(|error| error.to_string()))
    }

    #[test]
    fn defaults_and_values() {
        let plain = config("--endpoint unix:///s --node-id n --pool /p").unwrap();
        assert_eq!(plain.driver_name, "local.csi.longshore.dev");
        assert_eq!(plain.pools, [Pool { name: "default".into(), dir: "/p".into() }]);
        assert_eq!((plain.max_volumes, plain.mode), (Some(128), Mode::All));
        assert_eq!(plain.default_fstype, FsType::Ext4);
        assert_eq!(plain.copy_budget, longshore_driver::config::DEFAULT_COPY_BUDGET);
        assert!(plain.driver_config().validate().is_ok());
        let zoned = config(
            "--endpoint /s --node-id n --pool /p --topology example.com/zone=a --topology rack=2",
        )
        .unwrap();
        assert_eq!(zoned.topology["example.com/zone"], "a");
        assert!(zoned.driver_config().validate().is_ok());
        let shared = config(
            "--endpoint /s --node-id n --kind shared --pool fast=/p --pool=/a=b --mode=node --max-volumes 0 --overcommit 2.5 --default-fstype xfs",
        )
        .unwrap();
        assert_eq!(shared.driver_name, "shared.csi.longshore.dev");
        assert_eq!(shared.pools[1], Pool { name: "default".into(), dir: "/a=b".into() });
        assert_eq!((shared.max_volumes, shared.mode), (None, Mode::Node));
        assert_eq!(shared.default_fstype, FsType::Xfs);
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("--node-id n --pool /p", "--endpoint is required"),
            ("--endpoint /s --pool /p", "--node-id is required"),
            ("--endpoint /s --node-id n", "--pool is required"),
            (
                "--endpoint /s --node-id n --pool /p --kind remote",
                "--kind cannot be `remote`: it is one of local, shared",
            ),
            ("--endpoint /s --node-id n --pool /p --default-fstype ntfs", "supported: ext4, xfs"),
            ("--endpoint /s --node-id n --pool /p --overcommit 0.5", "at least 1"),
            ("--endpoint /s --node-id n --pool /p --driver-name a/b", "a driver name has"),
            ("--endpoint /s --node-id n --pool /p --topology zone", "of the form KEY=VALUE"),
            ("--endpoint /s --node-id n --pool /p --topology z=a --topology z=b", "given twice"),
            ("--endpoint /s --node-id n --pool /p --kind shared --topology z=a", "everywhere"),
            ("--endpoint tcp://x:1 --node-id n --pool /p", "only a path or unix:///path"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
