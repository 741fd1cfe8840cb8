//! The snapshotter of one driver: turns contents into snapshots, and takes them back.
//!
//! [`longshore_core::snapshot::sidecar`] holds the rules. CreateSnapshot is noted on the content before the
//! call, and the note goes when there is a verdict (`verdicts`); until then a content that is deleted stays, and the call
//! is repeated. With the leak guard the content gets its finalizer in the same write. Without it a content
//! may vanish during the call: then its snapshot is deleted at once, unless the process dies just there.

mod calls;
mod config;
mod contents;
mod error;
mod groups;
mod planted;
#[cfg(test)]
mod tests;
mod verdicts;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Api, Cache, Context, QueueOptions, Recorder, Scope};
use longshore_core::model::{
    keys::labels,
    kinds::{Meta, VolumeSnapshotClass, VolumeSnapshotContent},
};
use longshore_csi::{
    Client, CsiError, capabilities::ControllerCapability, client::DriverNameError,
};
use tokio_util::sync::CancellationToken;

pub use self::config::{Config, GATES, NodeScope};
use self::contents::Contents;
#[cfg(feature = "planted-bugs")]
pub use self::planted::Planted;
#[cfg(not(feature = "planted-bugs"))]
use self::planted::Planted;
use self::verdicts::Verdicts;
use crate::driver::Driver;

/// Why there is no work for a snapshotter beside this driver.
#[derive(Debug, thiserror::Error)]
pub enum AbilitiesError {
    #[error("error getting CSI driver name: {0}")]
    Name(#[from] DriverNameError),
    #[error("error determining if driver supports create/delete snapshot operations: {0}")]
    Call(#[from] CsiError),
    #[error("CSI driver {0} does not support ControllerCreateSnapshot")]
    NoSnapshots(String),
}

/// Asks the driver for its name, and whether it takes snapshots; `timeout` is the deadline of each call.
///
/// # Errors
/// When it does not answer, or takes none.
pub async fn ask(csi: &Client, timeout: Duration) -> Result<String, AbilitiesError> {
    let csi = csi.with_timeout(Some(timeout));
    let name = csi.driver_name().await?;
    match csi.controller_capabilities().await?.has(ControllerCapability::CreateDeleteSnapshot) {
        true => Ok(name),
        false => Err(AbilitiesError::NoSnapshots(name)),
    }
}

/// The snapshotter of one driver.
pub struct Snapshotter {
    context: Context,
    driver: Client,
    config: Config,
}

impl Snapshotter {
    /// A snapshotter that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, driver: Client, config: Config) -> Self {
        Self { context: context.clone(), driver, config }
    }

    /// Runs until `shutdown` is cancelled; calls in flight are finished then. `name` is the driver's.
    pub async fn run(self, name: String, shutdown: CancellationToken) {
        let sidecar = Arc::new(self.into_sidecar(name, &shutdown));
        tokio::join!(Contents::new(&sidecar).run(&shutdown), groups::run(&sidecar, &shutdown));
    }

    /// Asks the driver first, then does as [`run`](Self::run): waits for the driver to be ready and asks again
    /// when it gives no answer. For programs that outlive their driver.
    pub async fn run_with_retries(self, shutdown: CancellationToken) {
        let pause = self.config.retry_interval_start;
        let driver =
            Driver::describe_with_retries(&self.driver, self.config.timeout, pause, &shutdown);
        match driver.await {
            None => {}
            Some(driver) if driver.capabilities.create_delete_snapshot => {
                self.run(driver.name, shutdown).await;
            }
            Some(driver) => {
                tracing::info!(driver = driver.name, "the driver takes no snapshots");
                shutdown.cancelled().await;
            }
        }
    }

    fn into_sidecar(self, name: String, shutdown: &CancellationToken) -> Sidecar {
        let Self { context, driver, config } = self;
        let contents = match &config.scope {
            // The API server leaves out what is not this node's.
            Some(NodeScope { node, unlabelled: false }) => {
                let here = Scope::labels(format!("{}={node}", labels::SNAPSHOT_MANAGED_BY));
                Cache::start(&context.api, here, shutdown).0
            }
            Some(_) | None => context.cache(),
        };
        Sidecar {
            api: context.api.clone(),
            driver: driver.with_timeout(Some(config.timeout)),
            contents,
            classes: context.cache(),
            recorder: context.recorder(&format!("csi-snapshotter {name}")),
            name,
            verdicts: Verdicts::default(),
            context,
            config,
        }
    }
}

/// The snapshotter at work.
struct Sidecar {
    name: String,
    context: Context,
    api: Api,
    driver: Client,
    contents: Cache<VolumeSnapshotContent>,
    classes: Cache<VolumeSnapshotClass>,
    recorder: Recorder,
    config: Config,
    verdicts: Verdicts,
}

impl Sidecar {
    fn queue_options(&self) -> QueueOptions {
        QueueOptions::backoff(self.config.retry_interval_start, self.config.retry_interval_max)
    }

    /// Whether this instance serves contents with these labels.
    fn is_here(&self, meta: &Meta) -> bool {
        self.config.scope.as_ref().is_none_or(|scope| scope.serves(meta))
    }

    fn workers(&self) -> usize {
        self.config.worker_threads.get() as usize
    }
}
