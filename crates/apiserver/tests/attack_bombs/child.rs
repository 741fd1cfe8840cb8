//! The server under attack: this test program again, in a process whose memory can be read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use longshore_apiserver::{ApiServer, Config, Limits, auth};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

const CHILD_DIR: &str = "LONGSHORE_TEST_BOMBS_DIR";
const STORE: &str = "LONGSHORE_TEST_BOMBS_STORE";
/// Few, so that a test can open more.
const CONNECTIONS: usize = 400;

/// Not a test of its own: the process that is attacked.
#[test]
fn child_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else { return };
    let store_bytes = std::env::var(STORE).unwrap().parse().unwrap();
    // As `longshore apiserver` runs on a machine with two cores.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(dir, store_bytes));
}

async fn serve(dir: PathBuf, store_bytes: usize) {
    let limits = Limits { store_bytes, connections: CONNECTIONS, ..Limits::default() };
    let server = ApiServer::open(Config { limits, ..Config::at(dir.join("data")) }).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    auth::write_private(&dir.join("kubeconfig"), server.kubeconfig(address)).unwrap();
    let shutdown = CancellationToken::new();
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    let ending = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        ending.cancel();
    });
    println!("\nready {address}");
    server.serve(listener, shutdown).await.unwrap();
    server.shutdown().await;
}

/// A server in a process of its own.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub dir: PathBuf,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub async fn start(dir: &Path, store_bytes: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::child_process", "--nocapture"])
            .env(CHILD_DIR, dir)
            // As few as the allocator of the program has.
            .env("MALLOC_ARENA_MAX", "2")
            .env(STORE, store_bytes.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(address) = line.strip_prefix("ready ") {
                    return address.parse().unwrap();
                }
            }
            panic!("the server ended before it was ready");
        };
        let address = tokio::time::timeout(Duration::from_secs(60), ready).await.unwrap();
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, address, dir: dir.to_owned() }
    }

    /// What the process has taken at most, in bytes.
    pub fn peak(&self) -> u64 {
        let pid = self.child.id().expect("the server runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Asks the server to end, which it does.
    pub async fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), self.child.wait()).await;
        assert!(ended.expect("SIGTERM ends the server").unwrap().success());
    }

    /// Connects with TLS, without credentials.
    pub async fn connect(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        use rustls::pki_types::pem::PemObject;
        let mut roots = rustls::RootCertStore::empty();
        let authority = self.dir.join("data/pki/ca.crt");
        roots.add(rustls::pki_types::CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = rustls::pki_types::ServerName::from(self.address.ip());
        connector.connect(name, stream).await.unwrap()
    }

    /// The administrator's token.
    pub fn token(&self) -> String {
        let file = self.dir.join("data/pki/admin.token");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }
}
