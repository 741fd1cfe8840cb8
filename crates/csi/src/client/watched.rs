//! Detects that the driver has closed a connection.

use crate::stream::{Hooked, Hooks};

/// A client-side stream that reports, once, that its peer has closed it.
pub(super) type Watched<S> = Hooked<S, OnClosed>;

pub(super) struct OnClosed(Option<Box<dyn FnOnce() + Send>>);

impl<S> Watched<S> {
    pub(super) fn watch(stream: S, on_closed: impl FnOnce() + Send + 'static) -> Self {
        Self::wrap(stream, OnClosed(Some(Box::new(on_closed))))
    }
}

impl Hooks for OnClosed {
    fn lost(&mut self) {
        if let Some(notify) = self.0.take() {
            notify();
        }
    }
}
