//! The loop kit against the embedded API server, in process and under paused time.

use std::{sync::Arc, time::Duration};

use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{
    Api, Cache, Change, Context, Loop, Metrics, ObjectKey, Outcome, Patch, QueueOptions,
    Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::model::kinds::ConfigMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Marks every map `seen`.
struct Marks {
    api: Api,
    maps: Cache<ConfigMap>,
    passes: Mutex<Vec<String>>,
}

impl Reconciler for Marks {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.maps, |_, change| match change {
                Change::Applied { new, .. } => Some(new.metadata.key()),
                Change::Deleted { .. } => None,
            })
            .on_resync(&self.maps, |_, map| [map.metadata.key()]);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::key(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let Some(map) = self.maps.get(key) else { return Outcome::Done };
        self.passes.lock().push(key.name.clone());
        if !map.data.contains_key("seen") {
            let patch = json!({"data": {"seen": "yes"}});
            match self.api.patch::<ConfigMap>(key, Patch::Merge(&patch)).await {
                Ok(written) => self.maps.assume(&written),
                Err(error) => return Outcome::retry(error),
            }
        }
        Outcome::Done
    }
}

struct World {
    api: Api,
    context: Context,
    shutdown: CancellationToken,
    _server: ApiServer,
}

impl World {
    async fn start() -> Self {
        let server = ApiServer::open(Config::deterministic(3)).await.expect("opens");
        let (api, shutdown) = (Api::new(server.client()), CancellationToken::new());
        let context = Context::new(api.clone(), Metrics::new(), &shutdown);
        Self { api, context, shutdown, _server: server }
    }

    fn marks(&self) -> (Arc<Marks>, Loop<Marks>) {
        let maps = self.context.cache();
        let marks = Arc::new(Marks { api: self.api.clone(), maps, passes: Mutex::default() });
        let queue = self.context.queue("marks", QueueOptions::default());
        (marks.clone(), Loop::new("mark", marks, queue).workers(2))
    }

    async fn map(&self, name: &str) {
        let map: Value = json!({"metadata": {"name": name, "namespace": "default"}});
        self.api.create::<ConfigMap>(&map).await.expect("made");
    }

    async fn until_marked(&self, name: &str) {
        let key = ObjectKey::new("default", name);
        for _ in 0..2000 {
            let map = self.api.get::<ConfigMap>(&key).await.expect("readable");
            if map.is_some_and(|map| map.data.contains_key("seen")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{name} was never marked");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_runs_of_a_loop_leave_no_subscriber_and_no_second_recorder() {
    let world = World::start().await;
    let maps: Cache<ConfigMap> = world.context.cache();
    for round in 0..10 {
        let (_, marks) = world.marks();
        let lease = world.shutdown.child_token();
        let run = tokio::spawn({
            let lease = lease.clone();
            async move { marks.run(&lease).await }
        });
        world.map(&format!("map-{round}")).await;
        world.until_marked(&format!("map-{round}")).await;
        assert_eq!(maps.subscribers(), 1, "round {round}");
        // A lost lease ends a run in one of two ways.
        match round % 2 {
            0 => lease.cancel(),
            _ => run.abort(),
        }
        let _ = run.await;
        assert_eq!(maps.subscribers(), 0, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_stops_while_it_waits_for_its_first_list() {
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, kube::Error>>()
    });
    let api = Api::new(kube::Client::new(silent, "default"));
    let shutdown = CancellationToken::new();
    let context = Context::new(api.clone(), Metrics::new(), &shutdown);
    let marks = Marks { api, maps: context.cache(), passes: Mutex::default() };
    let queue = WorkQueue::new("marks", QueueOptions::default());
    let run = Loop::new("mark", Arc::new(marks), queue);
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.cancel();
    };
    let both = async { tokio::join!(run.run(&shutdown), stop) };
    timeout(Duration::from_secs(2), both).await.expect("it ends at shutdown");
}

#[tokio::test(start_paused = true)]
async fn a_resync_reconciles_every_object_again() {
    let world = World::start().await;
    world.map("quiet").await;
    let (marks, run) = world.marks();
    let stop = world.shutdown.child_token();
    let run = run.resync(Duration::from_secs(60));
    let _ = timeout(Duration::from_secs(150), run.run(&stop)).await;
    let passes = marks.passes.lock().clone();
    assert_eq!(passes.len(), 4, "at first, for our own write, and at two resyncs: {passes:?}");
}
