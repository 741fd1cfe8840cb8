//! Streams that can be cut from outside.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::Context;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::stream::{Hooked, Hooks};

/// A stream that fails like a lost connection once its token is cancelled.
pub type Severable<S> = Hooked<S, Cut>;

/// Cuts a [`Severable`] stream.
pub struct Cut {
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    severed: bool,
}

impl<S> Severable<S> {
    /// Wraps a stream; cancelling `token` cuts it.
    pub fn new(stream: S, token: CancellationToken) -> Self {
        Self::wrap(stream, Cut { cancelled: Box::pin(token.cancelled_owned()), severed: false })
    }
}

impl Hooks for Cut {
    fn before(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // A finished future must not be polled again, hence the flag.
        self.severed = self.severed || self.cancelled.as_mut().poll(cx).is_ready();
        if self.severed { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}
