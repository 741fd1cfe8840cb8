//! Cluster loops and sidecars: bind, provision, attach, schedule.

pub mod attach;
pub mod attacher;
pub mod bind;
pub mod capacity;
mod driver;
pub mod expand;
mod finalizers;
mod group_kinds;
pub mod health_monitor;
mod index;
#[cfg(test)]
mod life_tests;
pub mod node_lifecycle;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
pub mod protect;
pub mod provision;
pub mod resize;
pub mod root_ca;
#[cfg(test)]
mod scale_tests;
pub mod schedule;
pub mod snapshot_controller;
#[cfg(test)]
mod snapshot_testing;
pub mod snapshotter;
#[cfg(test)]
mod testing;
pub mod unserved;

pub use self::driver::{Driver, DriverError};
