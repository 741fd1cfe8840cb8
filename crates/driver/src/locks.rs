//! Locks of volumes, snapshots and groups: each call holds those it needs while it runs.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::refusal::Refusal;

/// One lock that a call needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRequest {
    pub(crate) id: String,
    mode: LockMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LockMode {
    Shared,
    Exclusive,
}

impl LockRequest {
    /// No other call may hold the lock.
    pub(crate) fn exclusive(id: impl ToString) -> Self {
        Self { id: id.to_string(), mode: LockMode::Exclusive }
    }

    /// Other calls may hold the lock too, if they share it.
    pub(crate) fn shared(id: impl ToString) -> Self {
        Self { id: id.to_string(), mode: LockMode::Shared }
    }
}

/// How many calls hold each lock.
type Held = HashMap<String, u32>;

/// The count of a lock that is held exclusively.
const EXCLUSIVE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: Arc<Mutex<Held>>,
}

impl Locks {
    /// Takes all locks of a call; refuses when another call holds one of them.
    pub(crate) fn acquire_all(
        &self,
        requests: Vec<LockRequest>,
    ) -> Result<Vec<LockGuard>, Refusal> {
        merge(requests).iter().map(|request| self.acquire(request)).collect()
    }

    pub(crate) fn acquire(&self, request: &LockRequest) -> Result<LockGuard, Refusal> {
        let mut held = self.held.lock();
        match (held.get_mut(&request.id), request.mode) {
            (None, LockMode::Exclusive) => drop(held.insert(request.id.clone(), EXCLUSIVE)),
            (None, LockMode::Shared) => drop(held.insert(request.id.clone(), 1)),
            (Some(count), LockMode::Shared) if *count != EXCLUSIVE => *count += 1,
            (Some(_), _) => return Err(Refusal::Pending(request.id.clone())),
        }
        Ok(LockGuard { held: Arc::clone(&self.held), id: request.id.clone() })
    }
}

/// Asks for each lock once, in the stronger mode: a call does not block itself.
fn merge(requests: Vec<LockRequest>) -> Vec<LockRequest> {
    let mut merged: Vec<LockRequest> = Vec::with_capacity(requests.len());
    for request in requests {
        match merged.iter_mut().find(|one| one.id == request.id) {
            Some(one) => one.mode = one.mode.max(request.mode),
            None => merged.push(request),
        }
    }
    merged
}

/// Holds a lock until it is dropped.
#[derive(Debug)]
pub(crate) struct LockGuard {
    held: Arc<Mutex<Held>>,
    id: String,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        match held.get_mut(&self.id) {
            Some(count) if *count != EXCLUSIVE && *count > 1 => *count -= 1,
            _ => drop(held.remove(&self.id)),
        }
    }
}
