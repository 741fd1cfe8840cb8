//! Flags of `longshore provisioner` for storage capacity and for one provisioner on each node.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::flags::{Environment, Throttle, UsageError, values};

/// Publishing of CSIStorageCapacity objects.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Storage capacity")]
pub(super) struct CapacityFlags {
    /// Publish CSIStorageCapacity objects in the namespace that NAMESPACE names.
    #[arg(long)]
    enable_capacity: bool,
    /// Questions to the driver at a time.
    #[arg(long, default_value = "1", value_parser = values::at_least_one, value_name = "N")]
    capacity_threads: NonZeroU32,
    /// How often the driver is asked about everything.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    capacity_poll_interval: Duration,
    /// Whom the objects belong to: -1 nobody, 0 the pod POD_NAME, 1 its StatefulSet or DaemonSet, 2 its Deployment.
    #[arg(long, default_value = "1", value_parser = values::integer, allow_hyphen_values = true, value_name = "N")]
    capacity_ownerref_level: i64,
    /// Publish for classes with immediate binding too.
    #[arg(long)]
    capacity_for_immediate_binding: bool,
    /// Requests per second for these objects.
    #[arg(long, default_value = "1", value_parser = values::rate, allow_hyphen_values = true, value_name = "N")]
    kube_api_capacity_qps: f32,
    /// Requests for these objects that may exceed the rate at once.
    #[arg(long, default_value = "5", value_parser = values::count, value_name = "N")]
    kube_api_capacity_burst: u32,
}

/// Publishing of capacity, asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Capacity {
    /// Questions at a time.
    pub threads: NonZeroU32,
    /// How often about everything.
    pub poll: Duration,
    /// Also for immediate binding.
    pub for_immediate: bool,
    pub throttle: Throttle,
    /// Where the objects are.
    pub namespace: String,
    /// The pod that they belong to, or that is controlled by whom they belong to so many levels up.
    pub owner: Option<(String, u32)>,
}

impl CapacityFlags {
    /// What is asked for, or none without `--enable-capacity`.
    ///
    /// # Errors
    /// When the environment does not say where and whose the objects are.
    pub(super) fn capacity(
        self,
        environment: &Environment,
    ) -> Result<Option<Capacity>, UsageError> {
        let Self {
            enable_capacity,
            capacity_threads: threads,
            capacity_poll_interval: poll,
            capacity_ownerref_level: level,
            capacity_for_immediate_binding: for_immediate,
            kube_api_capacity_qps: qps,
            kube_api_capacity_burst: burst,
        } = self;
        if !enable_capacity {
            return Ok(None);
        }
        let need = |variable: &Option<String>, why: &str| {
            variable.clone().ok_or_else(|| UsageError::AsOfficial(why.to_owned()))
        };
        let namespace = need(
            &environment.namespace,
            "need NAMESPACE env variable for CSIStorageCapacity objects: set it to the pod's namespace",
        )?;
        let owner = match u32::try_from(level) {
            // Everything below zero means nobody.
            Err(_) if level < 0 => None,
            Err(_) => {
                let why = "it is -1 for nobody, or how many levels above the pod";
                return Err(UsageError::bad_value("--capacity-ownerref-level", level, why));
            }
            Ok(level) => {
                let why = "need POD_NAME env variable to determine CSIStorageCapacity owner: set it to the pod's name, or use --capacity-ownerref-level=-1";
                Some((need(&environment.pod_name, why)?, level))
            }
        };
        let throttle = match qps {
            qps if qps < 0.0 => Throttle::Unlimited,
            // Go clients read zero as unset.
            qps if qps > 0.0 => Throttle::Fixed { qps, burst: if burst == 0 { 10 } else { burst } },
            _ => Throttle::Fixed { qps: 5.0, burst: if burst == 0 { 10 } else { burst } },
        };
        Ok(Some(Capacity { threads, poll, for_immediate, throttle, namespace, owner }))
    }
}

/// One provisioner on each node.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "One provisioner on each node")]
pub(super) struct NodeDeploymentFlags {
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

/// One provisioner on each node, asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeDeployment {
    pub node: String,
    /// Take claims with immediate binding.
    pub immediate_binding: bool,
    /// First wait.
    pub base_delay: Duration,
    /// Longest wait.
    pub max_delay: Duration,
}

impl NodeDeploymentFlags {
    /// What is asked for, or none without `--node-deployment`.
    ///
    /// # Errors
    /// When nobody says which node this is.
    pub(super) fn deployment(
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
        let node = environment.node_name.clone().ok_or_else(|| {
            UsageError::AsOfficial(
                "The NODE_NAME environment variable must be set when using --node-deployment"
                    .into(),
            )
        })?;
        Ok(Some(NodeDeployment { node, immediate_binding, base_delay, max_delay }))
    }
}
