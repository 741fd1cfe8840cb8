//! Decisions of a node about its volumes: stage, publish, and all the way back; and about the
//! containers that wait for them ([`lifecycle`], [`termination`]).
//!
//! Everything here is a function from small values to an answer: no clock, client, lock or file.
//! The loops that look and act are in `longshore_node`.
//!
//! Two orderings keep data safe. What may be mounted is recorded before the driver hears of it,
//! so a crash in between still leaves an unmount owed. And a mount whose fate is unknown is
//! unpublished and unstaged before it is forgotten, so a volume is never detached under a mount.

pub mod claim;
pub mod expand;
pub mod forgotten;
pub mod fsgroup;
pub mod lifecycle;
pub mod paths;
pub mod populate;
pub mod registration;
pub mod selinux;
pub mod termination;
pub mod tokens;
pub mod verdict;
pub mod world;
