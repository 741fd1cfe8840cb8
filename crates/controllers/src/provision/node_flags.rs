//! Flags for one provisioner on each node.

use std::time::Duration;

use longshore_core::provision::topology::Term;
use longshore_flags::{Environment, UsageError, values};

use super::NodeDeployment;

/// One provisioner on each node.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "One provisioner on each node")]
pub struct NodeFlags {
    /// Serve only the node that NODE_NAME names.
    #[arg(long)]
    node_deployment: bool,
    /// Take claims with immediate binding that have no node yet.
    #[arg(long, default_value_t = true)]
    node_deployment_immediate_binding: bool,
    /// First wait before such a claim is taken.
    #[arg(long, default_value = "20s", value_parser = values::duration)]
    node_deployment_base_delay: Duration,
    /// Longest wait before such a claim is taken.
    #[arg(long, default_value = "60s", value_parser = values::duration)]
    node_deployment_max_delay: Duration,
}

impl NodeFlags {
    /// What is asked for, or none without `--node-deployment`. Where the node is, its driver says.
    ///
    /// # Errors
    /// When nobody says which node this is.
    pub fn deployment(
        self,
        environment: &Environment,
    ) -> Result<Option<NodeDeployment>, UsageError> {
        let Self {
            node_deployment,
            node_deployment_immediate_binding: immediate_binding,
            node_deployment_base_delay: base_delay,
            node_deployment_max_delay: max_delay,
        } = self;
        if !node_deployment {
            return Ok(None);
        }
        let node = environment.deployed_on()?.into();
        let segments = Term::default();
        Ok(Some(NodeDeployment { node, segments, immediate_binding, base_delay, max_delay }))
    }
}
