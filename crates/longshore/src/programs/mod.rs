//! The programs of the binary, one module each: flags, configuration, and what is run.
//!
//! [`PROGRAMS`] is the only list of them. Dispatch, help, completions, official names and the tests over all programs
//! go through it.

mod apiserver;
mod attacher;
mod client;
mod completions;
mod controllers;
mod demo;
mod directory_provisioners;
mod doctor;
mod driver;
mod health_monitor;
mod internal;
mod kubeconfig;
mod listen;
mod liveness_probe;
mod man;
mod node;
mod node_registrar;
mod pod_limits;
mod pool;
mod provisioner;
#[cfg(test)]
mod real_manifests;
mod resizer;
mod sidecar;
mod sidecars;
mod snapshot;
mod snapshot_controller;
mod snapshotter;
#[cfg(test)]
mod tests;
mod up;

use crate::cli::Row;

/// All programs, in the order of the help.
pub(crate) const PROGRAMS: &[Row] = &[
    Row::of::<demo::Config>(),
    Row::of::<up::Config>(),
    Row::of::<client::Client<client::StatusFlags>>(),
    Row::of::<doctor::Doctor>(),
    Row::of::<kubeconfig::Kubeconfig>(),
    Row::of::<up::Reset>(),
    Row::of::<client::Client<client::ApplyFlags>>(),
    Row::of::<client::Client<client::CreateFlags>>(),
    Row::of::<client::Client<client::GetFlags>>(),
    Row::of::<client::Client<client::DescribeFlags>>(),
    Row::of::<client::Client<client::EventsFlags>>(),
    Row::of::<client::Client<client::WaitFlags>>(),
    Row::of::<client::Client<client::PatchFlags>>(),
    Row::of::<client::Client<client::EditFlags>>(),
    Row::of::<client::Client<client::LabelFlags>>(),
    Row::of::<client::Client<client::AnnotateFlags>>(),
    Row::of::<client::Client<client::DeleteFlags>>(),
    Row::of::<client::Client<client::LogsFlags>>(),
    Row::of::<client::Client<client::ExecFlags>>(),
    Row::of::<client::Client<client::AttachFlags>>(),
    Row::of::<snapshot::Config>(),
    Row::of::<provisioner::Config>(),
    Row::of::<attacher::Config>(),
    Row::of::<resizer::Config>(),
    Row::of::<snapshotter::Config>(),
    Row::of::<sidecars::Config>(),
    Row::of::<snapshot_controller::Config>(),
    Row::of::<health_monitor::Config>(),
    Row::of::<controllers::Config>(),
    Row::of::<node::Config>(),
    Row::of::<node_registrar::Config>(),
    Row::of::<liveness_probe::Config>(),
    Row::of::<driver::Config>(),
    Row::of::<directory_provisioners::Hostpath>(),
    Row::of::<directory_provisioners::Nfs>(),
    Row::of::<apiserver::Config>(),
    Row::of::<completions::Completions>(),
    Row::of::<man::Config>(),
    Row::internal(internal::POD_SHIM, internal::pod_shim),
    Row::internal(internal::FREEZE_HOLDER, internal::freeze_holder),
    Row::internal(internal::UP_NODE, internal::up_node),
    Row::internal(client::complete::NAME, client::complete::read),
    Row::not_yet("explain", &[]),
    Row::not_yet("audit", &[]),
];
