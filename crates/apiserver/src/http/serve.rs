//! Listening: TLS, HTTP/1.1 and HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Service;
use super::connection_limits::{ConnectionLimits, ConnectionSlot};
use super::held_response;
use super::streams::Afterwards;
use super::timeout_stream::{StallTimeouts, TimeoutStream};
use crate::auth::identify_certificate;
use crate::auth::serving::Serving;
use crate::{Inner, Limits};

/// HTTP/2 clients are asked this often whether they live.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest request line and headers; selectors make long ones.
const MAX_HEADER_BYTES: u32 = 256 << 10;
const MAX_HEADERS: usize = 128;
/// How long requests may still run after shutdown began.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed accept, e.g. for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// client-go runs all its watches over one connection; as many as upstream allows. Each takes memory
/// although the server does not read from it.
const MAX_STREAMS: u32 = 256;
/// The same for clients that have shown no certificate.
const MAX_STREAMS_OF_STRANGERS: u32 = 128;

/// Accepts connections until shutdown, then lets requests finish.
pub(crate) async fn run(
    inner: Arc<Inner>,
    listener: TcpListener,
    (tls, serving): (Arc<ServerConfig>, Arc<Serving>),
    shutdown: CancellationToken,
) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(tls);
    let max_connections = inner.limits.connections;
    let connections = ConnectionLimits::new(max_connections);
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
        if let Ok(local) = stream.local_addr() {
            serving.arrived_at(local.ip());
        }
        let Some(slot) = connections.enter() else {
            tracing::warn!(max_connections, "too many connections; one is refused");
            continue;
        };
        let (inner, acceptor) = (Arc::clone(&inner), acceptor.clone());
        let (ending, cut) = (ending.clone(), cut.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = connection(inner, acceptor, stream, ending, &slot) => {}
                () = slot.sent_away() => {}
                () = cut.cancelled() => {}
            }
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

fn http1(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_buf_size(MAX_HEADER_BYTES as usize)
        .max_headers(MAX_HEADERS);
    builder
}

fn http2(known: bool) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(if known { MAX_STREAMS } else { MAX_STREAMS_OF_STRANGERS })
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

async fn connection(
    inner: Arc<Inner>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    ending: CancellationToken,
    slot: &Arc<ConnectionSlot>,
) {
    // Small responses and watch events must not wait for more data.
    let _ = stream.set_nodelay(true);
    let limits = inner.limits;
    let accepted = tokio::time::timeout(limits.handshake_timeout, acceptor.accept(stream)).await;
    let stream = match accepted {
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
    let session = stream.get_ref().1;
    let identity = session
        .peer_certificates()
        .and_then(|chain| chain.first())
        .and_then(|certificate| identify_certificate(certificate));
    let known = identity.is_some();
    if known {
        slot.show_credentials();
    }
    // The protocol is settled by now. Guessing it from the first bytes, as the builder of either
    // protocol does, would mean to wait for them, however long they take.
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let unread = Arc::new(held_response::UnreadLimit::new(limits.stall_timeout));
    let afterwards = Afterwards::default();
    let service = Service::new(inner, identity, ending.clone()).for_connection(
        Arc::clone(&unread),
        Arc::clone(slot),
        afterwards.clone(),
    );
    let service = TowerToHyperService::new(service);
    let timeouts = StallTimeouts {
        read: is_http2.then_some(PING_EVERY + PING_TIMEOUT + limits.idle_timeout),
        write: limits.stall_timeout,
    };
    let stream = TokioIo::new(TimeoutStream::new(stream, timeouts));
    let answered = if is_http2 {
        let connection = http2(known).serve_connection(stream, service);
        answer(connection, |connection| connection.graceful_shutdown(), &unread, &ending).await
    } else {
        let connection = http1(&limits).serve_connection(stream, service).with_upgrades();
        answer(connection, |connection| connection.graceful_shutdown(), &unread, &ending).await
    };
    if answered && let Some(streams) = afterwards.take() {
        streams.await;
    }
}

/// Answers a connection's requests to its end; false if its client took none of the answers.
async fn answer<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    drain: impl Fn(Pin<&mut C>),
    unread: &held_response::UnreadLimit,
    ending: &CancellationToken,
) -> bool {
    tokio::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(error = %error, "connection");
                }
                return true;
            }
            () = unread.exhausted() => {
                tracing::debug!("a client takes none of its answers; its connection is closed");
                return false;
            }
            () = ending.cancelled(), if !draining => {
                draining = true;
                drain(connection.as_mut());
            }
        }
    }
}
