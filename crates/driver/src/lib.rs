//! The local CSI drivers: volumes as image files on loop devices.

pub mod config;
pub mod format;
pub mod id;
pub mod loopdev;
pub mod mount;
pub mod pool;
