//! Which nodes are on, partitioned or off.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    #[default]
    On,
    /// It cannot reach the API or the driver, and what it has mounted stays mounted.
    Partitioned,
    /// It is off: nothing is mounted there.
    Off,
}

/// The states of all nodes.
#[derive(Clone, Default)]
pub(crate) struct Power {
    states: Arc<Mutex<BTreeMap<String, (State, u32)>>>,
}

impl Power {
    pub(crate) fn of(&self, node: &str) -> State {
        self.states.lock().get(node).copied().unwrap_or_default().0
    }

    /// How often the node has come back. It may be back before it looked.
    pub(crate) fn returns(&self, node: &str) -> u32 {
        self.states.lock().get(node).copied().unwrap_or_default().1
    }

    /// Whether the node can do anything. Callers that are no node can.
    pub(crate) fn is_on(&self, node: &str) -> bool {
        self.of(node) == State::On
    }

    pub(crate) fn set(&self, node: &str, state: State) {
        let mut states = self.states.lock();
        let (now, returns) = states.entry(node.to_owned()).or_default();
        if *now != State::On && state == State::On {
            *returns += 1;
        }
        *now = state;
    }
}
