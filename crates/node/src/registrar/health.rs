//! The health of a registrar: does its socket still introduce its own driver?
//!
//! The socket may have been removed or replaced. A kubelet would then not find
//! the driver any more, and only a restart of the registrar repairs that.

use std::future::IntoFuture as _;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::time::Duration;

use axum::{Router, response::IntoResponse as _, routing::any};
use http::StatusCode;
use longshore_cluster::listen;
use longshore_csi::registration::{InfoRequest, registration_client::RegistrationClient};
use tokio::net::TcpListener;

/// Which socket is checked, and how long the response may take.
#[derive(Debug, Clone)]
pub struct Health {
    /// The registration socket.
    pub socket: PathBuf,
    /// The driver it shall introduce.
    pub driver: String,
    /// How long the response may take.
    pub timeout: Duration,
}

/// What is wrong: the status of the response and its text.
pub type Sick = (StatusCode, String);

fn broken(text: String) -> Sick {
    (StatusCode::INTERNAL_SERVER_ERROR, text)
}

impl Health {
    /// Listens on `address`, `HOST:PORT`.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub async fn listen(self, address: &str) -> io::Result<HealthServer> {
        let listener = listen::listen(address).await?;
        Ok(HealthServer { listener, health: self })
    }

    /// Asks the socket which driver it introduces.
    ///
    /// # Errors
    /// When it does not introduce its own.
    pub async fn check(&self) -> Result<(), Sick> {
        let path = self.socket.display();
        match tokio::fs::metadata(&self.socket).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = "registration socket does not exist".to_owned();
                return Err((StatusCode::NOT_FOUND, text));
            }
            Err(error) => return Err(broken(format!("cannot look at {path}: {error}"))),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(broken(format!("{path} is not a socket")));
            }
            Ok(_) => {}
        }
        let unconnected =
            |error| broken(format!("error connecting to node-registrar socket {path}: {error}"));
        let late = || "no answer in time".to_owned();
        let dialing = longshore_csi::client::channel(&self.socket);
        let channel = tokio::time::timeout(self.timeout, dialing).await;
        let channel = channel.map_err(|_| unconnected(late()))?;
        let channel = channel.map_err(|error| unconnected(innermost(&error)))?;
        let unknown =
            |error| broken(format!("error getting info from node-registrar socket: {error}"));
        let mut client = RegistrationClient::new(channel);
        let info = tokio::time::timeout(self.timeout, client.get_info(InfoRequest {})).await;
        let info = info.map_err(|_| unknown(late()))?;
        let info = info.map_err(|status| unknown(longshore_csi::status_text(&status)))?;
        match info.into_inner().name {
            name if name == self.driver => Ok(()),
            name => Err(broken(format!("invalid driver name {name}"))),
        }
    }
}

/// The cause at the bottom says more than the library's own summary above it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// A health endpoint that has its port.
#[derive(Debug)]
pub struct HealthServer {
    listener: TcpListener,
    health: Health,
}

impl HealthServer {
    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves `/healthz`, for ever.
    ///
    /// # Errors
    /// When the server fails.
    pub async fn run(self) -> io::Result<()> {
        let health = self.health;
        let respond = move || {
            let health = health.clone();
            async move {
                match health.check().await {
                    Ok(()) => (StatusCode::OK, "ok").into_response(),
                    Err(sick) => {
                        tracing::error!(socket = %health.socket.display(), reason = sick.1, "health check failed");
                        sick.into_response()
                    }
                }
            }
        };
        let router = Router::new().route("/healthz", any(respond));
        axum::serve(self.listener, router).into_future().await
    }
}
