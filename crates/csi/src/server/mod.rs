//! Serving gRPC on a unix socket.
//!
//! [`Listener::bind`] takes the socket path, [`serve`] serves it until shutdown, [`serve_streams`] does the
//! same for streams that are already connected, for example in memory.
//!
//! A handler is dropped at its next await point when its caller's deadline passes or its connection ends. Work
//! that must not stop halfway belongs into a task of its own.

mod authority;
mod listener;
mod sever;

use std::io;
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Connected;

pub use listener::{BindError, Listener};
pub use sever::Severable;
pub use tonic::service::Routes;

use authority::LocalAuthority;

/// How long calls in flight may take to finish after shutdown was requested.
pub const GRACE: Duration = Duration::from_secs(5);
/// How many streams a client may reset before the server has accepted them.
const MAX_RESET_STREAMS: usize = 4096;

/// The server ended for another reason than shutdown.
#[derive(Debug, thiserror::Error)]
#[error("gRPC server failed")]
pub struct ServeError(#[from] tonic::transport::Error);

/// Serves `services` on a bound socket until `shutdown`, then removes the socket.
///
/// New connections stop at once, calls in flight get [`GRACE`] to finish, then every connection is cut.
pub async fn serve(
    services: Routes,
    listener: Listener,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let ended = serve_streams(services, listener.incoming(), shutdown).await;
    listener.remove();
    ended
}

/// Serves `services` on connected streams until `shutdown` or until `incoming` ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use longshore_csi::{fake, server};
/// use tokio_util::sync::CancellationToken;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("csi.sock");
/// let listener = server::Listener::bind(&path)?;
/// let stop = CancellationToken::new();
/// let driver = fake::Driver::new("example.csi.test");
/// let server = tokio::spawn(server::serve(driver.routes(), listener, stop.clone()));
///
/// let client = longshore_csi::Client::connect(path.display().to_string().into()).await?;
/// assert_eq!(client.driver_name().await?, "example.csi.test");
///
/// stop.cancel();
/// server.await??;
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
pub async fn serve_streams<S>(
    services: Routes,
    incoming: impl Stream<Item = io::Result<S>>,
    shutdown: CancellationToken,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    S::ConnectInfo: Send + Sync + Clone + 'static,
{
    use futures::StreamExt;
    let cut = CancellationToken::new();
    // Connections also end when this future is dropped: whoever aborts the server means the whole of it.
    let _cut_on_drop = cut.clone().drop_guard();
    let wrapped = incoming.map(|stream| {
        stream.map(|stream| LocalAuthority::rewriting(Severable::new(stream, cut.child_token())))
    });
    let late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
        cut.cancel();
    };
    let serving = Server::builder()
        // Only those who may open the socket are here. A sidecar that gives up on many calls at once
        // must not lose the connection, and with it the responses to all its other calls.
        .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
        .add_routes(services.prepare())
        .serve_with_incoming_shutdown(wrapped, shutdown.cancelled());
    tokio::pin!(serving, late);
    tokio::select! {
        ended = &mut serving => return Ok(ended?),
        () = &mut late => {}
    }
    Ok(serving.await?)
}

#[cfg(test)]
mod tests;
