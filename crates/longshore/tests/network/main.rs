//! The network ring: what a hostile network does to the sidecars and controllers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../common/mod.rs"]
mod common;
mod ipv6;
#[path = "../proxy/mod.rs"]
mod proxy;
#[path = "../sidecar/mod.rs"]
mod sidecar;
mod stack;
mod weather;
