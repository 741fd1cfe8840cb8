//! The official programs: where they are, and how to get them.
//!
//! [`path`] only looks. [`build()`] makes what is missing from the pinned Go modules beside this crate,
//! into a cache directory outside the checkout. A program is looked for first in `$LONGSHORE_TOOLS`,
//! so a developer can bring another version, or one that cannot be pinned.

mod build;
mod go;
mod table;

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use sha2::{Digest as _, Sha256};

pub use build::build;
pub use table::KUBERNETES;
use table::Source;

/// A directory of the user's own binaries, looked at before the cache.
pub const BROUGHT: &str = "LONGSHORE_TOOLS";

/// A program that the tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tool {
    /// The store of the API server.
    Etcd,
    /// What restores the store from a snapshot.
    Etcdutl,
    /// The API server.
    KubeApiserver,
    /// The controllers of Kubernetes.
    KubeControllerManager,
    /// The scheduler of Kubernetes.
    KubeScheduler,
    /// The node agent of Kubernetes.
    Kubelet,
    /// The container runtime, newer than distributions have it.
    Containerd,
    /// The runtime's process beside each pod.
    ContainerdShim,
    /// The command line client, in the version with which transcripts were recorded.
    Kubectl,
    /// The command line client in its newest version.
    KubectlNext,
    /// The end-to-end suite of Kubernetes.
    E2eTest,
    /// The program in the end-to-end suite's image.
    Agnhost,
    /// The official provisioner sidecar.
    CsiProvisioner,
    /// The official resizer sidecar.
    CsiResizer,
    /// The official snapshot sidecar.
    CsiSnapshotter,
    /// The official snapshot controller.
    SnapshotController,
    /// The reference CSI driver.
    Hostpath,
    /// The CSI conformance suite.
    CsiSanity,
    /// What installs charts.
    Helm,
    /// The official attacher sidecar; cannot be pinned.
    CsiAttacher,
    /// The official liveness sidecar; cannot be pinned.
    Livenessprobe,
    /// The official registrar sidecar; cannot be pinned.
    NodeDriverRegistrar,
    /// The official volume health sidecar; cannot be pinned.
    HealthMonitor,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 23] = [
        Self::Etcd,
        Self::Etcdutl,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::Kubelet,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Kubectl,
        Self::KubectlNext,
        Self::E2eTest,
        Self::Agnhost,
        Self::CsiProvisioner,
        Self::CsiResizer,
        Self::CsiSnapshotter,
        Self::SnapshotController,
        Self::Hostpath,
        Self::CsiSanity,
        Self::Helm,
        Self::CsiAttacher,
        Self::Livenessprobe,
        Self::NodeDriverRegistrar,
        Self::HealthMonitor,
    ];

    /// The program's file name.
    #[must_use]
    pub const fn program(self) -> &'static str {
        table::entry(self).0
    }

    /// Whether a pinned module exists from which [`build()`] can make it.
    #[must_use]
    pub const fn pinned(self) -> bool {
        matches!(table::entry(self).1, Source::Module { .. })
    }

    /// The tool of that program name.
    ///
    /// # Errors
    /// When there is none; the message lists what there is.
    pub fn named(name: &str) -> Result<Self, ToolError> {
        let found = Self::ALL.into_iter().find(|tool| tool.program() == name);
        found.ok_or_else(|| ToolError::Unknown {
            name: name.to_owned(),
            known: Self::ALL.map(Self::program).join(" "),
        })
    }
}

/// Why a tool cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// There is no tool of that name.
    #[error("there is no tool {name:?}; there are {known}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The tool was never built.
    #[error("{program} is not built yet: run `cargo xtask real-kube build {program}`")]
    Missing {
        /// The program.
        program: &'static str,
    },
    /// The tool cannot be built.
    #[error(
        "{program} cannot be built: the Go module proxy does not serve its module, so it cannot be \
         pinned. Put a binary named {program} into a directory and set {BROUGHT} to that directory"
    )]
    Brought {
        /// The program.
        program: &'static str,
    },
    /// No Go that is recent enough, and none could be installed.
    #[error("no Go from {want} on: {why}. Install Go {want} or later and try again")]
    Go {
        /// The oldest version that will do.
        want: String,
        /// Why none could be had.
        why: String,
    },
    /// The compiler failed.
    #[error("building {program} in tests/real-kube/tools/{module} failed ({status}); see above")]
    Build {
        /// The program.
        program: &'static str,
        /// The module's directory.
        module: &'static str,
        /// How the compiler ended.
        status: std::process::ExitStatus,
    },
    /// A file or program cannot be used.
    #[error("{step} {}: {source}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn failed<'a>(step: &'static str, path: &'a Path) -> impl Fn(io::Error) -> ToolError + use<'a> {
    move |source| ToolError::Io { step, path: path.to_owned(), source }
}

/// The program's file. Never builds.
///
/// # Errors
/// When it is neither in `$LONGSHORE_TOOLS` nor in the cache; the message says what to do.
pub fn path(tool: Tool) -> Result<PathBuf, ToolError> {
    if let Some(file) = brought(tool, env::var_os(BROUGHT).map(PathBuf::from)) {
        return Ok(file);
    }
    let program = tool.program();
    let Some(file) = cached(tool, &cache_dir())? else {
        return Err(ToolError::Brought { program });
    };
    if file.is_file() { Ok(file) } else { Err(ToolError::Missing { program }) }
}

/// For tests: true when all tools are there. Otherwise one visible line says what is missing.
///
/// # Panics
/// With `LONGSHORE_TEST_STRICT=1`, when a tool is missing.
#[must_use]
pub fn need(tools: &[Tool]) -> bool {
    let missing: Vec<String> =
        tools.iter().filter_map(|tool| path(*tool).err()).map(|error| error.to_string()).collect();
    if missing.is_empty() {
        return true;
    }
    let thread = std::thread::current();
    let text = format!("SKIPPED {}: {}", thread.name().unwrap_or("test"), missing.join("; "));
    let strict = env::var("LONGSHORE_TEST_STRICT").is_ok_and(|value| value == "1");
    assert!(!strict, "{text} (LONGSHORE_TEST_STRICT=1 makes a skip a failure)");
    eprintln!("{text}");
    false
}

/// Where built tools are kept: `longshore-tools` in the user's cache directory.
#[must_use]
pub fn cache_dir() -> PathBuf {
    let home = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    home.unwrap_or_else(env::temp_dir).join("longshore-tools")
}

fn brought(tool: Tool, dir: Option<PathBuf>) -> Option<PathBuf> {
    let file = dir?.join(tool.program());
    file.is_file().then_some(file)
}

/// Where the cache keeps the program, if it can be built at all.
fn cached(tool: Tool, cache: &Path) -> Result<Option<PathBuf>, ToolError> {
    let (program, source) = table::entry(tool);
    let Source::Module { module, .. } = source else { return Ok(None) };
    let key = key(tool, &module_dir(module))?;
    Ok(Some(cache.join(format!("{module}-{key}")).join(program)))
}

/// The Go module's directory in the checkout.
fn module_dir(module: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(module)
}

/// Names a build: another version, other flags or another main program give another key.
fn key(tool: Tool, dir: &Path) -> Result<String, ToolError> {
    let entries = fs::read_dir(dir).map_err(failed("cannot read", dir))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut hash = Sha256::new();
    for file in files.iter().filter(|file| is_source(file)) {
        let bytes = fs::read(file).map_err(failed("cannot read", file))?;
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    }
    hash.update(format!("{:?}", table::entry(tool)));
    hash.update(build::FLAGS.join(" "));
    Ok(hex::encode(&hash.finalize()[..6]))
}

fn is_source(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name == "go.mod" || name == "go.sum" || name.ends_with(".go")
}

#[cfg(test)]
mod tests;
