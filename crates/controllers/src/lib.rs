//! Cluster loops and sidecars: bind, provision, attach, schedule.

pub mod attach;
mod index;
