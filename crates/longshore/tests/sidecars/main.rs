//! `longshore sidecars`: several sidecars as one process, over the embedded API and beside a scripted driver.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../common/mod.rs"]
mod common;
mod driver;
mod health;
mod isolation;
mod leases;
mod node;
mod official;
mod pages;
mod rig;
mod rights;
#[path = "../sidecar/mod.rs"]
mod sidecar;
