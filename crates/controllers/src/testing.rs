//! A small cluster for tests: a real API server in memory, real caches, paused time.

use std::{future::Future, sync::Arc, time::Duration};

use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kube::client::Body;
use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{
    Api, Cache, Cacheable, Context, DeleteParams, ListParams, Metrics, Patch, Scope, SharedCaches,
};
use longshore_core::model::{
    HasMeta, Kind, ObjectKey,
    keys::annotations,
    kinds::{Claim, CsiDriver, CsiNode, Event, Node, Pod, StorageClass, Volume},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedRwLockWriteGuard, RwLock},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The driver that test volumes belong to.
pub(crate) const DRIVER: &str = "test.csi.example";

/// The cluster.
pub(crate) struct Bench {
    pub(crate) api: Api,
    shutdown: CancellationToken,
    server: ApiServer,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::over(Config::deterministic(1)).await
    }

    /// The same, with the kinds for snapshots.
    pub(crate) async fn with_snapshots() -> Self {
        Self::over(Config { snapshot_kinds: true, ..Config::deterministic(1) }).await
    }

    /// The same, with the health of volumes in the status of claims.
    pub(crate) async fn with_volume_health() -> Self {
        Self::over(Config { volume_health: true, ..Config::deterministic(1) }).await
    }

    async fn over(config: Config) -> Self {
        let server = ApiServer::open(config).await.expect("a server in memory");
        let (api, shutdown) = (Api::new(server.client()), CancellationToken::new());
        Self { api, shutdown, server }
    }

    /// The API as it answers another user.
    pub(crate) fn api_as(&self, user: &str, groups: &[&str]) -> Api {
        Api::new(self.server.client_as(user, groups.iter().copied()))
    }

    /// A process of its own: caches and loops that can be dropped as one. It reaches the server as the
    /// loops of `longshore up` do.
    pub(crate) fn process(&self) -> Process {
        let service = self.server.service();
        self.process_with(Api::in_process(self.server.client(), move |request| {
            let service = service.clone();
            Box::pin(async move { service.handle(request).await })
        }))
    }

    /// A process that reaches the API in a way of its own.
    pub(crate) fn process_with(&self, api: Api) -> Process {
        let shutdown = CancellationToken::new();
        let context = Context::new(api.clone(), Metrics::new(), &shutdown);
        let caches = context.caches.clone();
        Process { caches, api, context, shutdown, tasks: JoinSet::new() }
    }

    /// A cache that never shows anything: it watches a namespace where there is nothing.
    pub(crate) fn blind<T: Cacheable>(&self) -> Cache<T> {
        Cache::start(&self.api, Scope::namespace("elsewhere"), &self.shutdown).0
    }

    /// A cache that shows for ever what is there now, and our own writes.
    pub(crate) async fn frozen<T: Cacheable>(&self) -> Cache<T> {
        let stop = CancellationToken::new();
        let (cache, task) = Cache::start(&self.api, Scope::all(), &stop);
        cache.synced().await;
        stop.cancel();
        task.await.expect("the watch ends");
        cache
    }

    /// A cache whose watch shows nothing new while the guard is held.
    pub(crate) async fn late<T: Cacheable>(&self) -> (Cache<T>, OwnedRwLockWriteGuard<()>) {
        let gate = Arc::new(RwLock::new(()));
        let (client, passed) = (self.api.client().clone(), gate.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, gate) = (client.clone(), passed.clone());
            async move {
                let answer = client.send(request).await?;
                Ok::<_, kube::Error>(answer.map(|body| {
                    let frames = body.into_data_stream().then(move |data| {
                        let gate = gate.clone();
                        async move {
                            let _open = gate.read().await;
                            data.map(Frame::data)
                        }
                    });
                    StreamBody::new(frames)
                }))
            }
        });
        let api = Api::new(kube::Client::new(service, "default"));
        let cache = Cache::start(&api, Scope::all(), &self.shutdown).0;
        cache.synced().await;
        (cache, gate.write_owned().await)
    }

    pub(crate) async fn create<T: Kind>(&self, object: Value) -> Value {
        self.api.create::<T>(&object).await.expect("created")
    }

    pub(crate) async fn get<T: Kind + DeserializeOwned>(&self, key: &ObjectKey) -> Option<T> {
        self.api.get(key).await.expect("readable")
    }

    pub(crate) async fn merge<T: Kind>(&self, key: &ObjectKey, patch: Value) {
        self.api.patch::<T>(key, Patch::Merge(&patch)).await.expect("patched");
    }

    pub(crate) async fn merge_status<T: Kind>(&self, key: &ObjectKey, patch: Value) {
        self.api.patch_status::<T>(key, Patch::Merge(&patch)).await.expect("patched");
    }

    pub(crate) async fn delete<T: Kind>(&self, key: &ObjectKey) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.api.delete::<T>(key, &now).await.expect("deleted");
    }

    /// Waits, in virtual time, until the object looks as wanted.
    pub(crate) async fn until<T>(&self, key: &ObjectKey, want: impl Fn(&T) -> bool) -> T
    where
        T: Kind + HasMeta + DeserializeOwned + std::fmt::Debug,
    {
        let mut last = None;
        for _ in 0..20_000 {
            last = self.get::<T>(key).await;
            match last {
                Some(object) if want(&object) => return object,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        panic!("{} {key} never looked as wanted: {last:#?}", T::KIND);
    }

    /// Waits, in virtual time, until the object is gone.
    pub(crate) async fn until_gone<T: Kind + DeserializeOwned>(&self, key: &ObjectKey) {
        for _ in 0..20_000 {
            if self.get::<T>(key).await.is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{} {key} never went away", T::KIND);
    }

    /// Lets the loops do what they would do in this time.
    pub(crate) async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Messages of the events with this reason.
    pub(crate) async fn events(&self, reason: &str) -> Vec<String> {
        // The recorder writes behind the loops' back.
        self.pass(Duration::from_millis(50)).await;
        let events = self.api.list::<Event>(None, &ListParams::default()).await.expect("listed");
        let fitting = events.into_iter().filter(|event| event.reason == reason);
        fitting.map(|event| event.message).collect()
    }

    /// A ready node that lets volumes be attached, with the driver registered.
    pub(crate) async fn node(&self, name: &str) {
        self.create::<Node>(json!({"metadata": {"name": name, "labels": {"host": name},
            "annotations": {annotations::CONTROLLER_MANAGED_ATTACH: "true"}}}))
            .await;
        self.ready(name, true).await;
        self.create::<CsiNode>(json!({"metadata": {"name": name}, "spec": {"drivers": [
            {"name": DRIVER, "nodeID": format!("id-of-{name}")}]}}))
            .await;
    }

    pub(crate) async fn ready(&self, node: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.merge_status::<Node>(&ObjectKey::cluster(node), patch).await;
    }

    /// What the node says it uses.
    pub(crate) async fn in_use(&self, node: &str, names: &[String]) {
        let patch = json!({"status": {"volumesInUse": names}});
        self.merge_status::<Node>(&ObjectKey::cluster(node), patch).await;
    }

    pub(crate) async fn driver(&self) {
        self.create::<CsiDriver>(json!({"metadata": {"name": DRIVER},
            "spec": {"attachRequired": true}}))
            .await;
    }

    pub(crate) async fn class(&self, name: &str, mode: &str) {
        self.create::<StorageClass>(json!({"metadata": {"name": name}, "provisioner": DRIVER,
            "volumeBindingMode": mode}))
            .await;
    }

    /// A claim in the default namespace; returns its UID.
    pub(crate) async fn claim(&self, name: &str, class: &str) -> String {
        let claim = self
            .create::<Claim>(json!({"metadata": {"name": name, "namespace": "default"},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "resources": {"requests": {"storage": "1Gi"}}}}))
            .await;
        claim["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    /// Makes a volume for a claim and binds the two, as provisioner and binder do.
    pub(crate) async fn bind(&self, claim: &str, volume: &str, handle: &str) {
        let key = ObjectKey::new("default", claim);
        let uid = self.get::<Claim>(&key).await.expect("a claim").metadata.uid;
        self.create::<Volume>(json!({"metadata": {"name": volume}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
                "namespace": "default", "name": claim, "uid": uid},
            "csi": {"driver": DRIVER, "volumeHandle": handle}}}))
            .await;
        let bound = json!({"status": {"phase": "Bound"}});
        self.merge_status::<Volume>(&ObjectKey::cluster(volume), bound.clone()).await;
        self.merge::<Claim>(
            &key,
            json!({"metadata": {"annotations":
            {annotations::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume}}),
        )
        .await;
        self.merge_status::<Claim>(&key, bound).await;
    }

    /// A pod in the default namespace that names the claims.
    pub(crate) async fn pod(&self, name: &str, node: Option<&str>, claims: &[&str]) {
        let volume =
            |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let volumes: Vec<Value> = claims.iter().map(volume).collect();
        let mut spec = json!({"volumes": volumes,
            "containers": [{"name": "main", "image": "host"}]});
        if let Some(node) = node {
            spec["nodeName"] = json!(node);
        }
        let metadata = json!({"name": name, "namespace": "default"});
        self.create::<Pod>(json!({"metadata": metadata, "spec": spec})).await;
    }
}

/// Loops with caches of their own.
pub(crate) struct Process {
    pub(crate) api: Api,
    pub(crate) caches: SharedCaches,
    pub(crate) context: Context,
    pub(crate) shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Process {
    pub(crate) fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    /// Ends it as a kill does: wherever it happens to be.
    pub(crate) fn kill(self) {
        self.shutdown.cancel();
        drop(self.tasks);
    }
}

/// A key in the default namespace.
pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

/// An API that takes a minute to show a secret.
pub(crate) fn slow_secrets(api: &Api) -> Api {
    let client = api.client().clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move {
            if request.uri().path().contains("/secrets/") {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}
