//! The drivers registered on this node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use longshore_core::stage::registration::Version;
use longshore_csi::{Client, Options};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Deadline of every node call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

struct Driver {
    /// The highest version that it supports.
    version: Version,
    /// Connects when first used, and again after a loss.
    client: Client,
}

/// All registered drivers by name. Shared.
#[derive(Default)]
pub struct Drivers {
    by_name: Mutex<BTreeMap<String, Driver>>,
    metrics: Mutex<Option<longshore_csi::metrics::Metrics>>,
    changes: watch::Sender<u64>,
}

impl Drivers {
    /// The client of a registered driver.
    #[must_use]
    pub fn client(&self, name: &str) -> Option<Client> {
        self.by_name.lock().get(name).map(|driver| driver.client.clone())
    }

    /// The version with which a driver is registered.
    pub(crate) fn version(&self, name: &str) -> Option<Version> {
        self.by_name.lock().get(name).map(|driver| driver.version)
    }

    /// Measures the calls to drivers that register from now on.
    pub(crate) fn measure(&self, metrics: longshore_csi::metrics::Metrics) {
        *self.metrics.lock() = Some(metrics);
    }

    /// Registers a driver by its socket.
    pub(crate) fn insert(&self, name: &str, version: Version, socket: PathBuf) -> Client {
        let dial = move || UnixStream::connect(socket.clone());
        let metrics = self.metrics.lock().clone();
        let options = Options { timeout: Some(CALL_TIMEOUT), metrics, ..Options::default() };
        let client = Client::with_dialer(dial, None, options)
            .with_driver_name(name)
            .with_migrated(Some(false));
        let driver = Driver { version, client: client.clone() };
        self.by_name.lock().insert(name.to_owned(), driver);
        self.changes.send_modify(|count| *count += 1);
        client
    }

    pub(crate) fn remove(&self, name: &str) {
        self.by_name.lock().remove(name);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Changes whenever a driver comes or goes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
