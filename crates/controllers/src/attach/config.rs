//! Settings of the attach-detach controller, and its flags.

use std::{num::NonZeroU32, time::Duration};

use longshore_core::words;
use longshore_flags::{UsageError, values};

use crate::planted::{Planted, plantable};

/// Flags of the attach-detach controller, named as kube-controller-manager names them.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Volumes")]
pub struct Flags {
    /// Pause between comparisons of attachments with their objects; more than a second.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    attach_detach_reconcile_sync_period: Duration,
    /// Never compare attachments with their objects.
    #[arg(long)]
    disable_attach_detach_reconcile_sync: bool,
    /// Never take a volume from an unhealthy node only because it took too long to let go.
    #[arg(long)]
    disable_force_detach_on_timeout: bool,
    /// How long a pod waits for a volume that another node holds before an event tells it which pod on
    /// which node that is; 0 is never. Not a flag of kube-controller-manager.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    attach_holder_notice: Duration,
    /// Keep an exclusive volume whose attach gave no clear result from other nodes until the driver has
    /// answered. Without it only confirmed attachments count, as in kube-controller-manager, which has no
    /// such flag.
    #[arg(long)]
    await_attach_verdict: bool,
    /// Write a Warning event FailedDetach on the volume and its pods when a detach fails.
    /// kube-controller-manager only logs it.
    #[arg(long)]
    failed_detach_events: bool,
    /// Attaches, and as many detaches, that send their requests at once; waiting for a driver does not
    /// count. Not a flag of kube-controller-manager.
    #[arg(long, default_value = "16", value_parser = values::at_least_one, value_name = "N")]
    concurrent_attach_detach_requests: NonZeroU32,
}

impl TryFrom<Flags> for Config {
    type Error = UsageError;

    fn try_from(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            attach_detach_reconcile_sync_period: period,
            disable_attach_detach_reconcile_sync,
            disable_force_detach_on_timeout,
            attach_holder_notice,
            await_attach_verdict,
            failed_detach_events,
            concurrent_attach_detach_requests,
        } = flags;
        if period <= Duration::from_secs(1) {
            return Err(UsageError::bad_value(
                "--attach-detach-reconcile-sync-period",
                words::time(period),
                "it must be more than a second",
            ));
        }
        Ok(Self {
            verify_period: (!disable_attach_detach_reconcile_sync).then_some(period),
            disable_force_detach_on_timeout,
            holder_notice: (!attach_holder_notice.is_zero()).then_some(attach_holder_notice),
            await_verdict: await_attach_verdict,
            failed_detach_events,
            concurrent_requests: concurrent_attach_detach_requests.get() as usize,
            ..Self::default()
        })
    }
}

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How long an unhealthy node may keep a volume that nobody wants.
    pub max_wait_for_unmount: Duration,
    /// The limit above does not count.
    pub disable_force_detach_on_timeout: bool,
    /// How often the desired state is compared with the pods there are.
    pub populate_period: Duration,
    /// How often attachments are compared with their objects; `None` for never.
    pub verify_period: Option<Duration>,
    /// How long one attach or detach may take.
    pub operation_timeout: Duration,
    /// How many attaches, and how many detaches, send their requests at once.
    pub concurrent_requests: usize,
    /// How long a pod waits for a volume that another node holds before it is told which pod on
    /// which node that is; `None` for never.
    pub holder_notice: Option<Duration>,
    /// Whether an attach without a clear result keeps an exclusive volume from other nodes.
    pub await_verdict: bool,
    /// Whether a failed detach is an event on the volume and its pods.
    pub failed_detach_events: bool,
    #[cfg(any(test, feature = "planted-bugs"))]
    pub planted: Option<Planted>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_wait_for_unmount: Duration::from_secs(360),
            disable_force_detach_on_timeout: false,
            populate_period: Duration::from_secs(60),
            verify_period: Some(Duration::from_secs(60)),
            operation_timeout: Duration::from_secs(120),
            concurrent_requests: 16,
            holder_notice: Some(Duration::from_secs(30)),
            await_verdict: false,
            failed_detach_events: false,
            #[cfg(any(test, feature = "planted-bugs"))]
            planted: None,
        }
    }
}

plantable!(Config, Planted);
