//! Our controllers and sidecars while the control plane of a real Kubernetes changes under them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../common/mod.rs"]
mod common;
mod official;
#[path = "../proxy/mod.rs"]
mod proxy;
mod restored;
mod rolled;
#[path = "../sidecar/mod.rs"]
mod sidecar;
#[path = "../network/stack.rs"]
mod stack;
mod tokens;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Options};

fn can_run() -> bool {
    tools::need(&[Tool::Etcd, Tool::KubeApiserver])
}

/// Etcd and an API server that allows everything, and notes who asked what.
fn cluster() -> Cluster {
    let options = Options { etcd_without_fsync: true, audit: true, ..Options::default() };
    tokio::task::block_in_place(|| Cluster::start(&options).unwrap())
}
