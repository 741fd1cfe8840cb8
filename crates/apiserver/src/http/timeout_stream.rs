//! A stream that fails when the client stalls.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long each direction may make no progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct StallTimeouts {
    /// Without a byte from the client. Only for protocols in which a living client always sends
    /// something, as HTTP/2 does when it is pinged.
    pub read: Option<Duration>,
    /// With bytes waiting that the client does not take.
    pub write: Duration,
}

/// A stream that fails when the other side stands still for too long.
pub(super) struct TimeoutStream<S> {
    inner: S,
    timeouts: StallTimeouts,
    reading: Pin<Box<Sleep>>,
    /// Set while bytes wait to be taken.
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    pub(super) fn new(inner: S, timeouts: StallTimeouts) -> Self {
        let reading = Box::pin(tokio::time::sleep(timeouts.read.unwrap_or_default()));
        Self { inner, timeouts, reading, writing: None }
    }

    fn watch_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.writing = None;
            return polled;
        }
        let limit = self.timeouts.write;
        let timer = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(stalled("the client takes no more of its answers")))
    }
}

fn stalled(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.inner).poll_read(cx, buf);
        let Some(limit) = this.timeouts.read else { return polled };
        if polled.is_ready() {
            this.reading.as_mut().reset(Instant::now() + limit);
            return polled;
        }
        ready!(this.reading.as_mut().poll(cx));
        Poll::Ready(Err(stalled("nothing comes from the client")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch_write(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch_write(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch_write(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.watch_write(cx, polled)
    }
}
