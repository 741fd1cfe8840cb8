//! The process: what all controllers share, and how it ends.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use longshore_cluster::election::{ElectionConfig, default_namespace, holds};
use longshore_cluster::telemetry::Endpoint;
use longshore_cluster::{Api, Context, Metrics, shutdown};
use longshore_core::provision::migration::plugin_of;
use longshore_csi::{Client, NotAgreed};
use longshore_files::fault::Faults;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::board::{Board, Entry};
use super::link::{Connected, Link};
use super::node::Node;
use super::pages::Pages;
use super::seat::{Restarts, Seat};
use super::{Config, Member};
use crate::cli::Program as _;
use crate::flags::{Diagnostics, KubeAccess};
use crate::process::{faults, memory, outlive_blocked_tasks, unless_stopped};
use crate::programs::sidecar::{
    self, Controller, Reached, candidate, client_config, component, csi_metrics, last_words,
};

/// How long calls may take to end after SIGTERM: the grace that a pod has when it asks for none, and a little less.
const GRACE: Duration = Duration::from_secs(28);

/// Deadline of calls that are no controller's, where no controller has one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// `longshore sidecars`.
pub(super) async fn run(config: Config) -> Result<()> {
    let stop = shutdown::on_signals().context("cannot listen for signals")?;
    let process = unless_stopped(&stop, Process::start(config, &stop)).await?;
    memory::keep_small(stop.clone());
    outlive_blocked_tasks().context("cannot start a thread")?;
    process.run(stop).await
}

/// The process with its driver reached and its controllers begun.
struct Process {
    driver: String,
    link: Link,
    board: Board,
    tasks: JoinSet<()>,
    /// Ends what the controllers share, after them.
    shared: CancellationToken,
}

impl Process {
    async fn start(config: Config, stop: &CancellationToken) -> Result<Self> {
        let Config { process, members, identity } = config;
        let board = Board::new(members.iter().map(|(name, member)| (*name, deadline(member))));
        let metrics = Metrics::new();
        let controls = members.iter().any(|(_, member)| matches!(member, Member::Controller(_)));
        let cluster = match controls {
            true => Some(process.cluster(Config::OFFICIAL[0], &metrics).await?),
            false => None,
        };
        let calls = csi_metrics(&metrics);
        metrics.with_registry(|registry| registry.register_collector(Box::new(board.clone())));
        let timeout = members.iter().filter_map(|(_, member)| deadline(member)).max();
        let timeout = timeout.unwrap_or(TIMEOUT);
        let csi = process.connect(timeout, &calls).await?;
        let probes = members.iter().any(|(_, member)| !matches!(member, Member::Controller(_)));
        let pages = Pages { board: board.clone(), probes: probes.then(Arc::default) };
        if let Some(diagnostics) = &process.diagnostics {
            serve(diagnostics, &metrics, pages.clone(), stop).await?;
        }
        let (link, first) = Link::open(csi.clone(), timeout).await;
        let Connected { driver, .. } = &*first;
        let driver = driver.name.clone();
        board.name_driver(&driver);
        tracing::info!(driver, "connected to the driver");
        let entry = |name: &str| board.entry(name).cloned();
        let node = Node::of(&members, &process.socket, &driver, &calls, entry).await?;
        match pages.probes {
            Some(probes) if process.diagnostics.as_ref().is_some_and(|d| d.leader_health) => {
                let _ = OnceLock::set(&probes, node.probes());
            }
            _ => node.serve_apart().await?,
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(node.register(stop.clone()));
        let shared = CancellationToken::new();
        if let Some((api, leases)) = cluster {
            let context = Context::new(api, metrics, &shared);
            let renewal = faults::of_leases(members.iter().map(|(name, _)| *name).collect());
            let driver = driver.clone();
            let common = Common { process, csi, context, leases, identity, driver, renewal };
            for (name, member) in members {
                let Member::Controller(controller) = member else { continue };
                let Some(entry) = entry(name) else { continue };
                let seat = common.seat(entry, controller.into(), &link).await?;
                tasks.spawn(seat.run(stop.clone()));
            }
        }
        Ok(Self { driver, link, board, tasks, shared })
    }

    async fn run(self, stop: CancellationToken) -> Result<()> {
        let Self { driver, link, board, mut tasks, shared } = self;
        let _ends = shared.drop_guard();
        tokio::select! {
            renamed = link.keep(&driver) => {
                last_words(&renamed.to_string());
                return Err(renamed.into());
            }
            why = board.all_idle() => {
                bail!("no controller has anything to do beside CSI driver {driver}: {why}");
            }
            () = stop.cancelled() => {}
        }
        let ended = async {
            while let Some(ended) = tasks.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(%error, "a controller ended abnormally");
                }
            }
        };
        match tokio::time::timeout(GRACE, ended).await {
            Ok(()) => Ok(()),
            Err(_) => bail!(
                "calls were still running when the time to stop was over; their leases run out"
            ),
        }
    }
}

/// The deadline of a member's calls.
fn deadline(member: &Member) -> Option<Duration> {
    match member {
        Member::Controller(controller) => Some(controller.timeout()),
        Member::Registrar(_) | Member::Liveness(_) => None,
    }
}

async fn serve(
    diagnostics: &Diagnostics,
    metrics: &Metrics,
    pages: Pages,
    stop: &CancellationToken,
) -> Result<()> {
    let Diagnostics { address, metrics_path, leader_health, pprof } = diagnostics;
    let mut endpoint = Endpoint::new(metrics).metrics_path(metrics_path).pprof(*pprof);
    if *leader_health {
        endpoint = endpoint.routes(pages.routes());
    }
    endpoint.serve(address, stop).await?;
    Ok(())
}

/// What all controllers are made from.
struct Common {
    process: sidecar::Config,
    csi: Client,
    context: Context,
    leases: Api,
    identity: String,
    driver: String,
    renewal: Faults<Infallible>,
}

impl Common {
    async fn seat(
        &self,
        entry: Arc<Entry>,
        controller: Arc<dyn Controller>,
        link: &Link,
    ) -> Result<Seat> {
        let context = self.context_of(&*controller).await?.with_vitals(&entry.vitals);
        let election = self.process.election.clone().map(|asked| {
            let lease = candidate(asked, &self.leases, &controller.lock(&self.driver));
            entry.under(&lease.name);
            let (fit, renewal) = (entry.clone(), self.renewal.clone());
            ElectionConfig {
                identity: self.identity.clone(),
                release_on_exit: self.process.release_lease_on_exit,
                recorder: Some(context.recorder(&component(&self.driver))),
                metrics: Some(context.metrics.clone()),
                status: entry.leads.clone(),
                fit: Some(Arc::new(move || {
                    renewal.at(fit.name);
                    Ok(fit.stuck()?)
                })),
                ..lease
            }
        });
        let reached = self.reached(&context, controller.timeout(), election.as_ref());
        let (connection, restarts) = (link.connection(), Restarts::default());
        Ok(Seat { entry, controller, context, reached, connection, election, restarts })
    }

    /// A controller with limits of its own has a client of its own for what it writes.
    async fn context_of(&self, controller: &dyn Controller) -> Result<Context> {
        let throttle = controller.throttle();
        if throttle == self.process.kube.throttle {
            return Ok(self.context.clone());
        }
        let access = KubeAccess { throttle, ..self.process.kube.clone() };
        let config = client_config(access, Config::OFFICIAL[0], &self.context.metrics);
        Ok(self.context.with_api(Api::new(config.client().await?)))
    }

    fn reached(
        &self,
        context: &Context,
        timeout: Duration,
        election: Option<&ElectionConfig>,
    ) -> Reached {
        let mut csi = self.csi.with_timeout(Some(timeout));
        if let Some(candidate) = election.cloned().map(Arc::new) {
            csi = csi.with_fence(Arc::new(move || {
                let candidate = candidate.clone();
                Box::pin(async move { holds(&candidate).await.map_err(NotAgreed::from) })
            }));
        }
        if plugin_of(&self.driver).is_some() {
            // Calls say whether they are about a translated object; those of the process are not.
            csi = csi.with_migrated(Some(false));
        }
        let asked = self.process.election.as_ref();
        let namespace = asked.and_then(|election| election.namespace.clone());
        Reached {
            api: context.api.clone(),
            csi,
            metrics: context.metrics.clone(),
            component: component(&self.driver),
            namespace: namespace.unwrap_or_else(default_namespace),
        }
    }
}
