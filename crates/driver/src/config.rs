//! What a driver runs on: checked once when it opens, never doubted afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fault::Faults;

use crate::freeze::HolderProgram;

/// Which of the two drivers a process is. Attach and topology are properties of a driver, not of
/// a volume, so the two kinds carry two names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverKind {
    /// Pools that only this node sees: topology, no controller publish.
    Local,
    /// Pools that every node sees: recorded exclusive attachment, no topology.
    Shared,
}

impl DriverKind {
    /// The driver name used when none is given.
    #[must_use]
    pub fn default_driver_name(self) -> &'static str {
        match self {
            Self::Local => "local.csi.longshore.dev",
            Self::Shared => "shared.csi.longshore.dev",
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Shared => "shared",
        })
    }
}

impl FromStr for DriverKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "local" => Ok(Self::Local),
            "shared" => Ok(Self::Shared),
            _ => Err(format!("driver kind {text:?} is not one of local, shared")),
        }
    }
}

/// Which CSI services a process offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Controller and node services together.
    All,
    /// Identity and controller only.
    Controller,
    /// Identity and node only.
    Node,
}

impl Mode {
    /// Whether the controller service is offered.
    #[must_use]
    pub fn controller(self) -> bool {
        matches!(self, Self::All | Self::Controller)
    }

    /// Whether the node service is offered.
    #[must_use]
    pub fn node(self) -> bool {
        matches!(self, Self::All | Self::Node)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Controller => "controller",
            Self::Node => "node",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "controller" => Ok(Self::Controller),
            "node" => Ok(Self::Node),
            _ => Err(format!("driver mode {text:?} is not one of all, controller, node")),
        }
    }
}

/// A filesystem this driver can make and mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    Ext4,
    Xfs,
    /// Btrfs, one device, one volume.
    Btrfs,
}

impl FsType {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The name the kernel and Kubernetes use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The smallest image a filesystem of this type fits in.
    #[must_use]
    pub fn minimum_bytes(self) -> u64 {
        match self {
            // One MiB is too small for a journal, and without one a crash may cost files.
            Self::Ext4 => 2 << 20,
            // mkfs.xfs refuses less, and smaller ones made by force do not perform.
            Self::Xfs => 300 << 20,
            Self::Btrfs => 114 << 20,
        }
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FsType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            "btrfs" => Ok(Self::Btrfs),
            _ => Err(format!("filesystem {text:?} is not supported; supported: ext4, xfs, btrfs")),
        }
    }
}

/// A directory that holds volumes, and the name classes choose it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Value of the class parameter `pool`.
    pub name: String,
    /// The directory; made with mode 0700 when it is missing.
    pub dir: PathBuf,
    /// Most bytes that volumes may reserve; the size of the filesystem when unset.
    pub limit_bytes: Option<u64>,
}

/// Name of the pool a class gets when it asks for none and no pool was named.
pub const DEFAULT_POOL: &str = "default";

impl PoolConfig {
    /// A pool without a limit of its own.
    pub fn new(name: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), dir: dir.into(), limit_bytes: None }
    }
}

impl FromStr for PoolConfig {
    type Err = String;

    /// Reads the flag form `[NAME=]DIR`.
    fn from_str(text: &str) -> Result<Self, String> {
        // A path may hold `=` too: only what looks like a name before it counts as one.
        let (name, dir) = match text.split_once('=') {
            Some((name, dir)) if !name.contains('/') => (name, dir),
            _ => (DEFAULT_POOL, text),
        };
        if name.is_empty() || dir.is_empty() {
            return Err(format!("pool {text:?} is not of the form [NAME=]DIR"));
        }
        Ok(Self::new(name, dir))
    }
}

/// Everything a driver needs to know.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Which of the two drivers this is.
    pub kind: DriverKind,
    /// CSI driver name; also the base of the topology key.
    pub driver_name: String,
    pub node_id: String,
    /// What else is to be known about where the node is, for instance its zone (`local`).
    pub topology: BTreeMap<String, String>,
    /// The pools; the first is used when a class names none.
    pub pools: Vec<PoolConfig>,
    /// Services offered by this process.
    pub mode: Mode,
    /// Most volumes one node takes; 0 leaves it to the caller.
    pub max_volumes: u32,
    /// Filesystem made when a request names none.
    pub default_fstype: FsType,
    /// How often free space may be promised; 1 promises each byte once.
    pub overcommit: f64,
    /// What tests do between the steps of a call.
    pub faults: Faults,
    /// How long writers of a volume may be held up while its data is copied.
    pub copy_budget: Duration,
    /// The program that holds a filesystem frozen while it is copied. Without one, only volumes
    /// that nothing has mounted can be copied.
    pub freeze_holder: Option<HolderProgram>,
}

/// Value of [`DriverConfig::copy_budget`] when nothing else is said.
pub const DEFAULT_COPY_BUDGET: Duration = Duration::from_secs(5);

impl DriverConfig {
    /// A configuration with the documented defaults and no pool yet.
    pub fn new(kind: DriverKind, node_id: impl Into<String>) -> Self {
        Self {
            kind,
            driver_name: kind.default_driver_name().to_owned(),
            node_id: node_id.into(),
            topology: BTreeMap::new(),
            pools: Vec::new(),
            mode: Mode::All,
            max_volumes: 128,
            default_fstype: FsType::Ext4,
            overcommit: 1.0,
            faults: Faults::NONE,
            copy_budget: DEFAULT_COPY_BUDGET,
            freeze_holder: None,
        }
    }

    /// Key under which a `local` driver names its node.
    #[must_use]
    pub fn topology_key(&self) -> String {
        format!("topology.{}/node", self.driver_name)
    }

    /// Checks every field, naming the first that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !is_driver_name(&self.driver_name) {
            return Err(ConfigError::DriverName(self.driver_name.clone()));
        }
        // The key's prefix has the same limit as the name itself (CSI topology rules).
        if self.kind == DriverKind::Local && "topology.".len() + self.driver_name.len() > 63 {
            return Err(ConfigError::DriverName(self.driver_name.clone()));
        }
        if !is_label(&self.node_id, 63, "-_.") {
            return Err(ConfigError::NodeId(self.node_id.clone()));
        }
        self.validate_topology()?;
        if self.pools.is_empty() {
            return Err(ConfigError::NoPool);
        }
        let (mut names, mut dirs) = (BTreeSet::new(), BTreeSet::new());
        for pool in &self.pools {
            if !is_label(&pool.name, 63, "-_.") {
                return Err(ConfigError::PoolName(pool.name.clone()));
            }
            if !names.insert(&pool.name) || !dirs.insert(&pool.dir) {
                return Err(ConfigError::PoolTwice(pool.name.clone(), pool.dir.clone()));
            }
        }
        if self.copy_budget.is_zero() {
            return Err(ConfigError::CopyBudget);
        }
        if !(self.overcommit.is_finite() && self.overcommit >= 1.0) {
            return Err(ConfigError::Overcommit(self.overcommit));
        }
        Ok(())
    }
}

impl DriverConfig {
    fn validate_topology(&self) -> Result<(), ConfigError> {
        let bad = |key: &str, why| Err(ConfigError::Topology(key.to_owned(), why));
        let mut seen = BTreeSet::from([self.topology_key().to_ascii_lowercase()]);
        for (key, value) in &self.topology {
            let (prefix, name) = key.split_once('/').unwrap_or((TOPOLOGY_PREFIX, key));
            if self.kind == DriverKind::Shared {
                return bad(key, "volumes of a shared driver are everywhere");
            }
            if !is_label(prefix, 63, "-.") || !is_label(name, 63, "-_.") {
                return bad(key, "the key must be a name, or a domain, a slash and a name");
            }
            if !is_label(value, 63, "-_.") {
                return bad(key, "the value must be 1 to 63 letters, digits, '-', '_' or '.'");
            }
            if !seen.insert(key.to_ascii_lowercase()) {
                return bad(key, "the key is given twice, or is the driver's own");
            }
        }
        Ok(())
    }
}

/// Stands for the missing part of a key.
const TOPOLOGY_PREFIX: &str = "none";

/// A setting that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The driver name breaks the CSI name rule.
    #[error("driver name {0:?} must be a domain name of at most 63 characters (54 for kind local)")]
    DriverName(String),
    /// The node id cannot be a topology value.
    #[error(
        "node id {0:?} must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    )]
    NodeId(String),
    /// A topology segment breaks the CSI rules, or is not allowed here.
    #[error("topology {0:?}: {1}")]
    Topology(String, &'static str),
    /// No pool was given.
    #[error("at least one pool is needed")]
    NoPool,
    /// The pool name is not a plain label.
    #[error(
        "pool name {0:?} must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    )]
    PoolName(String),
    /// Two pools share a name or a directory.
    #[error("pool {0} ({1}) is given twice, by name or by directory")]
    PoolTwice(String, PathBuf),
    /// No time to copy anything.
    #[error("the copy budget must be longer than nothing")]
    CopyBudget,
    /// The ratio promises less than there is, or is no number.
    #[error("overcommit {0} must be a number of at least 1")]
    Overcommit(f64),
}

fn is_driver_name(name: &str) -> bool {
    is_label(name, 63, "-.")
}

/// Letters and digits, `inner` characters except at both ends, at most `most` bytes.
fn is_label(text: &str, most: usize, inner: &str) -> bool {
    let alnum = |c: char| c.is_ascii_alphanumeric();
    !text.is_empty()
        && text.len() <= most
        && text.starts_with(alnum)
        && text.ends_with(alnum)
        && text.chars().all(|c| alnum(c) || inner.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> DriverConfig {
        DriverConfig {
            pools: vec![PoolConfig::new("default", "/p")],
            ..DriverConfig::new(DriverKind::Local, "node-1")
        }
    }

    #[test]
    fn bad_settings_are_named() {
        type Change = fn(&mut DriverConfig);
        fn at(config: &mut DriverConfig, key: &str, value: &str) {
            config.topology.insert(key.to_owned(), value.to_owned());
        }
        let cases: [(&str, Change, &str); 15] = [
            ("slash twice", |c| at(c, "a/b/c", "z"), "a domain, a slash and a name"),
            ("no value", |c| at(c, "zone", ""), "the value must be"),
            ("own key", |c| at(c, "Topology.local.csi.longshore.dev/node", "x"), "own"),
            (
                "key twice",
                |c| {
                    at(c, "example.com/zone", "x");
                    at(c, "example.com/Zone", "x");
                },
                "twice",
            ),
            (
                "everywhere",
                |c| {
                    c.kind = DriverKind::Shared;
                    at(c, "zone", "x");
                },
                "shared driver",
            ),
            ("no time", |c| c.copy_budget = Duration::ZERO, "copy budget"),
            ("empty name", |c| c.driver_name.clear(), "driver name"),
            ("slash in name", |c| c.driver_name = "a/b".into(), "driver name"),
            ("too long for a key", |c| c.driver_name = "a".repeat(60), "driver name"),
            ("empty node", |c| c.node_id.clear(), "node id"),
            ("dot at the end", |c| c.node_id = "a.".into(), "node id"),
            ("no pool", |c| c.pools.clear(), "at least one pool"),
            ("pool with slash", |c| c.pools[0].name = "../x".into(), "pool name"),
            ("pool twice", |c| c.pools.push(PoolConfig::new("other", "/p")), "given twice"),
            ("half promised", |c| c.overcommit = 0.5, "overcommit"),
        ];
        config().validate().unwrap();
        for (name, change, want) in cases {
            let mut config = config();
            change(&mut config);
            let error = config.validate().expect_err(name).to_string();
            assert!(error.contains(want), "{name}: {error}");
        }
    }

    #[test]
    fn pool_flag() {
        let cases = [
            ("/a/b", Some(("default", "/a/b"))),
            ("fast=/a/b", Some(("fast", "/a/b"))),
            ("/a=b/c", Some(("default", "/a=b/c"))),
            ("=/a", None),
            ("fast=", None),
            ("", None),
        ];
        for (text, want) in cases {
            let got = text.parse::<PoolConfig>().ok();
            assert_eq!(got, want.map(|(name, dir)| PoolConfig::new(name, dir)), "{text:?}");
        }
    }

    #[test]
    fn topology_key_follows_the_driver_name() {
        assert_eq!(config().topology_key(), "topology.local.csi.longshore.dev/node");
    }
}
