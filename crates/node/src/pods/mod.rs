//! Pods as host processes: one worker and one shim per pod.

mod admission;
mod api_files;
pub mod cgroups;
mod deadline;
mod descriptor;
mod downward;
pub(crate) mod environment;
mod evict;
pub(crate) mod hidden;
mod host_path;
pub(crate) mod logs;
mod memory;
mod own_volumes;
pub(crate) mod pod_dir;
mod prepare;
mod refresh;
mod results;
mod run_spec;
mod scratch;
pub mod shim_client;
mod status;
pub(crate) mod streams;
mod termination;
pub(crate) mod worker;
