//! Limits the connections of a listener: most are reserved for clients that have authenticated.
//!
//! Any program that reaches the port can open connections and send half a request on each. Strangers
//! share a part of the connections; when that is full, the oldest of them is closed. A client with
//! credentials is a stranger for the few milliseconds that it takes to send them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// One of so many connections is for strangers.
const STRANGERS: usize = 4;

/// All connections of a listener.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    all: usize,
    strangers: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// In the order in which they came.
    strangers: BTreeMap<u64, CancellationToken>,
    known: usize,
}

/// The slot of one connection; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    connections: Arc<ConnectionLimits>,
    number: u64,
    known: Mutex<bool>,
    leave: CancellationToken,
}

impl ConnectionLimits {
    pub(super) fn new(connections: usize) -> Arc<Self> {
        let strangers = (connections / STRANGERS).max(1);
        Arc::new(Self { all: connections, strangers, taken: Mutex::default() })
    }

    /// Takes a slot for a connection that has not authenticated yet; the oldest such connection may be
    /// closed for it. `None` when authenticated clients have all the slots.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Arc<ConnectionSlot>> {
        let leave = CancellationToken::new();
        let mut taken = self.taken.lock();
        let strangers = taken.strangers.len();
        if strangers >= self.strangers || strangers + taken.known >= self.all {
            let (_, oldest) = taken.strangers.pop_first()?;
            oldest.cancel();
        }
        let number = taken.next;
        taken.next += 1;
        taken.strangers.insert(number, leave.clone());
        drop(taken);
        let connections = Arc::clone(self);
        Some(Arc::new(ConnectionSlot { connections, number, known: Mutex::new(false), leave }))
    }
}

impl ConnectionSlot {
    /// The client has shown who it is: it cannot be sent away any more.
    pub(super) fn show_credentials(&self) {
        let mut known = self.known.lock();
        if *known {
            return;
        }
        let mut taken = self.connections.taken.lock();
        // Who was sent away already goes.
        if taken.strangers.remove(&self.number).is_none() {
            return;
        }
        taken.known += 1;
        *known = true;
    }

    /// Waits until the connection has to go.
    pub(super) async fn sent_away(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.connections.taken.lock();
        if *self.known.get_mut() {
            taken.known -= 1;
        } else {
            taken.strangers.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_make_room_for_each_other_and_never_take_that_of_clients() {
        let connections = ConnectionLimits::new(8);
        let client = connections.enter().unwrap();
        client.show_credentials();
        let strangers: Vec<_> = (0..100).map(|_| connections.enter().unwrap()).collect();
        let staying = strangers.iter().filter(|one| !one.leave.is_cancelled()).count();
        assert_eq!(staying, 2);
        assert!(!client.leave.is_cancelled());
        let late = connections.enter().unwrap();
        late.show_credentials();
        assert!(!late.leave.is_cancelled(), "a client gets in at any time");
        strangers[0].show_credentials();
        assert!(strangers[0].leave.is_cancelled(), "who was sent away does not stay");
        drop((client, strangers, late));
        let taken = connections.taken.lock();
        assert_eq!((taken.known, taken.strangers.len()), (0, 0));
    }

    #[test]
    fn clients_are_bounded_too() {
        let connections = ConnectionLimits::new(4);
        let mut clients: Vec<_> = (0..4).map(|_| connections.enter().unwrap()).collect();
        // With one place for strangers only the last one was still there.
        clients.drain(..3);
        clients[0].show_credentials();
        for _ in 0..3 {
            let client = connections.enter().unwrap();
            client.show_credentials();
            clients.push(client);
        }
        assert!(connections.enter().is_none());
        clients.pop();
        assert!(connections.enter().is_some());
    }
}
