//! Ends a program at a named point, for tests. What is shipped cannot be asked to.

use std::convert::Infallible;

use longshore_controllers::resize::fault as of_resizers;
use longshore_driver::fault as of_drivers;
use longshore_node::fault as of_agents;

/// `LONGSHORE_NODE_FAULT`, and `LONGSHORE_NODE_FORGETS`, which plants a bug.
pub(crate) fn of_agent() -> of_agents::Faults {
    let points = [&of_agents::POINTS[..], &of_agents::EXPAND_POINTS].concat();
    let faults = of("LONGSHORE_NODE_FAULT", points);
    #[cfg(feature = "fault-points")]
    match std::env::var("LONGSHORE_NODE_FORGETS").as_deref() {
        Ok("staged") => return faults.forgetting(of_agents::Forgets::Staged),
        Ok("orphans") => return faults.forgetting(of_agents::Forgets::Orphans),
        _ => {}
    }
    faults
}

/// `LONGSHORE_DRIVER_FAULT`.
pub(crate) fn of_driver() -> of_drivers::Faults {
    of("LONGSHORE_DRIVER_FAULT", of_drivers::POINTS.to_vec())
}

/// `LONGSHORE_RESIZER_FAULT`.
pub(crate) fn of_resizer() -> of_resizers::Faults {
    of("LONGSHORE_RESIZER_FAULT", of_resizers::POINTS.to_vec())
}

/// `LONGSHORE_LEASE_FAULT`: a point for each controller that renews a lease, under its name.
pub(crate) fn of_leases(
    controllers: Vec<&'static str>,
) -> longshore_files::fault::Faults<Infallible> {
    of("LONGSHORE_LEASE_FAULT", controllers)
}

/// Nothing happens in what is shipped.
#[cfg(not(feature = "fault-points"))]
fn of<Bug: Copy + PartialEq>(
    _variable: &str,
    _points: Vec<&'static str>,
) -> longshore_files::fault::Faults<Bug> {
    longshore_files::fault::Faults::NONE
}

/// `VARIABLE=POINT:N` ends this process, as `kill -9` would, when it passes that point for the Nth time. `POINT:panic:N`
/// panics there N times, and `POINT:block:N` stands still for ever.
#[cfg(feature = "fault-points")]
fn of<Bug: Copy + PartialEq>(
    variable: &str,
    points: Vec<&'static str>,
) -> longshore_files::fault::Faults<Bug> {
    use longshore_files::fault::Faults;
    use std::sync::atomic::{AtomicU32, Ordering};

    let text = std::env::var(variable).unwrap_or_default();
    let Some((point, times)) = text.split_once(':') else { return Faults::NONE };
    assert!(points.contains(&point), "{variable}: there is no point {point}");
    let (what, times) = times.split_once(':').unwrap_or(("kill", times));
    let (point, what) = (point.to_owned(), what.to_owned());
    let (times, passed) = (times.parse::<u32>().unwrap_or(1), AtomicU32::new(0));
    Faults::new(move |at| {
        assert!(points.contains(&at), "{at} is not on the list");
        if at != point {
            return;
        }
        let nth = passed.fetch_add(1, Ordering::SeqCst) + 1;
        match what.as_str() {
            "panic" => assert!(nth > times, "a test wants a panic at {at}"),
            "block" if nth <= times => tokio::task::block_in_place(|| {
                loop {
                    std::thread::park();
                }
            }),
            "kill" if nth == times => {
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            }
            _ => {}
        }
    })
}
