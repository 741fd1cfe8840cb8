//! The built-in kinds, one module each: what a kind is, and its rules.

mod attachment;
mod attributes_class;
mod capacity;
mod claim;
mod class;
pub(crate) mod common;
mod config_map;
mod csi_driver;
mod csi_node;
mod definition;
mod event;
mod health;
mod in_tree_sources;
mod lease;
mod migration;
pub(crate) mod namespace;
mod node;
mod pod;
mod pod_account;
mod pod_files;
mod pod_spec;
mod prelude;
mod rbac;
mod reviews;
mod secret;
mod service_account;
mod volume;

use super::builtin::BuiltinKind;

/// Every built-in kind, in the order of discovery.
pub(crate) static KINDS: &[&BuiltinKind] = &[
    &config_map::CONFIG_MAP,
    &event::CORE_EVENT,
    &namespace::NAMESPACE,
    &node::NODE,
    &claim::CLAIM,
    &volume::VOLUME,
    &pod::POD,
    &secret::SECRET,
    &service_account::SERVICE_ACCOUNT,
    &lease::LEASE,
    &event::EVENT,
    &csi_driver::CSI_DRIVER,
    &csi_node::CSI_NODE,
    &capacity::CAPACITY,
    &class::CLASS,
    &attachment::ATTACHMENT,
    &attributes_class::ATTRIBUTES_CLASS,
    &migration::MIGRATION,
    &rbac::CLUSTER_ROLE_BINDING,
    &rbac::CLUSTER_ROLE,
    &rbac::ROLE_BINDING,
    &rbac::ROLE,
    &reviews::SELF_SUBJECT,
    &reviews::TOKEN,
    &reviews::LOCAL_ACCESS,
    &reviews::SELF_ACCESS,
    &reviews::SELF_RULES,
    &reviews::ACCESS,
    &definition::DEFINITION,
];
