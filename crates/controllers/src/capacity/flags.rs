//! Flags of the publisher of storage capacity.

use std::{num::NonZeroU32, time::Duration};

use longshore_flags::{Environment, Throttle, UsageError, values};

/// Publishing of CSIStorageCapacity objects.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Storage capacity")]
pub struct Flags {
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

/// What the flags ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub threads: NonZeroU32,
    pub poll: Duration,
    /// Also for classes that bind at once.
    pub for_immediate: bool,
    pub throttle: Throttle,
    pub namespace: String,
    /// The pod that they belong to, or that is controlled by whom they belong to so many levels up.
    pub owner: Option<(String, u32)>,
}

impl Flags {
    /// What is asked for, or none without `--enable-capacity`.
    ///
    /// # Errors
    /// When the environment does not say where and whose the objects are.
    pub fn asked(self, environment: &Environment) -> Result<Option<Asked>, UsageError> {
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
        let throttle = Throttle::new(Some(qps), Some(burst));
        Ok(Some(Asked { threads, poll, for_immediate, throttle, namespace, owner }))
    }
}
