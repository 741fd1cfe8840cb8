//! A whole control plane in memory: the real API server, the shipped loops, a scriptable driver.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use longshore_apiserver::{ApiServer, Config as ServerConfig};
use longshore_cluster::{Api, Context, DeleteParams, ListParams, Metrics};
use longshore_core::model::{
    ClaimPhase, Kind, ObjectKey, VolumePhase,
    kinds::{Claim, ConfigMap, CsiNode, Event, Node, Pod, StorageClass, Volume},
};
use longshore_csi::{capabilities::PluginService, fake};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Config, Parts, guard::intent_name, run};
use crate::{
    bind,
    protect::{ClaimProtection, VolumeProtection},
};

pub(crate) const DRIVER: &str = "test.csi.longshore.dev";
const ZONE: &str = "topology.test/zone";

/// Stops the world at the n-th request of the loops, to the API or to the driver: the request
/// (or its answer) never arrives, and whoever waits for the trap crashes the loops.
pub(crate) struct Trap {
    left: AtomicI64,
    after_effect: bool,
    pub(crate) sprung: CancellationToken,
}

impl Trap {
    pub(crate) fn at(request: i64, after_effect: bool) -> Arc<Self> {
        let (left, sprung) = (AtomicI64::new(request), CancellationToken::new());
        Arc::new(Self { left, after_effect, sprung })
    }

    fn hit(&self) -> bool {
        let hit = self.left.fetch_sub(1, Ordering::Relaxed) == 0;
        if hit && !self.after_effect {
            self.sprung.cancel();
        }
        hit
    }
}

/// A client whose requests go through the trap.
fn trapped(client: kube::Client, trap: Arc<Trap>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, trap) = (client.clone(), trap.clone());
        async move {
            let hit = trap.hit();
            if hit && !trap.after_effect {
                std::future::pending::<()>().await;
            }
            let answer = client.send(request).await;
            if hit {
                trap.sprung.cancel();
                std::future::pending::<()>().await;
            }
            answer
        }
    });
    kube::Client::new(service, "default")
}

/// A client that may not replace objects of a kind.
fn fenced(client: kube::Client, plural: String) -> kube::Client {
    refusing(client, move |request| {
        let put = request.method() == http::Method::PUT;
        put && request.uri().path().split('/').any(|part| part == plural)
    })
}

/// A client that may not send some requests.
fn refusing(
    client: kube::Client,
    forbidden: impl Fn(&http::Request<kube::client::Body>) -> bool + Send + Sync + 'static,
) -> kube::Client {
    let forbidden = Arc::new(forbidden);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        let refused = forbidden(&request);
        async move {
            if !refused {
                return client.send(request).await;
            }
            let status =
                json!({"kind": "Status", "reason": "Forbidden", "message": "no", "code": 403});
            let answer = http::Response::builder().status(403);
            let body = kube::client::Body::from(status.to_string().into_bytes());
            Ok(answer.body(body).expect("an answer"))
        }
    });
    kube::Client::new(service, "default")
}

pub(crate) struct Bench {
    _server: ApiServer,
    pub(crate) trap: Option<Arc<Trap>>,
    /// The kind whose objects the loops may not replace.
    pub(crate) forbidden: Option<String>,
    /// A path that the loops may not read.
    pub(crate) hidden: Option<String>,
    pub(crate) api: Api,
    pub(crate) driver: fake::Driver,
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    loops: JoinSet<()>,
    stop: CancellationToken,
}

impl Bench {
    /// An API server with a class `fast` (Immediate) and a class `late` (WaitForFirstConsumer),
    /// and a driver. Nothing runs yet.
    pub(crate) async fn new() -> Self {
        Self::over(ServerConfig::deterministic(7)).await
    }

    /// The same, with the kinds for snapshots.
    pub(crate) async fn with_snapshots() -> Self {
        let config = ServerConfig::deterministic(7);
        Self::over(ServerConfig { snapshot_kinds: true, ..config }).await
    }

    async fn over(config: ServerConfig) -> Self {
        let server = ApiServer::open(config).await.expect("a server");
        let bench = Self {
            api: Api::new(server.client()),
            _server: server,
            trap: None,
            forbidden: None,
            hidden: None,
            driver: fake::Driver::new(DRIVER),
            config: Config { leak_guard: Some("kube-system".into()), ..Config::default() },
            metrics: Metrics::new(),
            loops: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        bench.class("fast", "Immediate", json!({})).await;
        bench.class("late", "WaitForFirstConsumer", json!({})).await;
        bench
    }

    /// Starts all loops.
    pub(crate) fn start(&mut self) {
        let stop = CancellationToken::new();
        let api = &match &self.trap {
            None => self.api.clone(),
            Some(trap) => {
                self.hook(trap);
                Api::new(trapped(self.api.client().clone(), trap.clone()))
            }
        };
        let api = &match &self.forbidden {
            None => api.clone(),
            Some(kind) => Api::new(fenced(api.client().clone(), kind.clone())),
        };
        let api = &match self.hidden.clone() {
            None => api.clone(),
            Some(path) => Api::new(refusing(api.client().clone(), move |request| {
                request.uri().path() == path
            })),
        };
        self.metrics = Metrics::new();
        let context = Context::new(api.clone(), self.metrics.clone(), &stop);
        let parts = Parts::new(&context, self.driver.client(), "test");
        self.loops.spawn(run(self.config.clone(), parts, stop.clone()));
        let binder = bind::Binder::new(&context, bind::Config::default(), None);
        self.loops.spawn(binder.run(stop.clone()));
        self.loops.spawn(ClaimProtection::new(&context, false).run(stop.clone()));
        self.loops.spawn(VolumeProtection::new(&context).run(stop.clone()));
        self.stop = stop;
    }

    /// Starts the provisioner and nothing else.
    pub(crate) fn start_provisioner_alone(&mut self) {
        let stop = CancellationToken::new();
        let context = Context::new(self.api.clone(), self.metrics.clone(), &stop);
        let parts = Parts::new(&context, self.driver.client(), "test");
        self.loops.spawn(run(self.config.clone(), parts, stop.clone()));
        self.stop = stop;
    }

    fn hook(&self, trap: &Arc<Trap>) {
        let trap = trap.clone();
        let due = AtomicBool::new(false);
        self.driver.hook(move |moment| match moment.phase {
            fake::Phase::Before if trap.hit() => {
                if !trap.after_effect {
                    return fake::Action::Hang;
                }
                due.store(true, Ordering::Relaxed);
                fake::Action::Continue
            }
            fake::Phase::After if due.swap(false, Ordering::Relaxed) => {
                trap.sprung.cancel();
                fake::Action::Hang
            }
            _ => fake::Action::Continue,
        });
    }

    /// Stops everything where it stands, as a crash does.
    pub(crate) async fn crash(&mut self) {
        self.loops.abort_all();
        self.stop.cancel();
        while self.loops.join_next().await.is_some() {}
        self.driver.sever();
        self.driver.clear_hook();
        self.trap = None;
    }

    pub(crate) async fn class(&self, name: &str, mode: &str, parameters: Value) {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
            "reclaimPolicy": "Delete", "parameters": parameters});
        self.api.create::<StorageClass>(&class).await.expect("a class");
    }

    pub(crate) async fn claim(&self, name: &str, class: &str) -> Claim {
        self.claim_with(name, json!({"storageClassName": class})).await
    }

    pub(crate) async fn claim_with(&self, name: &str, spec: Value) -> Claim {
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}}});
        for (key, value) in spec.as_object().expect("an object") {
            claim["spec"][key] = value.clone();
        }
        let made = self.api.create::<Claim>(&claim).await.expect("a claim");
        serde_json::from_value(made).expect("a claim")
    }

    pub(crate) async fn volume(&self, name: &str, spec: Value) {
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Mi"},
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/srv"}}});
        for (key, value) in spec.as_object().expect("an object") {
            volume["spec"][key] = value.clone();
        }
        self.api.create::<Volume>(&volume).await.expect("a volume");
    }

    /// A node in a zone, with the driver registered on it.
    pub(crate) async fn node(&self, name: &str, zone: &str) {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {ZONE: zone}}});
        self.api.create::<Node>(&node).await.expect("a node");
        let csi = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": [ZONE]}]}});
        self.api.create::<CsiNode>(&csi).await.expect("a CSINode");
    }

    /// Gives the driver zones, each with a capacity.
    pub(crate) fn zones(&self, zones: &[(&str, Option<i64>)]) {
        self.driver.configure(|config| {
            config.plugin.services.insert(PluginService::VolumeAccessibilityConstraints);
            config.pools = zones
                .iter()
                .map(|(zone, capacity)| fake::Pool {
                    segments: BTreeMap::from([(ZONE.to_string(), (*zone).to_string())]),
                    capacity: *capacity,
                })
                .collect();
        });
    }

    pub(crate) async fn pod(&self, name: &str, claim: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "host"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}});
        self.api.create::<Pod>(&pod).await.expect("a pod");
    }

    pub(crate) async fn select_node(&self, claim: &str, node: &str) {
        let patch =
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
        let key = ObjectKey::new("default", claim);
        let patch = longshore_cluster::Patch::Merge(&patch);
        self.api.patch::<Claim>(&key, patch).await.expect("an annotation");
    }

    pub(crate) async fn delete_claim(&self, name: &str) {
        let key = ObjectKey::new("default", name);
        self.api.delete::<Claim>(&key, &DeleteParams::default()).await.expect("a deletion");
    }

    /// Deletes a claim for good, protection or not: nobody runs to take its finalizer off.
    pub(crate) async fn delete_claim_now(&self, name: &str) {
        let patch = json!({"metadata": {"finalizers": null}});
        let key = ObjectKey::new("default", name);
        let patch = longshore_cluster::Patch::Merge(&patch);
        self.api.patch::<Claim>(&key, patch).await.expect("no finalizers");
        self.delete_claim(name).await;
    }

    pub(crate) async fn get_claim(&self, name: &str) -> Option<Claim> {
        self.api.get(&ObjectKey::new("default", name)).await.expect("an answer")
    }

    pub(crate) async fn get_volume(&self, name: &str) -> Option<Volume> {
        self.api.get(&ObjectKey::cluster(name)).await.expect("an answer")
    }

    pub(crate) async fn all<T: Kind + serde::de::DeserializeOwned>(&self) -> Vec<T> {
        self.api.list::<T>(None, &ListParams::default()).await.expect("a list")
    }

    /// Waits until an event about an object of this name says exactly this.
    pub(crate) async fn until_told(&self, name: &str, text: &str) {
        self.until(&format!("{name} is told: {text}"), || async {
            let all = self.all::<Event>().await;
            all.iter().any(|event| event.involved_object.name == name && event.message == text)
        })
        .await;
    }

    /// Reasons of events about objects of this name.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let all = self.all::<Event>().await;
        let about = all.into_iter().filter(|event| event.involved_object.name == name);
        about.map(|event| format!("{} {}", event.kind, event.reason)).collect()
    }

    pub(crate) async fn intents(&self) -> usize {
        let name = intent_name(&"".into());
        let all = self.all::<ConfigMap>().await;
        all.iter().filter(|map| map.metadata.name.starts_with(&name)).count()
    }

    /// Waits, in paused time, until the condition holds.
    pub(crate) async fn until<F: Future<Output = bool>>(&self, what: &str, check: impl Fn() -> F) {
        let end = Instant::now() + Duration::from_secs(1800);
        while !check().await {
            if Instant::now() > end {
                let claims = self.all::<Claim>().await;
                let volumes = self.all::<Volume>().await;
                let events: Vec<String> = self
                    .all::<Event>()
                    .await
                    .iter()
                    .map(|e| format!("{} {} {}", e.involved_object.name, e.reason, e.message))
                    .collect();
                panic!(
                    "never: {what}\n{claims:#?}\n{volumes:#?}\n{events:#?}\n{:#?}",
                    self.driver.calls()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn until_bound(&self, claim: &str) -> Volume {
        self.until("the claim is bound", || async {
            self.get_claim(claim).await.is_some_and(|claim| claim.status.phase == ClaimPhase::Bound)
        })
        .await;
        let claim = self.get_claim(claim).await.expect("it is bound");
        let volume = self.get_volume(&claim.spec.volume_name).await.expect("it is bound to it");
        assert_eq!(volume.status.phase, VolumePhase::Bound);
        assert_eq!(volume.spec.claim_ref.as_ref().map(|r| &r.uid), Some(&claim.metadata.uid));
        volume
    }

    /// Nothing is left anywhere: no volume with the driver, no object, no intent.
    pub(crate) async fn until_clean(&self) {
        self.until("all volumes are gone", || async {
            self.driver.volumes().is_empty()
                && self.all::<Volume>().await.is_empty()
                && self.intents().await == 0
        })
        .await;
        assert_eq!(self.driver.violations(), Vec::<String>::new());
    }
}
