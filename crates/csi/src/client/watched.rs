//! Detects that the driver has closed a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A client-side stream that reports, once, that its peer has closed it.
pub(super) struct Watched<S> {
    inner: S,
    on_lost: Option<Box<dyn FnOnce() + Send>>,
}

impl<S> Watched<S> {
    pub(super) fn new(inner: S, on_lost: impl FnOnce() + Send + 'static) -> Self {
        Self { inner, on_lost: Some(Box::new(on_lost)) }
    }

    fn lost(&mut self) {
        if let Some(notify) = self.on_lost.take() {
            notify();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (before, room) = (buf.filled().len(), buf.remaining());
        let result = ready!(Pin::new(&mut this.inner).poll_read(cx, buf));
        if result.is_err() || (room > 0 && buf.filled().len() == before) {
            this.lost();
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = ready!(Pin::new(&mut this.inner).poll_write(cx, data));
        if result.is_err() {
            this.lost();
        }
        Poll::Ready(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A driver that shuts down gracefully lets this side close first.
        self.lost();
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
