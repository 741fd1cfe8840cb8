//! The real Kubernetes programs as a test fixture.
//!
//! [`tools`] finds and builds the programs; [`Cluster`] runs them on free loopback ports in a
//! temporary directory. Several clusters can run at once. A cluster ends with the value that stands
//! for it, and with the process that started it, however that process ends.
//!
//! ```no_run
//! use longshore_real_kube::{Cluster, Options};
//!
//! # fn main() -> anyhow::Result<()> {
//! let cluster = Cluster::start(&Options { rbac: true, ..Options::default() })?;
//! let pods = cluster.kubectl(&["get", "pods", "--all-namespaces"])?;
//! println!("{}", String::from_utf8_lossy(&pods.stdout));
//! cluster.stop()?;
//! # Ok(())
//! # }
//! ```

pub mod chart;
pub mod cluster;
pub mod drivers;
mod http;
mod keeper;
pub mod node;
pub mod pki;
mod ports;
mod process;
mod program;
pub mod state;
mod sweep;
pub mod tools;

use std::env;
use std::path::PathBuf;

pub use cluster::{Cluster, Controllers, Options, kubectl_with_input};
pub use process::Process;
pub use program::{Interrupt, Lifetime, Program};

/// The `longshore` binary of this checkout: `$LONGSHORE_BIN`, or the one in the directory where
/// the running test was built.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn longshore() -> PathBuf {
    if let Some(file) = env::var_os("LONGSHORE_BIN") {
        return PathBuf::from(file);
    }
    match beside("longshore") {
        Some(file) => file,
        None => panic!(
            "the longshore binary is not built: run `cargo build --package longshore`, or set \
             LONGSHORE_BIN"
        ),
    }
}

/// A binary of this workspace, in the directory where the running program or test was built.
#[must_use]
pub fn beside(name: &str) -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    // A test is in `deps` below the directory of the binaries.
    let dir = exe.parent()?;
    let dir = if dir.ends_with("deps") { dir.parent()? } else { dir };
    Some(dir.join(name)).filter(|file| file.is_file())
}
