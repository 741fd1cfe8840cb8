//! The loops of an embedded instance, each under the lease that its upstream counterpart holds.
//!
//! On a lost lease a loop stops, forgets, and campaigns again; the others go on. The identity is
//! the same after a restart, which the lock on the data directory makes safe: so a restart leads at
//! once instead of waiting for its own old lease to run out.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use longshore_cluster::{
    Api, Metrics,
    election::{self, ElectionConfig, OnLoss},
};
use longshore_controllers::{
    attacher,
    node_lifecycle::{self, NodeLifecycle},
    provision::NodeScope,
    resize::{Abilities, AbilitiesError, Config, Expander},
    root_ca::{self, RootCa},
    snapshot_controller::{self, SnapshotController},
    snapshotter::{self, Snapshotter},
    unserved::{Serving, Unserved},
};
use longshore_core::unserved::Server;
use longshore_csi::Client;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{bootstrap, drivers, provision, resize};
use crate::programs::controllers::{Controller, Shared};

const IDENTITY: &str = "longshore-up";
const NAMESPACE: &str = "kube-system";
/// The lock of the loop that tells objects that no program serves them.
const UNSERVED: &str = "longshore-unserved-requests";

/// How long a loop may take to end. One that waits for a first list that never comes would wait for
/// ever; what it had in hand is finished by the next start, as after a crash.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// How long the start waits for foreign drivers, so that their classes are there when it is done.
const FOREIGN_GRACE: Duration = Duration::from_secs(3);

/// Pause before a foreign driver is asked again what it can do.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What it takes to run a loop under its lease.
#[derive(Clone)]
struct Loops {
    shared: Shared,
    serving: Serving,
    identity: String,
    stop: CancellationToken,
}

/// The running loops.
pub(super) struct Control {
    loops: Loops,
    tasks: JoinSet<()>,
    /// Foreign drivers by their sockets; the token says that the driver has answered.
    foreign: Vec<(PathBuf, CancellationToken)>,
}

impl Control {
    /// Starts the loops that need no driver. `ca` is the certificate by which pods know the API;
    /// programs beside this one reach it with `kubeconfig`.
    pub(super) fn start(
        api: Api,
        metrics: Metrics,
        ca: &str,
        kubeconfig: &Path,
        stop: &CancellationToken,
    ) -> Self {
        let mut control = Self::empty(api, metrics, stop, IDENTITY.to_owned());
        control.loops.serving = Serving::new(kubeconfig);
        control.tasks.spawn(control.loops.publish_ca(ca));
        for controller in Controller::ALL {
            let shared = control.loops.shared.clone();
            let lead = control.loops.lead(controller.name(), move |stop| {
                let shared = shared.clone();
                async move { shared.run(controller, stop).await }
            });
            control.tasks.spawn(lead);
        }
        control.tasks.spawn(control.loops.control_snapshots());
        control.tasks.spawn(control.loops.tell_unserved());
        control.tasks.spawn(control.loops.watch_nodes());
        control
    }

    /// Says that a driver of this instance is on this socket, for programs beside this one.
    pub(super) fn add_driver(&self, driver: &str, socket: &Path) {
        self.loops.serving.add_driver(driver, socket);
    }

    /// Says that other processes of this instance provision volumes of a driver, and take snapshots.
    pub(super) fn provisioned_elsewhere(&self, driver: &str) {
        self.loops.serving.add(Server::Provisioner(driver.to_owned()));
        self.loops.serving.add(Server::Snapshotter(driver.to_owned()));
    }

    /// The loops of one node of several: only what must run beside that node's drivers.
    pub(super) fn for_node(
        api: Api,
        metrics: Metrics,
        stop: &CancellationToken,
        node: &str,
    ) -> Self {
        Self::empty(api, metrics, stop, format!("{IDENTITY}-{node}"))
    }

    fn empty(api: Api, metrics: Metrics, stop: &CancellationToken, identity: String) -> Self {
        let shared = Shared::new(api, metrics, stop);
        let loops = Loops { shared, serving: Serving::default(), identity, stop: stop.clone() };
        Self { loops, tasks: JoinSet::new(), foreign: Vec::new() }
    }

    /// Starts the provisioner of one driver.
    pub(super) fn provision(&mut self, driver: &str, csi: Client) {
        self.loops.serving.add(Server::Provisioner(driver.to_owned()));
        self.tasks.spawn(self.loops.provision(driver, csi, None));
    }

    /// Starts the provisioner of a node's own driver, which answers only for that node's claims.
    pub(super) fn provision_node(&mut self, driver: &str, csi: Client, scope: NodeScope) {
        // Every node has its own, so they must not share one lease.
        let lock = format!("{driver}-{}", scope.node);
        self.tasks.spawn(self.loops.provision(&lock, csi, Some(scope)));
    }

    /// Starts the snapshotter of one driver.
    pub(super) fn snapshot(&mut self, driver: &str, csi: Client) {
        self.tasks.spawn(self.loops.snapshot(driver, driver, csi, None));
    }

    /// Starts the snapshotter of a node's own driver, which serves only that node's volumes.
    pub(super) fn snapshot_node(&mut self, driver: &str, csi: Client, scope: &NodeScope) {
        let lock = format!("{driver}-{}", scope.node);
        let scope = snapshotter::NodeScope { node: scope.node.clone(), unlabelled: scope.unplaced };
        self.tasks.spawn(self.loops.snapshot(&lock, driver, csi, Some(scope)));
    }

    /// Starts the attacher of one driver.
    pub(super) fn attach(&mut self, driver: &str, csi: Client) {
        self.tasks.spawn(self.loops.attach(driver, csi));
    }

    /// Starts the resizer of one driver.
    pub(super) fn resize(&mut self, driver: &str, csi: Client) {
        self.resized_here(driver);
        self.tasks.spawn(self.loops.resize(driver, resize::Part::Whole(csi)));
    }

    /// Starts the part of the resizer that nodes with drivers of their own share: expansions. A program
    /// beside each of those drivers modifies.
    pub(super) fn resize_for_nodes(&mut self, driver: &str) {
        self.resized_here(driver);
        let part = resize::Part::Expansions(driver.to_owned());
        self.tasks.spawn(self.loops.resize(driver, part));
    }

    fn resized_here(&self, driver: &str) {
        self.loops.serving.add(Server::Resizer(driver.to_owned()));
        self.loops.serving.add(Server::Modifier(driver.to_owned()));
    }

    /// Starts the modifier of a node's own driver.
    pub(super) fn modify_node(&mut self, driver: &str, csi: Client, node: &str) {
        let part = resize::Part::Modifications { csi, node: node.to_owned() };
        // Every node has its own, so they must not share one lease.
        self.tasks.spawn(self.loops.resize(&format!("{driver}-{node}"), part));
    }

    /// Starts the loops of a foreign driver once it answers, however late that is.
    pub(super) fn serve_foreign(&mut self, socket: PathBuf) {
        let answered = CancellationToken::new();
        self.foreign.push((socket.clone(), answered.clone()));
        let loops = self.loops.clone();
        self.tasks.spawn(async move {
            let Some((driver, csi)) = drivers::ask_foreign(&socket, &loops.stop).await else {
                return;
            };
            let attaches = driver.capabilities.publish;
            let api = &loops.shared.context.api;
            if let Err(error) = bootstrap::ensure_foreign(api, &driver.name, attaches).await {
                tracing::error!(%error, driver = driver.name, "cannot make the driver's objects");
            }
            loops.serving.add_driver(&driver.name, &socket);
            answered.cancel();
            loops.serving.add(Server::Provisioner(driver.name.clone()));
            let provisioning = loops.provision(&driver.name, csi.clone(), None);
            let resizing = loops.resize_foreign(&driver.name, csi.clone());
            let snapshots = async {
                match driver.capabilities.create_delete_snapshot {
                    true => loops.snapshot(&driver.name, &driver.name, csi.clone(), None).await,
                    false => loops.serving.cannot(Server::Snapshotter(driver.name.clone())),
                }
            };
            let attaching = async {
                if attaches {
                    loops.attach(&driver.name, csi.clone()).await;
                }
            };
            tokio::join!(provisioning, resizing, attaching, snapshots);
        });
    }

    /// Waits a moment for the foreign drivers and logs which of them do not answer yet.
    pub(super) async fn greet_foreign(&self) {
        let deadline = Instant::now() + FOREIGN_GRACE;
        for (socket, answered) in &self.foreign {
            if timeout_at(deadline, answered.cancelled()).await.is_err() {
                let socket = socket.display();
                tracing::warn!(%socket, "no driver answers on this socket yet; it is served as soon as one does");
            }
        }
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

impl Loops {
    fn provision(
        &self,
        lock: &str,
        csi: Client,
        scope: Option<NodeScope>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.shared.clone();
        self.lead(lock, move |stop| {
            let (shared, csi, scope) = (shared.clone(), csi.clone(), scope.clone());
            async move { provision::run(&shared, csi, scope, stop).await }
        })
    }

    fn resize(&self, lock: &str, part: resize::Part) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.shared.clone();
        self.lead(&format!("external-resizer-{lock}"), move |stop| {
            let (shared, part) = (shared.clone(), part.clone());
            async move { resize::run(&shared, part, stop).await }
        })
    }

    /// The resizer of a foreign driver, as far as the driver can do any of its work. What it cannot do is
    /// said on the claims that ask for it.
    async fn resize_foreign(&self, driver: &str, csi: Client) {
        let timeout = Config::default().timeout;
        let able = loop {
            let Some(asked) = self.stop.run_until_cancelled(Abilities::ask(&csi, timeout)).await
            else {
                return;
            };
            match asked {
                Ok(able) => break (able.expander != Expander::Nobody, able.modifies),
                Err(AbilitiesError::Neither | AbilitiesError::NoController(_)) => {
                    break (false, false);
                }
                Err(error) => tracing::warn!(driver, %error, "not asked yet what it can resize"),
            }
            self.stop.run_until_cancelled(tokio::time::sleep(ASK_AGAIN)).await;
        };
        for (can, server) in [
            (able.0, Server::Resizer(driver.to_owned())),
            (able.1, Server::Modifier(driver.to_owned())),
        ] {
            match can {
                true => self.serving.add(server),
                false => self.serving.cannot(server),
            }
        }
        if able.0 || able.1 {
            self.resize(driver, resize::Part::Whole(csi)).await;
        }
    }

    fn publish_ca(&self, ca: &str) -> impl Future<Output = ()> + Send + use<> {
        let (shared, ca) = (self.shared.clone(), ca.to_owned());
        self.lead(root_ca::NAME, move |stop| RootCa::new(&shared.context, &ca, &stop).run(stop))
    }

    fn attach(&self, driver: &str, csi: Client) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.shared.clone();
        self.serving.add(Server::Attacher(driver.to_owned()));
        self.lead(&format!("external-attacher-leader-{driver}"), move |stop| {
            let config = attacher::Config::default();
            let attacher = attacher::Attacher::new(&shared.context, csi.clone(), config);
            attacher.run_with_retries(stop)
        })
    }

    /// Contents are labelled with the node of their volume: drivers of several nodes may share one name.
    fn control_snapshots(&self) -> impl Future<Output = ()> + Send + use<> {
        let context = self.shared.context.clone();
        let server = Server::SnapshotController;
        let lock = server.lock().unwrap_or_default();
        self.serving.add(server);
        self.lead(&lock, move |stop| {
            let config = snapshot_controller::Config {
                enable_distributed_snapshotting: true,
                ..snapshot_controller::Config::default()
            };
            SnapshotController::new(&context, config).run(stop)
        })
    }

    fn snapshot(
        &self,
        lock: &str,
        driver: &str,
        csi: Client,
        scope: Option<snapshotter::NodeScope>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let context = self.shared.context.clone();
        self.serving.add(Server::Snapshotter(driver.to_owned()));
        let lock = Server::Snapshotter(lock.to_owned()).lock().unwrap_or_default();
        self.lead(&lock, move |stop| {
            let config = snapshotter::Config {
                leak_guard: true,
                scope: scope.clone(),
                ..snapshotter::Config::default()
            };
            Snapshotter::new(&context, csi.clone(), config).run_with_retries(stop)
        })
    }

    fn tell_unserved(&self) -> impl Future<Output = ()> + Send + use<> {
        let (context, serving) = (self.shared.context.clone(), self.serving.clone());
        self.lead(UNSERVED, move |stop| Unserved::new(&context, serving.clone()).run(stop))
    }

    fn watch_nodes(&self) -> impl Future<Output = ()> + Send + use<> {
        let context = self.shared.context.clone();
        self.lead(node_lifecycle::NAME, move |stop| NodeLifecycle::new(&context).run(stop))
    }

    /// Runs a loop whenever it leads, until the instance stops.
    fn lead<F, Fut>(&self, lock: &str, work: F) -> impl Future<Output = ()> + Send + use<F, Fut>
    where
        F: Fn(CancellationToken) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let context = &self.shared.context;
        let config = ElectionConfig {
            identity: self.identity.clone(),
            on_loss: OnLoss::Rejoin,
            metrics: Some(context.metrics.clone()),
            ..ElectionConfig::new(context.api.clone(), NAMESPACE, election::lease_name(lock))
        };
        let (stop, lock) = (self.stop.clone(), lock.to_owned());
        async move {
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
        }
    }
}
