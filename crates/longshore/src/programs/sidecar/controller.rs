//! The work of a sidecar, apart from the process that it runs in.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;
use longshore_cluster::{Api, Context, Metrics, cache::Needs};
use longshore_core::provision::DriverCapabilities;
use longshore_csi::Client;
use tokio_util::sync::CancellationToken;

use super::Config;
use crate::flags::Throttle;
use crate::process::unless_stopped;

/// What a sidecar has reached: its driver and its cluster.
#[derive(Clone)]
pub(crate) struct Reached {
    pub(crate) api: Api,
    pub(crate) csi: Client,
    pub(crate) metrics: Metrics,
    /// Where events of the process come from.
    pub(crate) component: String,
    /// Where leases are, and with them all that the process keeps for itself.
    pub(crate) namespace: String,
}

/// Why a sidecar cannot work beside this driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unable {
    /// The driver has nothing to do for it.
    #[error("{0}")]
    Idle(String),
    /// It could not be found out.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// Work with its loops built from a context, until the token is cancelled; calls in flight are finished then.
type Work = Arc<dyn Fn(&Context, CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;
type NeedsOf = Arc<dyn Fn(&Context) -> Needs + Send + Sync>;

/// A sidecar that has asked all that it must know before it leads.
#[derive(Clone)]
pub(crate) struct Ready {
    work: Work,
    needs: NeedsOf,
}

impl Ready {
    /// `needs` are the kinds without whose first list no pass begins.
    pub(crate) fn new<Fut>(
        needs: impl Fn(&Context) -> Needs + Send + Sync + 'static,
        work: impl Fn(&Context, CancellationToken) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let work: Work = Arc::new(move |context, stop| Box::pin(work(context, stop)));
        Self { work, needs: Arc::new(needs) }
    }

    /// The kinds that it needs. Their caches are started.
    pub(crate) fn needs(&self, context: &Context) -> Needs {
        (self.needs)(context)
    }

    /// Works until `stop`.
    pub(crate) fn work(
        &self,
        context: &Context,
        stop: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        (self.work)(context, stop)
    }
}

/// A rule of RBAC that a sidecar's work needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Right {
    pub(crate) group: &'static str,
    /// With its subresource, as rules have it: `persistentvolumeclaims/status`.
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

impl Right {
    pub(crate) const fn new(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self { group, resource, verbs }
    }
}

/// A sidecar, apart from its process. Alone or with others it is asked the same things in the same order.
pub(crate) trait Controller: Send + Sync {
    /// Deadline of each call of the driver.
    fn timeout(&self) -> Duration;

    /// Limits of its requests to the API server.
    fn throttle(&self) -> Throttle;

    /// The lock that its official counterpart holds while it works, too.
    fn lock(&self, driver: &str) -> String;

    /// The capability without which there is nothing to do for it; none, if there is something to do beside every driver.
    fn lacks(&self, _can: &DriverCapabilities) -> Option<&'static str> {
        None
    }

    /// What it must be allowed to do beside this driver, whatever claims and classes ask for.
    fn rights(&self, can: &DriverCapabilities) -> &'static [Right];

    /// Asks what must be known before it leads: who cannot work shall not lead, and a standby takes over at once,
    /// however slow the driver is then.
    fn prepare<'a>(&'a self, reached: &'a Reached) -> BoxFuture<'a, Result<Ready, Unable>>;
}

/// Runs one sidecar as the process, under its official name `program`. `unable` says how it ends beside a driver that it
/// cannot work with.
pub(crate) async fn alone(
    process: Config,
    program: &str,
    controller: impl Controller,
    unable: fn(Unable) -> anyhow::Error,
) -> Result<()> {
    let sidecar = process.begin(program, controller.timeout()).await?;
    let reached = sidecar.reached();
    let prepared = async { controller.prepare(&reached).await.map_err(unable) };
    let ready = unless_stopped(&sidecar.shutdown, prepared).await?;
    let work = |stop: CancellationToken| {
        // Caches of their own for each leadership: what was known before a loss is not trusted after.
        let context = Context::new(sidecar.api.clone(), sidecar.metrics.clone(), &stop);
        ready.work(&context, stop)
    };
    sidecar.lead(&controller.lock(&sidecar.driver), work).await
}
