//! A process with one or more provisioners: its client, caches, leases and metrics.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use longshore_cluster::{
    Api, ClientConfig, ConfigError, Context, Metrics, Recorder,
    election::{self, ElectionConfig, ElectionError, OnLoss, default_namespace, unique_identity},
    telemetry::Endpoint,
};
use tokio_util::sync::CancellationToken;

use crate::{Attempts, Config, InvalidConfig, ProvisionController, Provisioner};

/// The pause before a busy address is tried again.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// Who works when several processes could: the one that holds the lease.
///
/// The lease has the provisioner's name with `/` replaced by `-`, as with the Go library, so that a
/// change from one to the other never has two leaders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Election {
    /// Namespace of the lease. `None` takes `POD_NAMESPACE`, else the service account's, else
    /// `default`.
    pub namespace: Option<String>,
    /// Others take a lease that was not renewed for this long.
    pub lease_duration: Duration,
    /// A leader that cannot renew for this long gives up.
    pub renew_deadline: Duration,
    /// Pause between two tries.
    pub retry_period: Duration,
}

impl Default for Election {
    /// The Go library's: 15 s, 10 s, 2 s.
    fn default() -> Self {
        Self {
            namespace: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Why a host does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The cluster cannot be reached.
    #[error(transparent)]
    Client(#[from] ConfigError),
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// Two provisioners answer to one name.
    #[error("two provisioners of this process answer to {0:?}; give each a name of its own")]
    SameName(String),
    /// The lease was lost: another process may be at work already. Exit with 1 and be started
    /// again, as the Go programs do.
    #[error(transparent)]
    Election(#[from] ElectionError),
}

/// A process that runs provisioners. They share one cache per kind and one client.
///
/// ```no_run
/// # use longshore_provisioner::*;
/// # struct Directories(&'static str);
/// # impl Provisioner for Directories {
/// #     async fn provision(&self, _: &Request) -> Result<ProvisionedVolume, ProvisionError> { unreachable!() }
/// #     async fn delete(&self, _: &Volume) -> Result<(), DeleteError> { Ok(()) }
/// # }
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let host = Host::connect(&ClientConfig::default()).await?
///     .with(Config::new("example.com/fast"), Directories("/srv/fast"))
///     .with(Config { threads: 1, ..Config::new("example.com/slow") }, Directories("/srv/slow"))
///     .serving_metrics(":8080", "/metrics");
/// host.run(on_signals()?).await?;
/// # Ok(())
/// # }
/// ```
pub struct Host {
    api: Api,
    leases: Api,
    registry: Metrics,
    election: Option<Election>,
    endpoint: Option<(String, String)>,
    configs: Vec<Config>,
    jobs: Vec<Job>,
}

type Job = Box<dyn FnOnce(Shared) -> BoxFuture<'static, Result<(), HostError>> + Send>;

/// What the provisioners of a host share.
#[derive(Clone)]
struct Shared {
    context: Context,
    leases: Api,
    election: Option<Election>,
    stop: CancellationToken,
}

impl Host {
    /// Reaches the cluster: a kubeconfig if one is named, `KUBECONFIG`, or the service account of the
    /// pod this runs in. Leases get a client of their own, which no limit on requests delays.
    ///
    /// # Errors
    /// [`HostError::Client`] says what to do.
    pub async fn connect(config: &ClientConfig) -> Result<Self, HostError> {
        let registry = config.metrics.clone().unwrap_or_default();
        let config = ClientConfig { metrics: Some(registry.clone()), ..config.clone() };
        let (api, leases) = (config.client().await?, config.lease_client().await?);
        Ok(Self { leases: Api::new(leases), registry, ..Self::over(Api::new(api)) })
    }

    /// On a client that is there already.
    #[must_use]
    pub fn over(api: Api) -> Self {
        Self {
            leases: api.clone(),
            api,
            registry: Metrics::new(),
            election: Some(Election::default()),
            endpoint: None,
            configs: Vec::new(),
            jobs: Vec::new(),
        }
    }

    /// The API, for provisioners that ask it more.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Other terms of election than the default ones; `None` works at once, whoever else does.
    #[must_use]
    pub fn elected(self, election: impl Into<Option<Election>>) -> Self {
        Self { election: election.into(), ..self }
    }

    /// Serves metrics under `path`, and `/healthz`, on `address` (`:8080` means all interfaces). An
    /// address that is busy is tried again every five seconds.
    #[must_use]
    pub fn serving_metrics(self, address: &str, path: &str) -> Self {
        Self { endpoint: Some((address.to_owned(), path.to_owned())), ..self }
    }

    /// Adds a provisioner.
    #[must_use]
    pub fn with<P: Provisioner>(mut self, config: Config, provisioner: P) -> Self {
        self.configs.push(config.clone());
        self.jobs.push(Box::new(move |shared| shared.lead(config, Arc::new(provisioner)).boxed()));
        self
    }

    /// Works until `shutdown`; then finishes what is under way and frees the leases.
    ///
    /// # Errors
    /// At once on settings that make no sense; later when a lease is lost.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), HostError> {
        let mut names = BTreeSet::new();
        for config in &self.configs {
            config.validate()?;
            if let Some(taken) = config.names().into_iter().find(|name| !names.insert(name.clone()))
            {
                return Err(HostError::SameName(taken));
            }
        }
        let stop = shutdown.child_token();
        // Ends caches and the endpoint in whatever way this ends.
        let _stopped = stop.clone().drop_guard();
        if let Some((address, path)) = self.endpoint {
            let endpoint = Endpoint::new(&self.registry).metrics_path(&path);
            tokio::spawn(listen(endpoint, address, stop.clone()));
        }
        let context = Context::new(self.api, self.registry, &stop);
        let shared = Shared { context, leases: self.leases, election: self.election, stop };
        let jobs = self.jobs.into_iter().map(|job| job(shared.clone()));
        try_join_all(jobs).await.map(drop)
    }
}

impl Shared {
    async fn lead<P: Provisioner>(
        self,
        config: Config,
        provisioner: Arc<P>,
    ) -> Result<(), HostError> {
        let identity = unique_identity();
        let component = format!("{}_{identity}", config.name);
        let told = CancellationToken::new();
        let telling = told.clone().drop_guard();
        let (recorder, written) = Recorder::start(&self.context.api, &component, "", &told);
        let lease = config.name.replace('/', "-");
        let work = |stop| {
            // A new term begins with nothing: the leader in between may have done it all.
            let (recorder, provisioner) = (recorder.clone(), provisioner.clone());
            let attempts = Attempts::default();
            let config = config.clone();
            ProvisionController::shared(config, &self.context, recorder, provisioner, attempts)
                .run(stop)
        };
        let ended = match self.election.clone() {
            None => {
                work(self.stop.clone()).await;
                Ok(())
            }
            Some(terms) => {
                let config = ElectionConfig {
                    identity,
                    recorder: Some(recorder.clone()),
                    ..self.candidate(terms, lease)
                };
                election::run(config, &self.stop, work).await.map_err(HostError::from)
            }
        };
        // The last events are written before the process goes.
        drop(telling);
        let _ = written.await;
        ended
    }

    fn candidate(&self, terms: Election, lease: String) -> ElectionConfig {
        let Election { namespace, lease_duration, renew_deadline, retry_period } = terms;
        let namespace = namespace.unwrap_or_else(default_namespace);
        ElectionConfig {
            lease_duration,
            renew_deadline,
            retry_period,
            on_loss: OnLoss::Exit,
            metrics: Some(self.context.metrics.clone()),
            ..ElectionConfig::new(self.leases.clone(), namespace, lease)
        }
    }
}

async fn listen(endpoint: Endpoint, address: String, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match endpoint.clone().serve(&address, &stop).await {
            Ok((_, served)) => return drop(served.await),
            Err(error) => tracing::warn!(%error, "metrics are not served yet"),
        }
        stop.run_until_cancelled(tokio::time::sleep(LISTEN_AGAIN)).await;
    }
}
