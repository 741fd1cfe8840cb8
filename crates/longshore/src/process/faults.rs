//! Ends the node agent at a named point, for tests. What is shipped cannot be asked to.

use longshore_node::fault::Faults;

/// Nothing happens in what is shipped.
#[cfg(not(feature = "fault-points"))]
pub(crate) fn of_agent() -> Faults {
    Faults::NONE
}

/// `LONGSHORE_NODE_FAULT=POINT:N` ends this process, as `kill -9` would, when it passes that point for
/// the Nth time. `LONGSHORE_NODE_FORGETS` plants a bug.
#[cfg(feature = "fault-points")]
pub(crate) fn of_agent() -> Faults {
    use longshore_node::fault::{Forgets, POINTS};
    use std::sync::atomic::{AtomicU32, Ordering};

    let text = |name| std::env::var(name).unwrap_or_default();
    let faults = match text("LONGSHORE_NODE_FAULT").split_once(':') {
        None => Faults::NONE,
        Some((point, times)) => {
            let (point, times, passed) =
                (point.to_owned(), times.parse::<u32>().unwrap_or(1), AtomicU32::new(0));
            Faults::new(move |at| {
                assert!(POINTS.contains(&at), "{at} is not on the list");
                if at == point && passed.fetch_add(1, Ordering::SeqCst) + 1 == times {
                    let own = rustix::process::getpid();
                    let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                }
            })
        }
    };
    match text("LONGSHORE_NODE_FORGETS").as_str() {
        "staged" => faults.forgetting(Forgets::Staged),
        "orphans" => faults.forgetting(Forgets::Orphans),
        _ => faults,
    }
}
