//! The driver as a whole: its pools, its locks, and what starts it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use longshore_csi::server::{self, Listener, Routes};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::{ConfigError, DriverConfig, DriverKind};
use crate::id::VolumeId;
use crate::locks::Locks;
use crate::node::left::LeftDevice;
use crate::pool::record::Record;
use crate::pool::{Pool, PoolError, Role};
use crate::quiesce::{self, server::QuiesceServer};
use crate::refusal::Refusal;

/// Why a driver did not start or did not keep running.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A pool could not be opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What an earlier run left could not be settled.
    #[error("cannot settle what an earlier run left: {0}")]
    Settle(#[source] Refusal),
    /// The endpoint is not a unix socket.
    #[error("endpoint {0:?} is not of the form unix:///absolute/path")]
    Endpoint(String),
    /// The socket could not be taken.
    #[error(transparent)]
    Bind(#[from] server::BindError),
    #[error(transparent)]
    Serve(#[from] server::ServeError),
    /// The process is short of threads or memory.
    #[error("the driver could not be opened: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// One CSI driver. Clones are handles to the same driver.
#[derive(Debug, Clone)]
pub struct Driver {
    pub(crate) inner: Arc<Inner>,
}

/// What all calls share. Methods block; see [`crate::service`] for the asynchronous side.
#[derive(Debug)]
pub(crate) struct Inner {
    pub config: DriverConfig,
    pub pools: Vec<Pool>,
    pub locks: Locks,
    /// Volumes attached to each node, as recorded; only the controller changes them.
    pub attached: Mutex<HashMap<String, BTreeSet<VolumeId>>>,
    /// Through these, controllers in other processes quiesce volumes of this node.
    pub quiesce_servers: Mutex<Vec<QuiesceServer>>,
}

impl Driver {
    /// Checks the settings, opens the pools, and rebuilds the truth from disk, loop devices and
    /// mounts: half-done changes are finished or undone, stale notes of staging are dropped, and
    /// loop devices that nothing uses are detached. Blocks.
    pub fn open(config: DriverConfig) -> Result<Self, DriverError> {
        config.validate()?;
        let role = Role {
            controller: config.mode.controller(),
            exclusive: config.kind == DriverKind::Local
                && config.mode.controller()
                && config.mode.node(),
            elsewhere: config.kind == DriverKind::Shared,
            node_id: &config.node_id,
            overcommit: config.overcommit,
            faults: &config.faults,
        };
        let mut pools = Vec::with_capacity(config.pools.len());
        for pool in &config.pools {
            pools.push(Pool::open(pool, role)?);
        }
        let inner = Inner {
            config,
            pools,
            locks: Locks::default(),
            attached: Mutex::default(),
            quiesce_servers: Mutex::default(),
        };
        if inner.config.mode.node() {
            inner.settle_node().map_err(DriverError::Settle)?;
        }
        if inner.config.mode.controller() {
            inner.settle_groups().map_err(DriverError::Settle)?;
        }
        if inner.config.mode.controller() && inner.config.kind == DriverKind::Shared {
            inner.count_attachments().map_err(DriverError::Settle)?;
        }
        let inner = Arc::new(inner);
        quiesce::server::open(&inner);
        Ok(Self { inner })
    }

    /// The settings it runs on.
    #[must_use]
    pub fn config(&self) -> &DriverConfig {
        &self.inner.config
    }

    /// The CSI services of its mode, to be served on a socket or in memory.
    #[must_use]
    pub fn services(&self) -> Routes {
        crate::service::routes(self)
    }

    /// Detaches loop devices of our volumes that nothing uses, for instance after a crash
    /// between two steps, and returns how many. Staged volumes are left alone. Blocks.
    pub fn cleanup_orphans(&self) -> Result<usize, Refusal> {
        self.inner.cleanup_orphans()
    }

    /// Devices of this node's volumes that are still bound. Blocks.
    ///
    /// # Errors
    /// The loop devices or a pool cannot be read.
    pub fn left_devices(&self) -> Result<Vec<LeftDevice>, Refusal> {
        self.inner.left_devices()
    }

    /// Lets go of every volume of this node, raw ones too, and returns how many there were. For a
    /// node whose pods are gone and whose mounts are undone. Blocks.
    ///
    /// # Errors
    /// When a volume is in use all the same, or cannot be let go.
    pub fn evacuate(&self) -> Result<usize, Refusal> {
        self.inner.evacuate()
    }
}

/// Opens a driver and serves it on `endpoint` (`unix:///path`) until `shutdown`. Mounts and
/// loop devices stay: whoever staged volumes unstages them.
pub async fn run(
    config: DriverConfig,
    endpoint: &str,
    shutdown: CancellationToken,
) -> Result<(), DriverError> {
    let path = endpoint_path(endpoint)?.to_owned();
    let driver = tokio::task::spawn_blocking(|| Driver::open(config)).await??;
    serve(&driver, &path, shutdown).await
}

/// Serves an open driver on a unix socket until `shutdown`.
pub async fn serve(
    driver: &Driver,
    socket: &Path,
    shutdown: CancellationToken,
) -> Result<(), DriverError> {
    let listener = Listener::bind(socket)?.kept();
    let config = driver.config();
    tracing::info!(driver = %config.driver_name, kind = %config.kind, mode = %config.mode,
        node = %config.node_id, socket = %socket.display(), "driver is ready");
    Ok(server::serve(driver.services(), listener, shutdown).await?)
}

/// The socket path in a CSI endpoint.
fn endpoint_path(endpoint: &str) -> Result<&Path, DriverError> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
    let path = Path::new(path.unwrap_or(endpoint));
    if path.is_absolute() { Ok(path) } else { Err(DriverError::Endpoint(endpoint.to_owned())) }
}

impl Inner {
    /// Id under which a volume of this name is found.
    pub(crate) fn id_for(&self, name: &str) -> VolumeId {
        VolumeId::for_name(self.scope(), name)
    }

    /// Names mean the same thing within it.
    pub(crate) fn scope(&self) -> &str {
        match self.config.kind {
            DriverKind::Local => self.config.node_id.as_str(),
            DriverKind::Shared => "",
        }
    }

    /// Passes a point at which a test may end the process.
    pub(crate) fn fault(&self, point: &'static str) {
        self.config.faults.at(point);
    }

    /// The pool that has a volume, and its record.
    pub(crate) fn find(&self, id: &VolumeId) -> Result<Option<(&Pool, Record)>, Refusal> {
        for pool in &self.pools {
            if let Some(record) = pool.read(id)? {
                return Ok(Some((pool, record)));
            }
        }
        Ok(None)
    }

    /// As [`Inner::find`], for calls that need the volume to exist.
    pub(crate) fn need(&self, id: &VolumeId) -> Result<(&Pool, Record), Refusal> {
        self.find(id)?.ok_or_else(|| Refusal::NotFound(format!("volume {id} does not exist")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let cases = [
            ("unix:///run/csi.sock", Some("/run/csi.sock")),
            ("unix:/run/csi.sock", Some("/run/csi.sock")),
            ("/run/csi.sock", Some("/run/csi.sock")),
            ("unix://csi.sock", None),
            ("tcp://127.0.0.1:1", None),
            ("", None),
        ];
        for (endpoint, want) in cases {
            let got = endpoint_path(endpoint).ok();
            assert_eq!(got, want.map(Path::new), "{endpoint:?}");
        }
    }
}
