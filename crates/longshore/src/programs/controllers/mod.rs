//! `longshore controllers`: the volume controllers and the scheduler.

mod beside;
mod plugins;
mod run;
mod select;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore_controllers::{attach, bind, protect};
use plugins::PluginFlags;

use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, Diagnostics, DiagnosticsFlags, Election, ElectionTimes, Gates, KubeAccess,
    KubeFlags, Logging, MasterFlag, UsageError, gates_help, values,
};

pub(crate) use run::Shared;
pub(crate) use select::Controller;

/// Flags of `longshore controllers`, named as kube-controller-manager names them.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Controllers to run: names as in kube-controller-manager, `*` for all but the scheduler, `-name` to leave one out.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Start although a kube-controller-manager renews its lease. Only where it runs without the controllers chosen here
    /// (its own --controllers=*,-NAME,…).
    #[arg(long)]
    allow_beside_kube_controller_manager: bool,
    #[command(flatten)]
    master: MasterFlag,
    #[arg(long, value_name = "GATES", help = gates_help(&[protect::GATES]))]
    feature_gates: Vec<String>,
    #[command(flatten)]
    kube: KubeFlags,
    #[command(flatten)]
    bind: bind::Flags,
    #[command(flatten)]
    protect: protect::Config,
    #[command(flatten)]
    attach: attach::Flags,
    #[command(flatten)]
    plugins: PluginFlags,
    #[command(flatten)]
    election: LeaderElectFlags,
    #[command(flatten)]
    diagnostics: DiagnosticsFlags,
}

/// Leader election as kube-controller-manager spells it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Leader election")]
struct LeaderElectFlags {
    /// Work only while holding the lease.
    #[arg(long, default_value_t = true)]
    leader_elect: bool,
    /// How long others wait after the last renewal before they take over.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    leader_elect_lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    #[arg(long, default_value = "10s", value_parser = values::positive_duration)]
    leader_elect_renew_deadline: Duration,
    /// Pause between attempts.
    #[arg(long, default_value = "2s", value_parser = values::positive_duration)]
    leader_elect_retry_period: Duration,
    /// Name of the lease. Not kube-controller-manager's, which goes on running the controllers that are not ours.
    #[arg(long, default_value = "longshore-controllers", value_name = "NAME")]
    leader_elect_resource_name: String,
    /// Namespace of the lease.
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    leader_elect_resource_namespace: String,
}

/// What the controllers run on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub logging: Logging,
    pub kube: KubeAccess,
    /// Which controllers; at least one.
    pub controllers: BTreeSet<Controller>,
    /// Whether a kube-controller-manager may be at work in the cluster.
    pub allow_beside: bool,
    /// How they behave.
    pub settings: Settings,
    /// The lease and its election; none to work at once.
    pub election: Option<(String, Election)>,
    /// Metrics and health, if served.
    pub diagnostics: Option<Diagnostics>,
}

/// How the controllers behave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub bind: bind::Config,
    pub attach: attach::Config,
    pub protect: protect::Config,
}

impl Default for Settings {
    /// The embedded mode's: every change wakes a loop there, so a rare resync is enough.
    fn default() -> Self {
        let attach = attach::Config {
            // A volume never leaves a silent node by time alone: an operator says that the node is out
            // of service, and then its pods are ended for certain.
            disable_force_detach_on_timeout: true,
            holder_notice: Some(Duration::from_secs(3)),
            // The drivers and their attachers are of this process: an answer always comes.
            await_verdict: true,
            failed_detach_events: true,
            ..attach::Config::default()
        };
        // The binder's plugin is off: static volumes are the user's own directories here.
        Self { bind: bind::Config::default(), attach, protect: protect::Config::default() }
    }
}

impl Program for Config {
    const NAME: &'static str = "controllers";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Bind, protect and attach volumes, and place pods";
    const EXAMPLES: &'static str =
        "longshore controllers --kubeconfig admin.kubeconfig '--controllers=*,scheduler'";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["rbac/controllers.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            controllers,
            allow_beside_kube_controller_manager: allow_beside,
            master,
            feature_gates,
            kube,
            bind,
            protect,
            attach,
            plugins,
            election,
            diagnostics,
        } = flags;
        let gates = Gates::read(protect::GATES, &feature_gates)?;
        let mut logging = Logging::try_from(common)?;
        logging.notes.extend(plugins.notes());
        logging.notes.extend_from_slice(gates.notes());
        Ok(Self {
            logging,
            kube: kube.access(master.url()),
            controllers: select::select(&controllers.join(","))?,
            allow_beside,
            settings: Settings {
                bind: bind.into(),
                attach: attach.try_into()?,
                protect: protect.with(&gates),
            },
            election: election.election()?,
            diagnostics: diagnostics.endpoint()?,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run::run(self).await
    }
}

impl LeaderElectFlags {
    fn election(self) -> Result<Option<(String, Election)>, UsageError> {
        let Self {
            leader_elect,
            leader_elect_lease_duration: lease_duration,
            leader_elect_renew_deadline: renew_deadline,
            leader_elect_retry_period: retry_period,
            leader_elect_resource_name,
            leader_elect_resource_namespace,
        } = self;
        if !leader_elect {
            return Ok(None);
        }
        let times = ElectionTimes { lease_duration, renew_deadline, retry_period };
        let namespace = Some(leader_elect_resource_namespace);
        let times = times.checked("--leader-elect")?;
        let election = Election { namespace, times, labels: BTreeMap::new() };
        Ok(Some((leader_elect_resource_name, election)))
    }
}

#[cfg(test)]
mod tests {
    use longshore_core::bind::HostPathPlugin;

    use super::*;
    use crate::cli::testing::flags;

    fn read(line: &str) -> Result<Config, String> {
        flags::<Flags>(line, &[])
            .and_then(|flags| Config::from_flags(flags).map_err(|error| error.to_string()))
    }

    #[test]
    fn flags_become_a_config() {
        let config =
            read("--kubeconfig /k --controllers=*,-attachdetach --leader-elect=false").unwrap();
        assert_eq!(config.election, None);
        assert_eq!(config.controllers.len(), 6);
        assert!(!config.allow_beside);
        assert!(read("--allow-beside-kube-controller-manager").unwrap().allow_beside);
        assert_eq!(config.kube.kubeconfig.as_deref(), Some(std::path::Path::new("/k")));
        let config = read("").unwrap();
        assert_eq!(config.kube.kubeconfig, None, "the service account of the pod");
        let (name, election) = config.election.unwrap();
        assert_eq!(
            (name.as_str(), election.namespace.as_deref()),
            ("longshore-controllers", Some("kube-system"))
        );
        let Settings { bind, attach, protect } = config.settings;
        assert_eq!(bind.resync, Duration::from_secs(15));
        assert_eq!(bind.options.host_path, HostPathPlugin::Deletes);
        assert!(bind.options.dynamic_provisioning && protect.unused_condition);
        // The timer is on as in kube-controller-manager, and off where everything is embedded.
        assert!(!attach.disable_force_detach_on_timeout);
        let embedded = Settings::default();
        assert!(embedded.attach.disable_force_detach_on_timeout);
        assert_eq!(embedded.bind.options.host_path, HostPathPlugin::Off);
    }

    #[test]
    fn the_flags_of_kube_controller_manager_are_honoured() {
        let line = "--enable-dynamic-provisioning=false --enable-hostpath-provisioner --pvclaimbinder-sync-period=1m \
            --concurrent-ephemeralvolume-syncs 2 --disable-attach-detach-reconcile-sync \
            --disable-force-detach-on-timeout --attach-holder-notice=0s --concurrent-attach-detach-requests=4 --feature-gates=PersistentVolumeClaimUnusedSinceTime=false \
            --kube-api-qps 1000 --kube-api-burst 2000 --leader-elect-resource-name=mine";
        let config = read(line).unwrap();
        let Settings { bind, attach, protect } = config.settings;
        assert!(!bind.options.dynamic_provisioning && !protect.unused_condition);
        assert_eq!(bind.options.host_path, HostPathPlugin::Makes);
        assert_eq!(bind.resync, Duration::from_secs(60));
        assert_eq!(protect.concurrent_ephemeralvolume_syncs.get(), 2);
        assert!(attach.disable_force_detach_on_timeout);
        assert_eq!((attach.verify_period, attach.holder_notice), (None, None));
        assert_eq!(attach.concurrent_requests, 4);
        assert_eq!(config.election.unwrap().0, "mine");
        let period = read("--attach-detach-reconcile-sync-period=90s").unwrap();
        assert_eq!(period.settings.attach.verify_period, Some(Duration::from_secs(90)));
        assert_eq!(period.settings.attach.holder_notice, Some(Duration::from_secs(30)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (line, part) in [
            ("--attach-detach-reconcile-sync-period=1s", "more than a second"),
            ("--pvclaimbinder-sync-period=0s", "--pvclaimbinder-sync-period"),
            (
                "--leader-elect-lease-duration=5s",
                "must be longer than --leader-elect-renew-deadline",
            ),
            ("--leader-elect-retry-period=9s", "1.2 times"),
            ("--concurrent-ephemeralvolume-syncs=0", "--concurrent-ephemeralvolume-syncs"),
            ("--concurrent-attach-detach-requests=0", "--concurrent-attach-detach-requests"),
            ("--pv-recycler-minimum-timeout-nfs=5m", "--pv-recycler-minimum-timeout-nfs"),
            ("--feature-gates=NoSuchGate=true", "there is no feature gate"),
        ] {
            let sentence = read(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
