//! The local CSI drivers: volumes as image files on loop devices.
//!
//! One program is two drivers, because attach and topology are properties of a driver and not of
//! a volume: `local` (pools that one node sees, with topology) and `shared` (pools that every
//! node sees, with recorded exclusive attachment).
//!
//! * [`pool`]: the directory, the image files and the records beside them; what a crash leaves is
//!   finished or undone from the disk alone.
//! * [`loopdev`], [`mod@format`], [`mount`]: the kernel's side, each known by what it *is* (inode,
//!   signature, device number) and never by a path or a number that may come to mean another thing.
//! * `copy` and [`freeze`]: a copy of an image, and a filesystem frozen meanwhile;
//!   `quiesce`: the same for a controller in another process of the machine.
//! * `controller`, `snapshot` and `node`: the rules of each call, blocking and free of locks.
//! * [`transfer`]: a snapshot as a file, out of a pool and into another.
//! * `service`: the CSI services around them, with one lock for each volume.
//!
//! ```no_run
//! use longshore_driver::{DriverConfig, DriverKind, PoolConfig, run};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), longshore_driver::DriverError> {
//! let mut config = DriverConfig::new(DriverKind::Local, "node-1");
//! config.pools.push(PoolConfig::new("default", "/var/lib/longshore/pool"));
//! run(config, "unix:///run/longshore/local.sock", CancellationToken::new()).await
//! # }
//! ```

#![warn(unreachable_pub)]

mod access;
pub mod config;
mod controller;
mod copy;
mod driver;
mod extents;
pub mod fault;
pub mod format;
pub mod freeze;
pub mod id;
mod locks;
pub mod loopdev;
pub mod mount;
mod mutable;
mod node;
pub mod pool;
mod quiesce;
mod refusal;
mod service;
mod snapshot;
pub mod transfer;

pub use config::{ConfigError, DriverConfig, DriverKind, FsType, Mode, PoolConfig};
pub use driver::{Driver, DriverError, run, serve};
pub use refusal::Refusal;
