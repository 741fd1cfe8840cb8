//! Pods as host processes: one worker and one shim per pod.

mod admission;
pub mod cgroups;
mod environment;
pub mod hidden;
pub mod logs;
pub mod own_volumes;
pub(crate) mod pod_dir;
mod run_spec;
pub mod shim_client;
mod status;
pub(crate) mod worker;
