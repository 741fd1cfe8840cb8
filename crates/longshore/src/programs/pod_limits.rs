//! Flags that bound what pods can use up, on `longshore up` and `longshore node`.

use longshore_core::model::Quantity;
use longshore_node::{LogLimit, PodLimits};

use crate::flags::{UsageError, values};

/// The kubelet's flags of the same names.
#[derive(Debug, Clone, clap::Args)]
pub struct PodLimitFlags {
    /// Processes that a pod may have; -1 means no bound.
    #[arg(long, default_value = "4096", value_parser = values::integer, allow_hyphen_values = true, value_name = "N")]
    pod_max_pids: i64,
    /// Size at which a container's log file is put aside, for example 10Mi.
    #[arg(long, default_value = "10Mi", value_name = "SIZE")]
    container_log_max_size: String,
    /// Log files of a container, the current one included; at least 2.
    #[arg(long, default_value = "5", value_parser = values::integer, allow_hyphen_values = true, value_name = "N")]
    container_log_max_files: i64,
}

impl TryFrom<PodLimitFlags> for PodLimits {
    type Error = UsageError;

    fn try_from(flags: PodLimitFlags) -> Result<Self, UsageError> {
        let PodLimitFlags { pod_max_pids, container_log_max_size, container_log_max_files } = flags;
        let max_pids = match pod_max_pids {
            -1 => None,
            1.. => Some(pod_max_pids.unsigned_abs()),
            _ => {
                let why = "it is a number of processes, or -1 for no bound";
                return Err(UsageError::bad_value("--pod-max-pids", pod_max_pids, why));
            }
        };
        let size = container_log_max_size.parse::<Quantity>().ok().map(|size| size.bytes());
        let max_size = size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        let max_size = max_size.ok_or_else(|| {
            let why = "it is a size of more than zero, for example 10Mi";
            UsageError::bad_value("--container-log-max-size", &container_log_max_size, why)
        })?;
        let files = u32::try_from(container_log_max_files).ok().filter(|files| *files > 1);
        let max_files = files.ok_or_else(|| {
            let why = "it is a whole number of at least 2";
            UsageError::bad_value("--container-log-max-files", container_log_max_files, why)
        })?;
        Ok(Self { max_pids, log: LogLimit { max_size, max_files } })
    }
}
