//! A network that misbehaves on purpose: [`wire`] spoils connections, [`gate`] spoils requests.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

pub mod gate;
pub mod wire;
