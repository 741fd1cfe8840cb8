//! Listening: TLS, HTTP/1.1 and HTTP/2.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Service;
use crate::Inner;
use crate::auth::identify_certificate;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests may still run after shutdown began.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed accept, e.g. for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const MAX_CONNECTIONS: usize = 4096;
/// client-go runs all its watches over one connection.
const MAX_STREAMS: u32 = 2048;

/// Accepts connections until shutdown, then lets requests finish.
pub(crate) async fn run(
    inner: Arc<Inner>,
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(tls);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let tasks = TaskTracker::new();
    // Either the listener or the whole server ends; then its watches do, then its connections.
    let ending = inner.closing.child_token();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            () = inner.closing.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::warn!(MAX_CONNECTIONS, "too many connections; one is refused");
            continue;
        };
        let (inner, acceptor) = (Arc::clone(&inner), acceptor.clone());
        let (ending, cut) = (ending.clone(), cut.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = connection(inner, acceptor, stream, ending) => {}
                () = cut.cancelled() => {}
            }
            drop(permit);
        });
    }
    ending.cancel();
    tasks.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!("requests are still running after shutdown; their connections are cut");
        cut.cancel();
        tasks.wait().await;
    }
    Ok(())
}

async fn connection(
    inner: Arc<Inner>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    ending: CancellationToken,
) {
    // Small answers and watch events must not wait for more data.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake");
            return;
        }
        Err(_) => {
            tracing::debug!("TLS handshake timed out");
            return;
        }
    };
    let identity = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first())
        .and_then(|certificate| identify_certificate(certificate));
    let service = TowerToHyperService::new(Service::new(inner, identity, ending.clone()));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(error = %error, "connection");
                }
                return;
            }
            () = ending.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
