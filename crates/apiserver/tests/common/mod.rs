//! A server on a free port.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use longshore_apiserver::{ApiServer, Config, auth};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub struct Running {
    pub server: ApiServer,
    pub address: SocketAddr,
    pub kubeconfig: PathBuf,
    pub data_dir: PathBuf,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub async fn start() -> Self {
        Self::with(|dir| Config::at(dir)).await
    }

    /// A server with a configuration for its data directory.
    pub async fn with(config: impl FnOnce(&Path) -> Config) -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-").tempdir().unwrap();
        let data_dir = dir.path().join("data");
        let server = ApiServer::open(config(&data_dir)).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        auth::write_private(&kubeconfig, server.kubeconfig(address)).unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn({
            let (server, shutdown) = (server.clone(), shutdown.clone());
            async move { server.serve(listener, shutdown).await.unwrap() }
        });
        Self { server, address, kubeconfig, data_dir, shutdown, task, _dir: dir }
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
        self.server.shutdown().await;
    }
}

pub async fn client_config(kubeconfig: &Path) -> kube::Config {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap()
}

/// A connection of a client that speaks for itself, byte by byte.
pub type Raw = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

/// Connects with TLS; `protocols` are offered in this order.
pub async fn connect(running: &Running, protocols: &[&[u8]]) -> std::io::Result<Raw> {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    let authority = running.data_dir.join("pki/ca.crt");
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = tokio::net::TcpStream::connect(running.address).await?;
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    connector.connect(rustls::pki_types::ServerName::from(running.address.ip()), stream).await
}

/// The administrator's token.
pub fn admin_token(running: &Running) -> String {
    std::fs::read_to_string(running.data_dir.join("pki/admin.token")).unwrap().trim().to_owned()
}
