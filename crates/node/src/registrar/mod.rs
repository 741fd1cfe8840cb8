//! Introduces a driver to the node agent, or to a real kubelet, through a registration socket.
//!
//! The agent watches its registry directory. A socket that appears there is asked who it is; the
//! answer names the driver and the socket that serves it. When the socket goes, the driver goes.

mod health;

use std::path::{Path, PathBuf};

use longshore_csi::{
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
    server,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub use health::{Health, Sick};

/// What the kubelet's own registrar leaves on its socket: the owner's bits only.
const SOCKET_MODE: u32 = 0o700;

/// What the agent said of the registration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Registered {
    /// Nothing yet.
    #[default]
    Waiting,
    /// The driver is known.
    Yes,
    /// It was refused, and why.
    No(String),
}

/// A driver to introduce.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// The driver's name.
    pub driver: String,
    /// The socket that serves it, as the agent sees it.
    pub endpoint: PathBuf,
    /// The agent's registry directory.
    pub registry: PathBuf,
}

impl Introduction {
    /// The registration socket: `<registry>/<driver>-reg.sock`.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.registry.join(format!("{}-reg.sock", self.driver))
    }
}

/// Why the driver could not be introduced.
#[derive(Debug, thiserror::Error)]
pub enum RegistrarError {
    /// The registration socket cannot be made.
    #[error("cannot make the registration socket of driver {driver}")]
    Bind { driver: String, source: server::BindError },
    /// The registration socket stopped serving.
    #[error("the registration socket of driver {driver} failed")]
    Serve { driver: String, source: server::ServeError },
    /// The kubelet does not want the driver.
    #[error("registration process failed for driver {driver}: {reason}; a restart tries it again")]
    Refused {
        driver: String,
        /// The kubelet's words.
        reason: String,
    },
}

/// A bound registration socket, not yet serving.
pub struct Registrar {
    introduction: Introduction,
    listener: server::Listener,
    verdict: watch::Sender<Registered>,
}

impl Registrar {
    /// Takes the registration socket.
    ///
    /// # Errors
    /// When the socket's path cannot be taken.
    pub fn bind(introduction: Introduction) -> Result<Self, RegistrarError> {
        let bound = server::Listener::bind(introduction.socket()).map(server::Listener::kept);
        let driver = introduction.driver.clone();
        let listener = bound.map_err(|source| RegistrarError::Bind { driver, source })?;
        Ok(Self { introduction, listener, verdict: watch::Sender::default() })
    }

    /// Takes the registration socket, also from a predecessor that is still there. The registry
    /// directory has to exist: it is a kubelet's, and a new one would never be watched.
    ///
    /// # Errors
    /// When the socket's path cannot be taken.
    pub fn succeed(introduction: Introduction) -> Result<Self, RegistrarError> {
        let bound = server::Listener::replace(introduction.socket(), SOCKET_MODE);
        let driver = introduction.driver.clone();
        let listener = bound.map_err(|source| RegistrarError::Bind { driver, source })?;
        Ok(Self { introduction, listener, verdict: watch::Sender::default() })
    }

    /// Follows what the agent says of the registration.
    #[must_use]
    pub fn verdict(&self) -> watch::Receiver<Registered> {
        self.verdict.subscribe()
    }

    /// Serves the agent until shutdown, then removes the socket, which deregisters the driver.
    ///
    /// # Errors
    /// When the socket stops serving for another reason.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RegistrarError> {
        self.serve(Refusal::Answered, shutdown).await
    }

    /// The same until the kubelet refuses the driver. The refusal gets no answer and the socket's
    /// file stays: whoever restarts this program makes the socket anew, and the kubelet looks again.
    ///
    /// # Errors
    /// When the driver is refused, or the socket stops serving.
    pub async fn run_until_refused(
        self,
        shutdown: CancellationToken,
    ) -> Result<(), RegistrarError> {
        let driver = self.introduction.driver.clone();
        let mut verdict = self.verdict();
        let serving = self.serve(Refusal::Unanswered, shutdown);
        let refused = async {
            let said = verdict.wait_for(|said| matches!(said, Registered::No(_))).await;
            match said.map(|said| said.clone()) {
                Ok(Registered::No(reason)) => reason,
                // The service is gone without a refusal: how it ended is the answer.
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = serving => ended,
            reason = refused => Err(RegistrarError::Refused { driver, reason }),
        }
    }

    async fn serve(
        self,
        refusal: Refusal,
        shutdown: CancellationToken,
    ) -> Result<(), RegistrarError> {
        let driver = self.introduction.driver.clone();
        let service = Service { introduction: self.introduction, verdict: self.verdict, refusal };
        let routes = server::Routes::new(RegistrationServer::new(service));
        let served = server::serve(routes, self.listener, shutdown).await;
        served.map_err(|source| RegistrarError::Serve { driver, source })
    }
}

/// Whether a refusal gets a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Answered,
    Unanswered,
}

struct Service {
    introduction: Introduction,
    verdict: watch::Sender<Registered>,
    refusal: Refusal,
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.introduction.driver.clone(),
            endpoint: text(&self.introduction.endpoint),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let said = request.into_inner();
        let driver = &self.introduction.driver;
        let verdict = if said.plugin_registered {
            longshore_cluster::log_process!(driver, "driver is registered with the node");
            Registered::Yes
        } else {
            tracing::warn!(driver, error = said.error, "the node refused the driver");
            Registered::No(said.error)
        };
        let refused = matches!(verdict, Registered::No(_));
        self.verdict.send_replace(verdict);
        if refused && self.refusal == Refusal::Unanswered {
            // The program is about to end, and its connections with it.
            return std::future::pending().await;
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
