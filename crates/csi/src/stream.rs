//! One wrapper for streams that are watched, cut or rewritten on the way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// What happens around the reads and writes of a [`Hooked`] stream; by default nothing.
pub trait Hooks: Unpin {
    /// Runs before each read and write; an error takes their place.
    fn before(&mut self, _: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Reads from the stream below.
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        below: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(below).poll_read(cx, buf)
    }

    /// Runs when either side has closed the stream or it has failed, perhaps more than once.
    fn lost(&mut self) {}
}

/// A stream with hooks.
pub struct Hooked<S, H> {
    below: S,
    hooks: H,
}

impl<S, H> Hooked<S, H> {
    pub(crate) fn wrap(below: S, hooks: H) -> Self {
        Self { below, hooks }
    }
}

impl<S: AsyncRead + Unpin, H: Hooks> AsyncRead for Hooked<S, H> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { below, hooks } = self.get_mut();
        hooks.before(cx)?;
        let (before, room) = (buf.filled().len(), buf.remaining());
        let result = ready!(hooks.poll_read(below, cx, buf));
        if result.is_err() || (room > 0 && buf.filled().len() == before) {
            hooks.lost();
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin, H: Hooks> AsyncWrite for Hooked<S, H> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { below, hooks } = self.get_mut();
        hooks.before(cx)?;
        let result = ready!(Pin::new(below).poll_write(cx, data));
        if result.is_err() {
            hooks.lost();
        }
        Poll::Ready(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().below).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { below, hooks } = self.get_mut();
        // A driver that shuts down gracefully lets its client close first.
        hooks.lost();
        Pin::new(below).poll_shutdown(cx)
    }
}

impl<S: Connected, H> Connected for Hooked<S, H> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.below.connect_info()
    }
}
