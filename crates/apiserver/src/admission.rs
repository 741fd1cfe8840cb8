//! Limits the requests in flight.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiResult, Status};

/// Lets a bounded number of requests of one sort through at a time. Administrators have as many
/// permits again for themselves, so that they are served when other clients fill the server;
/// the loops inside this process send requests as administrators too.
#[derive(Debug)]
pub(crate) struct Gate {
    permits: usize,
    open: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
}

/// One request in flight; the permit is returned on drop.
#[derive(Debug)]
pub(crate) struct Permit(#[expect(dead_code, reason = "held for its end")] OwnedSemaphorePermit);

impl Gate {
    /// A gate with so many permits; zero means no bound.
    pub(crate) fn new(permits: usize) -> Self {
        let permits = if permits == 0 { Semaphore::MAX_PERMITS } else { permits };
        let make = || Arc::new(Semaphore::new(permits));
        Self { permits, open: make(), reserve: make() }
    }

    /// Takes a permit.
    ///
    /// # Errors
    /// 429 when all are taken.
    pub(crate) fn enter(&self, is_master: bool) -> ApiResult<Permit> {
        let try_one = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        let found =
            try_one(&self.open).or_else(|| if is_master { try_one(&self.reserve) } else { None });
        found.map(Permit).ok_or_else(|| {
            Status::too_many_requests("Too many requests, please try again later.", 1)
        })
    }

    /// How many permits are taken.
    pub(crate) fn taken(&self) -> usize {
        let free = self.open.available_permits() + self.reserve.available_permits();
        (self.permits * 2).saturating_sub(free)
    }
}

/// The gates of a server.
#[derive(Debug)]
pub(crate) struct Gates {
    /// Requests that only read.
    pub reads: Gate,
    /// Requests that may change something.
    pub writes: Gate,
    /// Watches and followed logs.
    pub long: Gate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_are_admitted_when_all_permits_are_taken() {
        let gate = Gate::new(1);
        let first = gate.enter(false).unwrap();
        let refused = gate.enter(false).unwrap_err();
        assert_eq!((refused.code, refused.retry_after()), (429, Some(1)));
        let second = gate.enter(true).unwrap();
        assert_eq!(gate.enter(true).unwrap_err().code, 429, "they are bounded too");
        assert_eq!(gate.taken(), 2);
        drop((first, second));
        assert_eq!(gate.taken(), 0);
        assert!(gate.enter(false).is_ok());
    }

    #[test]
    fn zero_permits_mean_no_bound() {
        let gate = Gate::new(0);
        let all: Vec<_> = (0..1000).map(|_| gate.enter(false)).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(gate.taken(), 1000);
    }
}
