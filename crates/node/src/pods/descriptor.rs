//! A pipe or terminal as an asynchronous reader and writer.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::io::unix::AsyncFd;

/// An open descriptor. Clones are the same one; it is closed with the last.
#[derive(Clone)]
pub(super) struct Descriptor(Arc<AsyncFd<OwnedFd>>);

impl Descriptor {
    /// # Errors
    /// It cannot be waited for.
    #[expect(unsafe_code, reason = "what is registered must stay open")]
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        // SAFETY: an owned descriptor is always the same and is open until it is dropped.
        let registered = unsafe { AsyncFd::register(fd) }?;
        Ok(Self(Arc::new(registered)))
    }

    pub(super) fn get(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// Reads when there is something; 0 is the end.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut guard = self.0.readable().await?;
            if let Ok(read) = guard.try_io(|fd| read(fd.get_ref(), buffer)) {
                return read;
            }
        }
    }

    /// Reads what is there now, whether or not the runtime has heard of it.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        read(self.get(), buffer)
    }
}

/// A terminal that nobody has open any more reports its end as an error.
fn read(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(fd, &mut *buffer) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::IO) => return Ok(0),
            other => return Ok(other?),
        }
    }
}

impl AsyncWrite for Descriptor {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            let written = guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?));
            match written {
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
