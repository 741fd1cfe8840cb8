//! The driver as a whole: its pools, who is busy with which volume, and what starts it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use longshore_csi::server::{self, Listener, Routes};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::{ConfigError, DriverConfig, DriverKind};
use crate::id::VolumeId;
use crate::node::left::LeftDevice;
use crate::pool::record::Record;
use crate::pool::{Pool, PoolError, Role};
use crate::refusal::Refusal;
use crate::remote::desk::{self, Desk};

/// Why a driver did not start or did not keep running.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A setting cannot work.
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
    /// The server failed.
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
    /// Volumes, snapshots and groups with a call under way.
    busy: Arc<Mutex<Busy>>,
    /// Volumes attached to each node, as recorded; only the controller changes them.
    pub attached: Mutex<HashMap<String, BTreeSet<VolumeId>>>,
    /// Where controllers in other processes ask for volumes to be held still.
    pub desks: Mutex<Vec<Desk>>,
}

impl Driver {
    /// Checks the settings, opens the pools, and rebuilds the truth from disk, loop devices and
    /// mounts: half-done changes are finished or undone, stale notes of staging are dropped, and
    /// loop devices that nothing uses are detached. Blocks.
    pub fn open(config: DriverConfig) -> Result<Self, DriverError> {
        config.validate()?;
        let role = Role {
            controller: config.mode.controller(),
            alone: config.kind == DriverKind::Local
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
            busy: Arc::default(),
            attached: Mutex::default(),
            desks: Mutex::default(),
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
        desk::open(&inner);
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
    /// Notes that a call for a volume is under way; refuses when another one is.
    pub fn lock(&self, id: &VolumeId) -> Result<BusyGuard, Refusal> {
        self.claim(&Claim::alone(id))
    }

    /// Notes that a call is under way; refuses when one is that gets in its way.
    pub fn claim(&self, claim: &Claim) -> Result<BusyGuard, Refusal> {
        let mut busy = self.busy.lock();
        match (busy.get_mut(&claim.id), claim.alone) {
            (None, alone) => {
                busy.insert(claim.id.clone(), if alone { ALONE } else { 1 });
            }
            (Some(others), false) if *others != ALONE => *others += 1,
            (Some(_), _) => return Err(Refusal::Pending(claim.id.clone())),
        }
        Ok(BusyGuard { busy: Arc::clone(&self.busy), id: claim.id.clone() })
    }

    /// Id under which a volume of this name is found.
    pub fn id_for(&self, name: &str) -> VolumeId {
        VolumeId::for_name(self.scope(), name)
    }

    /// Names mean the same thing within it.
    pub fn scope(&self) -> &str {
        match self.config.kind {
            DriverKind::Local => self.config.node_id.as_str(),
            DriverKind::Shared => "",
        }
    }

    /// Passes a point at which a test may end the process.
    pub fn fault(&self, point: &'static str) {
        self.config.faults.at(point);
    }

    /// The pool that has a volume, and its record.
    pub fn find(&self, id: &VolumeId) -> Result<Option<(&Pool, Record)>, Refusal> {
        for pool in &self.pools {
            if let Some(record) = pool.read(id)? {
                return Ok(Some((pool, record)));
            }
        }
        Ok(None)
    }

    /// As [`Inner::find`], for calls that need the volume to exist.
    pub fn need(&self, id: &VolumeId) -> Result<(&Pool, Record), Refusal> {
        self.find(id)?.ok_or_else(|| Refusal::NotFound(format!("volume {id} does not exist")))
    }
}

/// How many calls use each thing; [`ALONE`] is one that wants no other.
type Busy = HashMap<String, u32>;

const ALONE: u32 = u32::MAX;

/// What a call needs for itself while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    id: String,
    alone: bool,
}

impl Claim {
    /// No other call may use it.
    pub fn alone(id: impl ToString) -> Self {
        Self { id: id.to_string(), alone: true }
    }

    /// Others that want no more may use it too.
    pub fn shared(id: impl ToString) -> Self {
        Self { id: id.to_string(), alone: false }
    }

    /// What is claimed.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Each thing once: a call does not get in its own way.
pub(crate) fn distinct(claims: Vec<Claim>) -> Vec<Claim> {
    let mut once: Vec<Claim> = Vec::with_capacity(claims.len());
    for claim in claims {
        match once.iter_mut().find(|one| one.id == claim.id) {
            Some(one) => one.alone |= claim.alone,
            None => once.push(claim),
        }
    }
    once
}

/// Held while a call is under way.
#[derive(Debug)]
pub(crate) struct BusyGuard {
    busy: Arc<Mutex<Busy>>,
    id: String,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        let mut busy = self.busy.lock();
        match busy.get_mut(&self.id) {
            Some(others) if *others != ALONE && *others > 1 => *others -= 1,
            _ => drop(busy.remove(&self.id)),
        }
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
