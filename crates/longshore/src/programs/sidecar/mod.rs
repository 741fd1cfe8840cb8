//! What the sidecars share: the way they start, lead and end.
//!
//! Under an official name a process has upstream's manners: it waits 30 s for the driver's socket,
//! probes until the driver is ready, and exits with 1 when it loses the driver or its lease.

mod controller;
mod flags;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use longshore_cluster::{
    Api, KeepAlive, Metrics, Recorder,
    config::ClientConfig,
    election::{self, ElectionConfig, OnLoss},
    shutdown,
    telemetry::Endpoint,
};
use longshore_core::model::{Kind as _, kinds::VolumeAttributesClass};
use longshore_core::provision::migration::plugin_of;
use longshore_core::words;
use longshore_csi::{
    Client, ConnectOptions, Options,
    client::{LOST_CONNECTION, TERMINATION_LOG},
    metrics::Side,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::controller::{Controller, Reached, Ready, Right, Unable, alone};
pub(crate) use self::flags::{
    Config, GATES, RELEASE_ON_EXIT, SidecarFlags, no_lease_per_node, read_gates,
};
use crate::flags::{Diagnostics, Election, KubeAccess, Throttle, log_other_kubeconfig};
use crate::process::unless_stopped;

/// A flag that most official sidecars once had, and what replaced it.
pub(crate) const NO_CONNECTION_TIMEOUT: (&str, &str) = (
    "connection-timeout",
    "use --timeout for the time of one CSI call; the wait for the socket is fixed",
);

/// Another one.
pub(crate) const NO_ELECTION_TYPE: (&str, &str) =
    ("leader-election-type", "use --leader-election, which always takes a Lease");

/// A sidecar that has reached its driver and its cluster.
pub(crate) struct Sidecar {
    pub api: Api,
    pub csi: Client,
    pub driver: String,
    pub metrics: Metrics,
    pub shutdown: CancellationToken,
    leases: Api,
    status: election::Status,
    election: Option<Election>,
    release_lease_on_exit: bool,
}

impl Config {
    /// Reaches the cluster and the driver, in upstream's order. `program` is its name in the user agent, and
    /// `call_timeout` the deadline of each CSI call.
    pub(crate) async fn begin(self, program: &str, call_timeout: Duration) -> Result<Sidecar> {
        let shutdown = shutdown::on_signals().context("cannot listen for signals")?;
        unless_stopped(&shutdown, self.reach(program, call_timeout, &shutdown)).await
    }

    async fn reach(
        self,
        program: &str,
        call_timeout: Duration,
        shutdown: &CancellationToken,
    ) -> Result<Sidecar> {
        let metrics = Metrics::new();
        let (api, leases) = self.cluster(program, &metrics).await?;
        let counted = csi_metrics(&metrics);
        let csi = self.connect(call_timeout, &counted).await?;
        let status = election::Status::default();
        if let Some(diagnostics) = &self.diagnostics {
            serve(diagnostics, &metrics, &status, shutdown).await?;
        }
        csi.wait_ready(call_timeout).await?;
        let driver = csi.driver_name().await.context("cannot learn the driver's name")?;
        let csi = match plugin_of(&driver) {
            None => csi,
            // A driver that took over from an in-tree plugin is connected to again, as upstream does. On the new
            // connection calls say whether they are about a translated object; these are not.
            Some(_) => {
                drop(csi);
                let csi = self
                    .connect(call_timeout, &counted)
                    .await?
                    .with_driver_name(&driver)
                    .with_migrated(Some(false));
                csi.wait_ready(call_timeout).await?;
                csi
            }
        };
        tracing::info!(driver, "connected to the driver");
        crate::process::memory::keep_small(shutdown.clone());
        let Self { election, release_lease_on_exit, .. } = self;
        Ok(Sidecar {
            api,
            csi,
            driver,
            metrics,
            shutdown: shutdown.clone(),
            leases,
            status,
            election,
            release_lease_on_exit,
        })
    }

    /// The clients of the cluster: one for the work, with limits, and one for leases alone.
    pub(crate) async fn cluster(&self, program: &str, metrics: &Metrics) -> Result<(Api, Api)> {
        log_other_kubeconfig(self.kube.kubeconfig.as_deref());
        let config = client_config(self.kube.clone(), program, metrics);
        Ok((Api::new(config.client().await?), Api::new(config.lease_client().await?)))
    }

    /// Connects to the driver; it has as long as upstream gives it.
    pub(crate) async fn connect(
        &self,
        call_timeout: Duration,
        counted: &longshore_csi::metrics::Metrics,
    ) -> Result<Client> {
        let options = ConnectOptions {
            calls: Options {
                timeout: Some(call_timeout),
                metrics: Some(counted.clone()),
                max_log_length: self.log_limit,
            },
            ..ConnectOptions::from(self.socket.display().to_string())
        };
        Ok(Client::connect(options).await?)
    }
}

/// Registers what is counted of a sidecar's calls.
pub(crate) fn csi_metrics(metrics: &Metrics) -> longshore_csi::metrics::Metrics {
    metrics.with_registry(|registry| {
        longshore_csi::metrics::Metrics::register(registry, Side::Sidecar)
    })
}

/// Reads the cluster's flags into a client configuration.
pub(crate) fn client_config(kube: KubeAccess, program: &str, metrics: &Metrics) -> ClientConfig {
    let (qps, burst) = match kube.throttle {
        Throttle::Adaptive => (None, None),
        Throttle::Fixed { qps, burst } => (Some(qps), Some(burst)),
        Throttle::Unlimited => (Some(-1.0), None),
    };
    ClientConfig {
        kubeconfig: kube.kubeconfig,
        master: kube.master,
        context: None,
        qps,
        burst,
        user_agent: Some(format!("{program}/{}", env!("CARGO_PKG_VERSION"))),
        keep_alive: KeepAlive::default(),
        metrics: Some(metrics.clone()),
    }
}

/// Serves metrics and health.
pub(crate) async fn serve(
    diagnostics: &Diagnostics,
    metrics: &Metrics,
    status: &election::Status,
    shutdown: &CancellationToken,
) -> Result<()> {
    let mut endpoint =
        Endpoint::new(metrics).metrics_path(&diagnostics.metrics_path).pprof(diagnostics.pprof);
    if diagnostics.leader_health {
        let status = status.clone();
        endpoint = endpoint.check("leader-election", move || status.check());
    }
    endpoint.serve(&diagnostics.address, shutdown).await?;
    Ok(())
}

/// Whether the API server has VolumeAttributesClasses. As upstream, one that cannot be asked counts
/// as having them.
pub(crate) async fn has_attributes_classes(api: &Api) -> bool {
    offers_attributes_classes(api.client().list_api_group_resources("storage.k8s.io/v1").await)
}

/// A server without this version of the group has not the kind either; any other failure says nothing.
fn offers_attributes_classes(asked: kube::Result<APIResourceList>) -> bool {
    match asked {
        Ok(list) => list.resources.iter().any(|one| one.kind == VolumeAttributesClass::KIND),
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => {
            let error = words::causes(&error);
            tracing::warn!(error, "cannot ask for the kinds of storage.k8s.io/v1");
            true
        }
    }
}

/// A candidate for a lease, with the terms that were asked for.
pub(crate) fn candidate(asked: Election, leases: &Api, lock: &str) -> ElectionConfig {
    let Election { namespace, times, labels } = asked;
    let namespace = namespace.unwrap_or_else(election::default_namespace);
    ElectionConfig {
        lease_duration: times.lease_duration,
        renew_deadline: times.renew_deadline,
        retry_period: times.retry_period,
        labels,
        ..ElectionConfig::new(leases.clone(), namespace, election::lease_name(lock))
    }
}

/// Leaves a text where the kubelet looks for the reason of a container's end.
pub(crate) fn last_words(text: &str) {
    let log = std::path::Path::new(TERMINATION_LOG);
    // Only a container has this file; elsewhere it would litter /dev.
    if log.exists()
        && let Err(error) = std::fs::write(log, text)
    {
        tracing::warn!(%error, "cannot write the termination log");
    }
}

/// Where events of the sidecars of a driver come from.
pub(crate) fn component(driver: &str) -> String {
    format!("{driver}_{}", election::host_identity())
}

impl Sidecar {
    /// What the work of this sidecar needs of it.
    fn reached(&self) -> Reached {
        let namespace = self.election.as_ref().and_then(|election| election.namespace.clone());
        Reached {
            api: self.api.clone(),
            csi: self.csi.clone(),
            metrics: self.metrics.clone(),
            component: self.component(),
            namespace: namespace.unwrap_or_else(election::default_namespace),
        }
    }

    /// Where this program's events come from.
    fn component(&self) -> String {
        component(&self.driver)
    }

    fn recorder(&self) -> Recorder {
        Recorder::start(&self.api, &self.component(), "", &self.shutdown).0
    }

    /// Runs `work` while leading (or at once without election) until a signal or a loss.
    ///
    /// # Errors
    /// When the driver's connection or the lease is lost.
    pub(crate) async fn lead<F, Fut>(&self, lock: &str, work: F) -> Result<()>
    where
        F: Fn(CancellationToken) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let working = async {
            match &self.election {
                None => {
                    work(self.shutdown.clone()).await;
                    Ok(())
                }
                Some(asked) => {
                    let config = self.election_config(asked.clone(), lock);
                    election::run(config, &self.shutdown, work).await
                }
            }
        };
        tokio::select! {
            done = working => done.map_err(Into::into),
            () = self.csi.connection_lost() => {
                last_words(LOST_CONNECTION);
                bail!("Lost connection to CSI driver {}, exiting", self.driver)
            }
        }
    }

    fn election_config(&self, asked: Election, lock: &str) -> ElectionConfig {
        ElectionConfig {
            // A restarted container goes on where it left off.
            identity: election::host_identity(),
            on_loss: OnLoss::Exit,
            release_on_exit: self.release_lease_on_exit,
            recorder: Some(self.recorder()),
            metrics: Some(self.metrics.clone()),
            status: self.status.clone(),
            ..candidate(asked, &self.leases, lock)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use serde_json::json;

    #[test]
    fn only_an_answer_says_that_there_are_no_attributes_classes() {
        let list = |kind: &str| -> kube::Result<APIResourceList> {
            let one = json!({"name": "n", "singularName": "n", "namespaced": false, "kind": kind, "verbs": []});
            let list = json!({"groupVersion": "storage.k8s.io/v1", "resources": [one]});
            Ok(serde_json::from_value(list).unwrap())
        };
        let failed =
            |code| Err(kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code))));
        // case: resizer/66
        for (name, asked, want) in [
            ("there", list("VolumeAttributesClass"), true),
            ("not there", list("StorageClass"), false),
            ("no such version", failed(404), false),
            ("the server has trouble", failed(500), true),
        ] {
            assert_eq!(offers_attributes_classes(asked), want, "{name}");
        }
    }
}
