//! The rules of each built-in kind, one module each.

pub mod attachment;
pub mod capacity;
pub mod claim;
pub mod class;
pub mod config;
pub mod csi_driver;
pub mod csi_node;
pub mod event;
pub mod lease;
pub mod migration;
pub mod namespace;
pub mod node;
mod older;
pub mod pod;
mod pod_spec;
pub mod rbac;
pub mod volume;
