//! Leader election.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Environment, UsageError, values};

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

impl ElectionTimes {
    /// The same times, if they fit together. `prefix` is what the names of their flags begin with.
    ///
    /// # Errors
    /// When a leader could renew too late or too seldom.
    pub(crate) fn checked(self, prefix: &str) -> Result<Self, UsageError> {
        if self.lease_duration <= self.renew_deadline {
            return Err(UsageError::Together(format!(
                "{prefix}-lease-duration must be longer than {prefix}-renew-deadline"
            )));
        }
        if self.renew_deadline <= self.retry_period.mul_f64(1.2) {
            return Err(UsageError::Together(format!(
                "{prefix}-renew-deadline must be longer than 1.2 times {prefix}-retry-period"
            )));
        }
        Ok(self)
    }
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
        let namespace = Some(leader_election_namespace)
            .filter(|name| !name.is_empty())
            .or_else(|| environment.pod_namespace.clone());
        let times = ElectionTimes { lease_duration, renew_deadline, retry_period };
        Ok(Some(Election { namespace, times: times.checked("--leader-election")?, labels }))
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
}
