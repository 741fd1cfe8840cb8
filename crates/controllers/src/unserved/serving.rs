//! The parts of this instance that serve requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_core::unserved::{Server, Surroundings};
use parking_lot::Mutex;

/// Which programs run as parts of this instance, and where its drivers are. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Serving {
    parts: Arc<Mutex<Parts>>,
}

#[derive(Debug, Default)]
struct Parts {
    servers: BTreeSet<Server>,
    unable: BTreeSet<Server>,
    sockets: BTreeMap<String, PathBuf>,
    kubeconfig: Option<PathBuf>,
}

impl Serving {
    /// Nothing runs yet; other programs reach the API with this file.
    #[must_use]
    pub fn new(kubeconfig: &Path) -> Self {
        let parts = Parts { kubeconfig: Some(kubeconfig.to_owned()), ..Parts::default() };
        Self { parts: Arc::new(Mutex::new(parts)) }
    }

    /// A part of this instance serves these requests from now on.
    pub fn add(&self, server: Server) {
        self.parts.lock().servers.insert(server);
    }

    /// The server's driver was asked, and cannot do what the server would ask of it.
    pub fn cannot(&self, server: Server) {
        self.parts.lock().unable.insert(server);
    }

    /// A driver of this instance answers on this socket.
    pub fn add_driver(&self, driver: &str, socket: &Path) {
        self.parts.lock().sockets.insert(driver.to_owned(), socket.to_owned());
    }

    pub(super) fn serves(&self, server: &Server) -> bool {
        self.parts.lock().servers.contains(server)
    }

    /// What a notice about a request to `server` can name.
    pub(super) fn around<T>(
        &self,
        server: &Server,
        nodes: &str,
        tell: impl FnOnce(&Surroundings<'_>) -> T,
    ) -> T {
        let parts = self.parts.lock();
        let text = |path: &PathBuf| path.display().to_string();
        let socket = server.driver().and_then(|driver| parts.sockets.get(driver)).map(text);
        let kubeconfig = parts.kubeconfig.as_ref().map(text);
        let drivers: Vec<&str> = parts.sockets.keys().map(String::as_str).collect();
        tell(&Surroundings {
            socket: socket.as_deref(),
            kubeconfig: kubeconfig.as_deref(),
            drivers: &drivers.join(", "),
            nodes,
            unable: parts.unable.contains(server),
        })
    }
}
