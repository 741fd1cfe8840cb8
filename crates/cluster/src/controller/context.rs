//! The context that every loop of a process is built from.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::cache::{Cache, Cacheable, SharedCaches};
use crate::events::Recorder;
use crate::queue::{QueueKey, QueueOptions, WorkQueue};
use crate::telemetry::Metrics;

use super::Vitals;

/// The API, one cache per kind, one recorder per component and one registry of metrics. Cheap to
/// clone. A loop that is started again after a lost lease gets the same ones.
///
/// ```
/// use longshore_cluster::{Context, Metrics, QueueOptions, WorkQueue};
/// use longshore_core::model::kinds::Claim;
///
/// # use longshore_apiserver::{ApiServer, Config};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = ApiServer::open(Config::deterministic(1)).await?;
/// # let api = longshore_cluster::Api::new(server.client());
/// # let shutdown = tokio_util::sync::CancellationToken::new();
/// let context = Context::new(api, Metrics::new(), &shutdown);
/// let claims = context.cache::<Claim>();
/// let queue: WorkQueue<String> = context.queue("claims", QueueOptions::controller());
/// let recorder = context.recorder("persistentvolume-controller");
/// claims.synced().await;
/// # drop((queue, recorder));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context {
    pub api: Api,
    pub caches: SharedCaches,
    pub metrics: Metrics,
    recorders: Arc<Recorders>,
    vitals: Option<Vitals>,
}

struct Recorders {
    api: Api,
    shutdown: CancellationToken,
    by_component: Mutex<HashMap<String, Recorder>>,
}

impl Context {
    /// Caches and recorders are started at their first use, and end with `shutdown`.
    #[must_use]
    pub fn new(api: Api, metrics: Metrics, shutdown: &CancellationToken) -> Self {
        let caches = SharedCaches::new(&api, shutdown);
        let recorders = Recorders {
            api: api.clone(),
            shutdown: shutdown.clone(),
            by_component: Mutex::default(),
        };
        Self { api, caches, metrics, recorders: Arc::new(recorders), vitals: None }
    }

    /// Returns the same context with another API client (other limits, another user) for writes of
    /// a loop; caches and events keep theirs.
    #[must_use]
    pub fn with_api(&self, api: Api) -> Self {
        Self { api, ..self.clone() }
    }

    /// Returns the same context for one of several controllers of a process: its queues report to `vitals`.
    #[must_use]
    pub fn with_vitals(&self, vitals: &Vitals) -> Self {
        Self { vitals: Some(vitals.clone()), ..self.clone() }
    }

    /// The cache of all objects of a kind.
    #[must_use]
    pub fn cache<T: Cacheable>(&self) -> Cache<T> {
        self.caches.of()
    }

    /// A queue that reports to the metrics of the process.
    #[must_use]
    pub fn queue<K: QueueKey>(&self, name: &str, options: QueueOptions) -> WorkQueue<K> {
        let vitals = self.vitals.clone();
        WorkQueue::new(name, QueueOptions { vitals, ..options.with_metrics(&self.metrics) })
    }

    /// The recorder of events that come from `component`.
    #[must_use]
    pub fn recorder(&self, component: &str) -> Recorder {
        let recorders = &self.recorders;
        let mut by_component = recorders.by_component.lock();
        let start = || Recorder::start(&recorders.api, component, "", &recorders.shutdown).0;
        by_component.entry(component.to_owned()).or_insert_with(start).clone()
    }
}
