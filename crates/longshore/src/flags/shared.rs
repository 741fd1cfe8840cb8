//! Flag groups that several programs share, and what they turn into.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use longshore_cluster::telemetry::LogOptions;

use super::{UsageError, values};

/// Flags of every program.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonFlags {
    /// How much to log: 0 is quiet, 2 is usual, 5 shows every call.
    #[arg(long = "v", short = 'v', value_name = "LEVEL", default_value = "0", value_parser = values::integer, allow_hyphen_values = true, help_heading = "Logging")]
    pub v: i64,
    /// Log as text or as one JSON object per line; both go to stderr.
    #[arg(long, value_enum, default_value = "text", help_heading = "Logging")]
    pub logging_format: LogFormat,
    /// Print the version and exit.
    #[arg(long)]
    pub version: bool,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// klog's text form.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Log levels of source files: a pattern for the file's name, and the level.
pub(super) type ModuleLevels = Vec<(String, u8)>;

/// How to log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logging {
    /// klog's `-v`.
    pub verbosity: u8,
    /// Text or JSON.
    pub format: LogFormat,
    /// klog's `--vmodule`: levels of source files whose names match.
    pub modules: ModuleLevels,
    /// Lines to log once at start: flags that were accepted without having an effect here.
    pub notes: Vec<String>,
}

impl TryFrom<CommonFlags> for Logging {
    type Error = UsageError;

    fn try_from(flags: CommonFlags) -> Result<Self, UsageError> {
        // `--version` is answered by the dispatcher.
        let CommonFlags { v, logging_format, version: _ } = flags;
        let level = i32::try_from(v)
            .map_err(|_| UsageError::bad_value("-v", v, "the level is too large"))?;
        // Nothing logs above the largest level or below zero, so the ends stand for what is beyond.
        let verbosity = u8::try_from(level.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(Self { verbosity, format: logging_format, ..Self::default() })
    }
}

impl Logging {
    /// The same with klog's flags taken into account.
    ///
    /// # Errors
    /// On flags that would have to change what is logged and cannot.
    pub fn with(self, klog: KlogFlags) -> Result<Self, UsageError> {
        let (modules, notes) = klog.check()?;
        Ok(Self { modules, notes, ..self })
    }
}

/// Flags of the Go runtime and of klog that the official sidecars have.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logging and runtime flags of the Go programs")]
pub struct KlogFlags {
    /// Log levels of source files: pattern=N,pattern=N.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "LEVELS")]
    pub vmodule: String,
    /// Accepted: log lines are never held back here.
    #[arg(long, default_value = "5s", value_parser = values::duration)]
    pub log_flush_frequency: Duration,
    /// Split text logs between stdout and stderr (not part of this version).
    #[arg(long)]
    pub log_text_split_stream: bool,
    /// Accepted: log lines are never held back here.
    #[arg(long, default_value = "0", value_name = "SIZE")]
    pub log_text_info_buffer_size: String,
    /// Split JSON logs between stdout and stderr (not part of this version).
    #[arg(long)]
    pub log_json_split_stream: bool,
    /// Accepted: log lines are never held back here.
    #[arg(long, default_value = "0", value_name = "SIZE")]
    pub log_json_info_buffer_size: String,
    /// Accepted: tuning of the Go runtime has no meaning here.
    #[arg(long)]
    pub automaxprocs: bool,
}

impl KlogFlags {
    /// Levels of source files, and notes for flags that are accepted without an effect.
    fn check(self) -> Result<(ModuleLevels, Vec<String>), UsageError> {
        let Self {
            vmodule,
            log_flush_frequency,
            log_text_split_stream,
            log_text_info_buffer_size,
            log_json_split_stream,
            log_json_info_buffer_size,
            automaxprocs,
        } = self;
        let not_yet = |flag: &str, what| Err(UsageError::FlagNotYet { flag: flag.into(), what });
        let modules = LogOptions::parse_modules(&vmodule)
            .map_err(|why| UsageError::bad_value("--vmodule", &vmodule, why))?;
        let one_stream = "all log lines go to stderr";
        if log_text_split_stream {
            return not_yet("--log-text-split-stream", one_stream);
        }
        if log_json_split_stream {
            return not_yet("--log-json-split-stream", one_stream);
        }
        let mut notes = Vec::new();
        let mut note = |changed: bool, flag: &str, why: &str| {
            if changed {
                notes.push(format!("{flag} has no effect: {why}"));
            }
        };
        let unbuffered = "every log line is written at once";
        note(log_flush_frequency != Duration::from_secs(5), "--log-flush-frequency", unbuffered);
        note(log_text_info_buffer_size != "0", "--log-text-info-buffer-size", unbuffered);
        note(log_json_info_buffer_size != "0", "--log-json-info-buffer-size", unbuffered);
        note(automaxprocs, "--automaxprocs", "it tunes the Go runtime");
        Ok((modules, notes))
    }
}

/// What the process finds in its environment. Kept beside the flags so that tests can set it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `KUBECONFIG`.
    pub kubeconfig: Option<String>,
    /// `NODE_NAME`.
    pub node_name: Option<String>,
    /// `POD_NAMESPACE`.
    pub pod_namespace: Option<String>,
    /// `POD_NAME`.
    pub pod_name: Option<String>,
    /// `NAMESPACE`.
    pub namespace: Option<String>,
}

impl Environment {
    /// The environment of this process; an empty variable counts as absent.
    #[must_use]
    pub(crate) fn of_process() -> Self {
        let read = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            kubeconfig: read("KUBECONFIG"),
            node_name: read("NODE_NAME"),
            pod_namespace: read("POD_NAMESPACE"),
            pod_name: read("POD_NAME"),
            namespace: read("NAMESPACE"),
        }
    }
}

/// Which cluster to talk to, and how hard.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kubernetes API")]
pub(crate) struct KubeFlags {
    /// Client configuration; without it the in-cluster one is used.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "FILE")]
    pub kubeconfig: String,
    /// Requests per second; unset, requests in flight are limited by how the server copes.
    #[arg(long, value_parser = values::rate, allow_hyphen_values = true, value_name = "N")]
    pub kube_api_qps: Option<f32>,
    /// Requests that may exceed the rate at once (10 when only the rate is set).
    #[arg(long, value_parser = values::count, value_name = "N")]
    pub kube_api_burst: Option<u32>,
}

/// Access to a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KubeAccess {
    /// The kubeconfig file; none means in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, over what the kubeconfig says.
    pub master: Option<String>,
    /// The limit on requests.
    pub throttle: Throttle,
}

/// The limit on API requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Throttle {
    /// Requests in flight, grown and shrunk by how the server answers.
    Adaptive,
    /// Requests per second, as upstream.
    Fixed {
        /// Sustained rate.
        qps: f32,
        /// Requests that may exceed it at once.
        burst: u32,
    },
    /// No limit, which Go clients write as a negative rate.
    Unlimited,
}

impl KubeFlags {
    /// The access these flags describe. `overriding` is the `KUBECONFIG` of programs that let it win over the flag.
    #[must_use]
    pub(crate) fn access(self, master: String, overriding: Option<String>) -> KubeAccess {
        let Self { kubeconfig, kube_api_qps, kube_api_burst } = self;
        // Upstream's defaults stand in for whichever of the two is unset; Go clients also read zero as unset.
        let burst = kube_api_burst.filter(|burst| *burst > 0).unwrap_or(10);
        let throttle = match (kube_api_qps, kube_api_burst) {
            (None, None) => Throttle::Adaptive,
            (Some(qps), _) if qps < 0.0 => Throttle::Unlimited,
            (Some(qps), _) if qps > 0.0 => Throttle::Fixed { qps, burst },
            _ => Throttle::Fixed { qps: 5.0, burst },
        };
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let kubeconfig = overriding.or_else(|| some(kubeconfig)).map(PathBuf::from);
        KubeAccess { kubeconfig, master: some(master), throttle }
    }
}

/// Where the CSI driver is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CsiFlags {
    /// Socket of the CSI driver: a path or unix:///path.
    #[arg(long, default_value = "/run/csi/socket", value_parser = values::socket)]
    pub csi_address: PathBuf,
}

/// Leader election of the sidecars.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct ElectionFlags {
    /// Work only while holding the lease.
    #[arg(long)]
    pub leader_election: bool,
    /// Namespace of the lease; unset, the pod's own.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub leader_election_namespace: String,
    /// How long others wait after the last renewal before they take over.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    pub leader_election_lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    #[arg(long, default_value = "10s", value_parser = values::positive_duration)]
    pub leader_election_renew_deadline: Duration,
    /// Pause between attempts.
    #[arg(long, default_value = "5s", value_parser = values::positive_duration)]
    pub leader_election_retry_period: Duration,
    /// Labels of the lease: key:value,key:value.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "LABELS")]
    pub leader_election_labels: String,
}

/// Leader election, asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Election {
    /// From the flag or `POD_NAMESPACE`; none means the service account's file, then `default`.
    pub namespace: Option<String>,
    /// Checked against each other.
    pub times: ElectionTimes,
    /// Put on the lease.
    pub labels: BTreeMap<String, String>,
}

/// The three times of an election, with lease > renew > 1.2 × retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElectionTimes {
    /// How long others wait after the last renewal.
    pub lease_duration: Duration,
    /// How long the leader tries to renew.
    pub renew_deadline: Duration,
    /// Pause between attempts.
    pub retry_period: Duration,
}

impl ElectionFlags {
    /// The election, or none when `--leader-election` is off.
    ///
    /// # Errors
    /// When labels are malformed or the times do not fit together.
    pub(crate) fn election(
        self,
        environment: &Environment,
    ) -> Result<Option<Election>, UsageError> {
        let Self {
            leader_election,
            leader_election_namespace,
            leader_election_lease_duration: lease_duration,
            leader_election_renew_deadline: renew_deadline,
            leader_election_retry_period: retry_period,
            leader_election_labels,
        } = self;
        let labels = values::labels(&leader_election_labels).map_err(|why| {
            UsageError::bad_value("--leader-election-labels", &leader_election_labels, why)
        })?;
        if !leader_election {
            return Ok(None);
        }
        if lease_duration <= renew_deadline {
            return Err(UsageError::Together(
                "--leader-election-lease-duration must be longer than --leader-election-renew-deadline".into(),
            ));
        }
        if renew_deadline <= retry_period.mul_f64(1.2) {
            return Err(UsageError::Together(
                "--leader-election-renew-deadline must be longer than 1.2 times --leader-election-retry-period".into(),
            ));
        }
        let namespace = Some(leader_election_namespace)
            .filter(|name| !name.is_empty())
            .or_else(|| environment.pod_namespace.clone());
        let times = ElectionTimes { lease_duration, renew_deadline, retry_period };
        Ok(Some(Election { namespace, times, labels }))
    }
}

/// The diagnostics endpoint of the sidecars.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Diagnostics")]
pub(crate) struct DiagnosticsFlags {
    /// Serve metrics and health checks on HOST:PORT or :PORT.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    pub http_endpoint: String,
    /// Old form of --http-endpoint, without health checks.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    pub metrics_address: String,
    /// Path of the metrics.
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    pub metrics_path: String,
}

/// Where to serve metrics and health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnostics {
    /// `HOST:PORT` to listen on.
    pub address: String,
    /// Path of the metrics.
    pub metrics_path: String,
    /// Whether `/healthz/leader-election` is served: with `--http-endpoint`, not with `--metrics-address`.
    pub leader_health: bool,
    /// Whether `/debug/pprof/` is served.
    pub pprof: bool,
}

impl Diagnostics {
    /// The same for a program that elects a leader, or does not: the health of its lease is served
    /// only where there is one.
    #[must_use]
    pub(crate) fn with_election(self, elects: bool) -> Self {
        Self { leader_health: self.leader_health && elects, ..self }
    }

    /// The same with `/debug/pprof/`, or without.
    #[must_use]
    pub(crate) fn with_pprof(self, pprof: bool) -> Self {
        Self { pprof, ..self }
    }
}

impl DiagnosticsFlags {
    /// The endpoint, or none when no address is given.
    ///
    /// # Errors
    /// When both addresses are given or one cannot be read.
    pub(crate) fn endpoint(self) -> Result<Option<Diagnostics>, UsageError> {
        let Self { http_endpoint, metrics_address, metrics_path } = self;
        let (flag, text) = match (http_endpoint.is_empty(), metrics_address.is_empty()) {
            (true, true) => return Ok(None),
            (false, true) => ("--http-endpoint", http_endpoint),
            (true, false) => ("--metrics-address", metrics_address),
            (false, false) => {
                return Err(UsageError::AsOfficial(
                    "--http-endpoint and --metrics-address cannot be used together; keep --http-endpoint".into(),
                ));
            }
        };
        if !metrics_path.starts_with('/') {
            return Err(UsageError::bad_value(
                "--metrics-path",
                metrics_path,
                "a path begins with /",
            ));
        }
        let address =
            values::listen_address(&text).map_err(|why| UsageError::bad_value(flag, &text, why))?;
        let leader_health = flag == "--http-endpoint";
        Ok(Some(Diagnostics { address, metrics_path, leader_health, pprof: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election() -> ElectionFlags {
        ElectionFlags {
            leader_election: true,
            leader_election_namespace: String::new(),
            leader_election_lease_duration: Duration::from_secs(15),
            leader_election_renew_deadline: Duration::from_secs(10),
            leader_election_retry_period: Duration::from_secs(5),
            leader_election_labels: String::new(),
        }
    }

    #[test]
    fn election_times_are_checked() {
        let nowhere = Environment::default();
        assert!(election().election(&nowhere).unwrap().is_some());
        assert_eq!(
            ElectionFlags { leader_election: false, ..election() }.election(&nowhere),
            Ok(None)
        );
        // case: csi-protocol/14.15
        let retry = Duration::from_secs(9);
        let refused = ElectionFlags { leader_election_retry_period: retry, ..election() };
        assert!(refused.election(&nowhere).unwrap_err().to_string().contains("1.2 times"));
        let renew = Duration::from_secs(15);
        let refused = ElectionFlags { leader_election_renew_deadline: renew, ..election() };
        assert!(refused.election(&nowhere).is_err());
    }

    #[test]
    fn election_namespace_comes_from_flag_then_pod() {
        let pod = Environment { pod_namespace: Some("pod-ns".into()), ..Environment::default() };
        let named = ElectionFlags { leader_election_namespace: "flag-ns".into(), ..election() };
        for (flags, environment, namespace) in [
            (named, &pod, Some("flag-ns")),
            (election(), &pod, Some("pod-ns")),
            (election(), &Environment::default(), None),
        ] {
            let election = flags.election(environment).unwrap().unwrap();
            assert_eq!(election.namespace.as_deref(), namespace);
        }
    }

    #[test]
    fn throttle_is_adaptive_until_a_rate_is_set() {
        for (qps, burst, throttle) in [
            (None, None, Throttle::Adaptive),
            (Some(20.0), None, Throttle::Fixed { qps: 20.0, burst: 10 }),
            (None, Some(40), Throttle::Fixed { qps: 5.0, burst: 40 }),
            (Some(20.0), Some(40), Throttle::Fixed { qps: 20.0, burst: 40 }),
            (Some(0.0), Some(0), Throttle::Fixed { qps: 5.0, burst: 10 }),
            (Some(-1.0), Some(40), Throttle::Unlimited),
        ] {
            let flags =
                KubeFlags { kubeconfig: String::new(), kube_api_qps: qps, kube_api_burst: burst };
            let access = flags.access(String::new(), None);
            assert_eq!(access.throttle, throttle, "{qps:?} {burst:?}");
        }
    }

    #[test]
    fn klog_flags_are_noted_or_refused() {
        let plain = KlogFlags {
            vmodule: String::new(),
            log_flush_frequency: Duration::from_secs(5),
            log_text_split_stream: false,
            log_text_info_buffer_size: "0".into(),
            log_json_split_stream: false,
            log_json_info_buffer_size: "0".into(),
            automaxprocs: false,
        };
        assert_eq!(plain.clone().check(), Ok((vec![], vec![])));
        let (_, notes) = KlogFlags { automaxprocs: true, ..plain.clone() }.check().unwrap();
        assert_eq!(notes, ["--automaxprocs has no effect: it tunes the Go runtime"]);
        let (modules, _) = KlogFlags { vmodule: "que*=5".into(), ..plain.clone() }.check().unwrap();
        assert_eq!(modules, [("que*".to_owned(), 5)]);
        assert!(KlogFlags { vmodule: "queue".into(), ..plain.clone() }.check().is_err());
        assert!(KlogFlags { log_json_split_stream: true, ..plain }.check().is_err());
    }

    #[test]
    fn diagnostics_addresses() {
        let flags = |http: &str, metrics: &str| DiagnosticsFlags {
            http_endpoint: http.into(),
            metrics_address: metrics.into(),
            metrics_path: "/metrics".into(),
        };
        assert_eq!(flags("", "").endpoint(), Ok(None));
        let http = flags(":8080", "").endpoint().unwrap().unwrap();
        assert_eq!((http.address.as_str(), http.leader_health), ("0.0.0.0:8080", true));
        let metrics = flags("", "127.0.0.1:1").endpoint().unwrap().unwrap();
        assert!(!metrics.leader_health);
        // case: csi-protocol/14.21
        assert_eq!(flags(":1", ":2").endpoint().unwrap_err().exit_code(), 1);
        assert_eq!(flags("nowhere", "").endpoint().unwrap_err().exit_code(), 2);
    }
}
