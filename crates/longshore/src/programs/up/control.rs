//! The loops of an embedded instance, each under the lease that its upstream counterpart holds.
//!
//! On a lost lease a loop stops, forgets, and campaigns again; the others go on. The identity is
//! the same after a restart, which the lock on the data directory makes safe: so a restart leads at
//! once instead of waiting for its own old lease to run out.

use std::time::Duration;

use longshore_cluster::{
    Api, Metrics,
    election::{self, ElectionConfig, OnLoss},
};
use longshore_controllers::{attacher, provision::NodeScope};
use longshore_csi::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::provision;
use crate::programs::controllers::{Controller, Shared};

const IDENTITY: &str = "longshore-up";
const NAMESPACE: &str = "kube-system";

/// How long a loop may take to end. One that waits for a first list that never comes would wait for
/// ever; what it had in hand is finished by the next start, as after a crash.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The running loops.
pub(super) struct Control {
    shared: Shared,
    identity: String,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Control {
    /// Starts the loops that need no driver.
    pub(super) fn start(api: Api, metrics: Metrics, stop: &CancellationToken) -> Self {
        let shared = Shared::new(api, metrics, stop);
        let mut control = Self::empty(shared, stop, IDENTITY.to_owned());
        for controller in Controller::ALL {
            let shared = control.shared.clone();
            control.lead(controller.name(), move |stop| {
                let shared = shared.clone();
                async move { shared.run(controller, stop).await }
            });
        }
        control
    }

    /// The loops of one node of several: only what must run beside that node's drivers.
    pub(super) fn for_node(
        api: Api,
        metrics: Metrics,
        stop: &CancellationToken,
        node: &str,
    ) -> Self {
        let shared = Shared::new(api, metrics, stop);
        let identity = format!("{IDENTITY}-{node}");
        Self::empty(shared, stop, identity)
    }

    fn empty(shared: Shared, stop: &CancellationToken, identity: String) -> Self {
        Self { shared, identity, stop: stop.clone(), tasks: JoinSet::new() }
    }

    /// Starts the provisioner of one driver.
    pub(super) fn provision(&mut self, driver: &str, csi: Client) {
        self.provision_as(driver, csi, None);
    }

    /// Starts the provisioner of a node's own driver, which answers only for that node's claims.
    pub(super) fn provision_node(&mut self, driver: &str, csi: Client, scope: NodeScope) {
        // Every node has its own, so they must not share one lease.
        self.provision_as(&format!("{driver}-{}", scope.node), csi, Some(scope));
    }

    fn provision_as(&mut self, lock: &str, csi: Client, scope: Option<NodeScope>) {
        let shared = self.shared.clone();
        self.lead(lock, move |stop| {
            let (shared, csi, scope) = (shared.clone(), csi.clone(), scope.clone());
            async move { provision::run(&shared, csi, scope, stop).await }
        });
    }

    /// Starts the attacher of one driver.
    pub(super) fn attach(&mut self, driver: &str, csi: Client) {
        let shared = self.shared.clone();
        self.lead(&format!("external-attacher-leader-{driver}"), move |stop| {
            let config = attacher::Config::default();
            let attacher = attacher::Attacher::new(&shared.context, csi.clone(), config);
            attacher.run_with_retries(stop)
        });
    }

    fn lead<F, Fut>(&mut self, lock: &str, work: F)
    where
        F: Fn(CancellationToken) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let config = ElectionConfig {
            identity: self.identity.clone(),
            on_loss: OnLoss::Rejoin,
            metrics: Some(self.shared.context.metrics.clone()),
            ..ElectionConfig::new(
                self.shared.context.api.clone(),
                NAMESPACE,
                election::lease_name(lock),
            )
        };
        let stop = self.stop.clone();
        let lock = lock.to_owned();
        self.tasks.spawn(async move {
            let stop_grace = async {
                stop.cancelled().await;
                tokio::time::sleep(STOP_GRACE).await;
            };
            let lead = async {
                // A loop that ends by itself (its driver was away, say) is started again.
                while !stop.is_cancelled() {
                    if let Err(error) = election::run(config.clone(), &stop, &work).await {
                        tracing::error!(%error, "a loop ended; it starts again");
                    }
                    stop.run_until_cancelled(tokio::time::sleep(config.retry_period)).await;
                }
            };
            tokio::select! {
                () = lead => {}
                () = stop_grace => tracing::warn!(lock, "a loop did not end in time and was cut off"),
            }
        });
    }

    /// Waits until every loop has ended. Cancel the token first.
    pub(super) async fn finish(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a loop ended abnormally");
            }
        }
    }
}
