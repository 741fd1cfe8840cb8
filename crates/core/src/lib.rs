//! Longshore's vocabulary and decisions.
//!
//! This crate is pure: no clock, no client, no lock, no async. [`model`] holds the nouns that every
//! other crate speaks in; the step modules beside it (one per step of a volume's life) hold the
//! rules as functions from a small view to a list of actions. The loops that carry the actions out
//! live in the crates above.
//!
//! What is absent on purpose: anything that could make the same view give two answers.

#![warn(unreachable_pub)]

pub mod access_mode;
pub mod attach;
pub mod backoff;
pub mod bind;
pub mod claim;
pub mod expand;
pub mod health;
pub mod model;
pub mod names;
pub mod node_lifecycle;
pub mod protect;
pub mod provision;
pub mod redact;
pub mod resize;
pub mod root_ca;
pub mod schedule;
pub mod snapshot;
pub mod stage;
pub mod unserved;
pub mod visits;
pub mod words;
