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

/// A registered driver.
#[derive(Clone)]
pub struct Driver {
    /// Its highest supported version.
    pub version: Version,
    /// Its socket.
    pub endpoint: PathBuf,
    /// Calls it; connects when first used and again after a loss.
    pub client: Client,
}

/// All registered drivers by name. Shared.
#[derive(Default)]
pub struct Drivers {
    by_name: Mutex<BTreeMap<String, Driver>>,
    metrics: Mutex<Option<longshore_csi::metrics::Metrics>>,
    changes: watch::Sender<u64>,
}

impl Drivers {
    /// A registered driver's client.
    #[must_use]
    pub fn client(&self, name: &str) -> Option<Client> {
        self.by_name.lock().get(name).map(|driver| driver.client.clone())
    }

    /// A registered driver.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Driver> {
        self.by_name.lock().get(name).cloned()
    }

    /// Measures the calls to drivers that are remembered from now on.
    pub(crate) fn measure(&self, metrics: longshore_csi::metrics::Metrics) {
        *self.metrics.lock() = Some(metrics);
    }

    /// Remembers a driver by its socket.
    pub fn insert(&self, name: &str, version: Version, endpoint: PathBuf) -> Client {
        let path = endpoint.clone();
        let dial = move || UnixStream::connect(path.clone());
        let metrics = self.metrics.lock().clone();
        let options = Options { timeout: Some(CALL_TIMEOUT), metrics, ..Options::default() };
        let client = Client::with_dialer(dial, None, options)
            .with_driver_name(name)
            .with_migrated(Some(false));
        self.insert_client(name, version, endpoint, client.clone());
        client
    }

    /// Remembers a driver by a client, for instance one in memory.
    pub fn insert_client(&self, name: &str, version: Version, endpoint: PathBuf, client: Client) {
        self.by_name.lock().insert(name.to_owned(), Driver { version, endpoint, client });
        self.changes.send_modify(|count| *count += 1);
    }

    /// Forgets a driver.
    pub fn remove(&self, name: &str) {
        self.by_name.lock().remove(name);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Changes whenever a driver comes or goes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
