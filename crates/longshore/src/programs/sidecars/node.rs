//! The sidecars of a node's side: they need no API server and no lease.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longshore_cluster::listen;
use longshore_core::words;
use longshore_csi::metrics::Metrics as Calls;
use longshore_node::liveness::{Liveness, Pages};
use longshore_node::registrar::{Health, Introduction, Registrar};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::board::{Entry, State};
use super::pages::Probes;
use super::seat::Restarts;
use super::table::Member;

/// Pause before a registration socket is made again.
const PAUSE: Duration = Duration::from_secs(1);

/// What runs on a node's side.
#[derive(Default)]
pub(super) struct Node {
    registrar: Option<Registration>,
    liveness: Option<Watcher>,
}

struct Registration {
    introduction: Introduction,
    entry: Arc<Entry>,
    health: Health,
    /// An address of its own for `/healthz`.
    apart: Option<String>,
}

struct Watcher {
    liveness: Liveness,
    apart: String,
}

impl Node {
    /// Takes what is about a node; the driver has said its name.
    pub(super) async fn of(
        members: &[(&'static str, Member)],
        socket: &Path,
        driver: &str,
        calls: &Calls,
        entry: impl Fn(&str) -> Option<Arc<Entry>>,
    ) -> Result<Self> {
        let mut node = Self::default();
        for (name, member) in members {
            match member {
                Member::Controller(_) => {}
                Member::Registrar(asked) => {
                    let Some(entry) = entry(name) else { continue };
                    let introduction = Introduction {
                        driver: driver.to_owned(),
                        endpoint: asked.endpoint.clone(),
                        registry: asked.registry.clone(),
                    };
                    let (socket, timeout) = (introduction.socket(), asked.timeout);
                    let health = Health { socket, driver: driver.to_owned(), timeout };
                    let apart = asked.health.clone();
                    node.registrar = Some(Registration { introduction, entry, health, apart });
                }
                Member::Liveness(asked) => {
                    let found = Liveness::find(socket, asked.probe_timeout, calls.clone()).await;
                    let liveness = found.context("cannot ask the driver whether it is alive")?;
                    if let Some(entry) = entry(name) {
                        entry.span().in_scope(|| entry.set(State::Leading, ""));
                    }
                    node.liveness = Some(Watcher { liveness, apart: asked.address.clone() });
                }
            }
        }
        Ok(node)
    }

    /// What `/healthz` of the one port asks.
    pub(super) fn probes(&self) -> Probes {
        Probes {
            liveness: self.liveness.as_ref().map(|one| one.liveness.clone()),
            registrar: self.registrar.as_ref().map(|one| one.health.clone()),
        }
    }

    /// Serves `/healthz` of each under the address of its own; for a process without the one port.
    pub(super) async fn serve_apart(&self) -> Result<()> {
        if let Some(Watcher { liveness, apart }) = &self.liveness {
            let listener = listen::listen(apart).await.with_context(|| taken(apart))?;
            tracing::info!(address = %listener.local_addr()?, "serving /healthz of the driver");
            let pages = Pages { health: Some(liveness.clone()), metrics: None };
            tokio::spawn(pages.serve(listener));
        }
        if let Some(Registration { health, apart: Some(apart), .. }) = &self.registrar {
            let server = health.clone().listen(apart).await.with_context(|| taken(apart))?;
            tracing::info!(address = %server.address()?, "serving /healthz of the registration");
            tokio::spawn(server.run());
        }
        Ok(())
    }

    /// Keeps the driver registered until `stop`.
    pub(super) async fn register(self, stop: CancellationToken) {
        if let Some(registration) = self.registrar {
            let span = registration.entry.span();
            registration.keep(stop).instrument(span).await;
        }
    }
}

impl Registration {
    async fn keep(self, stop: CancellationToken) {
        let Self { introduction, entry, .. } = self;
        let restarts = Restarts::default();
        while !stop.is_cancelled() {
            let socket: PathBuf = introduction.socket();
            let ended = match Registrar::succeed(introduction.clone()) {
                Ok(registrar) => {
                    tracing::info!(socket = %socket.display(), "waiting for the kubelet");
                    entry.set(State::Leading, "");
                    registrar.run_until_refused(stop.clone()).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = ended else { continue };
            let reason = words::causes(&error);
            // As after a restart of the program, the kubelet looks at the new socket.
            if restarts.too_many() {
                entry.set(State::Down, reason);
                return stop.cancelled().await;
            }
            entry.set(State::Standby, reason);
            stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
        }
    }
}

fn taken(address: &str) -> String {
    format!(
        "cannot listen on {address}; choose a free address with --http-endpoint, which all share"
    )
}
