//! kube-rs' own machinery against the server on its socket: reflector, controller, finalizer and
//! server-side apply, across restarts of the server and versions that are no longer kept.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::client_config;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event as Final, finalizer};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{Controller, WatchStreamExt, reflector, wait};
use kube::{Client, CustomResource, CustomResourceExt, Resource, ResourceExt};
use longshore_apiserver::{ApiServer, Config, Limits, auth};
use longshore_testing::found;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A server that can be stopped and started again at the same address.
struct Restartable {
    dir: tempfile::TempDir,
    address: SocketAddr,
    server: ApiServer,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Restartable {
    async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-").tempdir().unwrap();
        let server = open(dir.path()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        auth::write_private(&dir.path().join("kubeconfig"), server.kubeconfig(address)).unwrap();
        let (shutdown, task) = serve(&server, listener);
        Self { dir, address, server, shutdown, task }
    }

    async fn client(&self) -> Client {
        Client::try_from(client_config(&self.dir.path().join("kubeconfig")).await).unwrap()
    }

    /// Stops the server, starts it again on its data, and lets `meanwhile` run before any client
    /// can connect.
    async fn restart<F: Future<Output = ()>>(&mut self, meanwhile: impl FnOnce(Client) -> F) {
        self.shutdown.cancel();
        (&mut self.task).await.unwrap();
        self.server.shutdown().await;
        // The old one holds its store until its last handle is gone.
        self.server = ApiServer::open(Config::memory()).await.unwrap();
        self.server = open(self.dir.path()).await;
        meanwhile(self.server.client()).await;
        let listener = TcpListener::bind(self.address).await.unwrap();
        (self.shutdown, self.task) = serve(&self.server, listener);
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
        self.server.shutdown().await;
    }
}

/// With a short memory, so that little has to happen until a version is too old.
async fn open(dir: &Path) -> ApiServer {
    let limits = Limits { history_events: 8, ..Limits::default() };
    for _ in 0..500 {
        match ApiServer::open(Config { limits, ..Config::at(dir.join("data")) }).await {
            Ok(server) => return server,
            // Connections that are being closed still hold the old one.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    ApiServer::open(Config::at(dir.join("data"))).await.unwrap()
}

fn serve(
    server: &ApiServer,
    listener: TcpListener,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let shutdown = CancellationToken::new();
    let (server, token) = (server.clone(), shutdown.clone());
    (shutdown, tokio::spawn(async move { server.serve(listener, token).await.unwrap() }))
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"v": value}})).unwrap()
}

fn backoff() -> impl kube::runtime::utils::Backoff {
    backon_every(Duration::from_millis(100))
}

/// Tries again at a steady pace; the default waits for up to half a minute.
fn backon_every(pace: Duration) -> impl kube::runtime::utils::Backoff {
    struct Steady(Duration);
    impl Iterator for Steady {
        type Item = Duration;
        fn next(&mut self) -> Option<Duration> {
            Some(self.0)
        }
    }
    impl kube::runtime::utils::Backoff for Steady {
        fn reset(&mut self) {}
    }
    Steady(pace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reflector_follows_through_restarts_and_lost_history() {
    for strategy in
        [watcher::InitialListStrategy::ListWatch, watcher::InitialListStrategy::StreamingList]
    {
        let mut running = Restartable::start().await;
        let maps: Api<ConfigMap> = Api::namespaced(running.client().await, "default");
        let (reader, writer) = reflector::store();
        let lists = Arc::new(AtomicUsize::new(0));
        let gone = Arc::new(AtomicUsize::new(0));
        let settings = watcher::Config {
            initial_list_strategy: strategy.clone(),
            ..watcher::Config::default()
        };
        let stream = watcher::watcher(maps.clone(), settings);
        let (counted, expired) = (Arc::clone(&lists), Arc::clone(&gone));
        let stream = stream
            .inspect(move |event| match event {
                Ok(Event::Init) => drop(counted.fetch_add(1, Ordering::SeqCst)),
                Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                    expired.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            })
            .backoff(backoff());
        let follower = tokio::spawn(reflector::reflector(writer, stream).for_each(|_| async {}));
        let shows = async |name: &str, value: Option<&str>| {
            let what = format!("{name} is {value:?} ({strategy:?})");
            found(&what, || async {
                let key = reflector::ObjectRef::new(name).within("default");
                let seen = reader.get(&key).map(|m| m.data.clone().unwrap()["v"].clone());
                (seen.as_deref() == value).then_some(())
            })
            .await;
        };
        let params = PostParams::default();
        maps.create(&params, &map("a", "1")).await.unwrap();
        shows("a", Some("1")).await;

        // The server is gone and comes back; what was written meanwhile is seen.
        running
            .restart(|inside| async move {
                let maps: Api<ConfigMap> = Api::namespaced(inside, "default");
                maps.create(&PostParams::default(), &map("b", "1")).await.unwrap();
                maps.delete("a", &DeleteParams::default()).await.unwrap();
            })
            .await;
        shows("b", Some("1")).await;
        shows("a", None).await;

        // So much happens that the place of the watch is no longer known: 410, and a new list.
        let before = lists.load(Ordering::SeqCst);
        running
            .restart(|inside| async move {
                let maps: Api<ConfigMap> = Api::namespaced(inside, "default");
                maps.delete("b", &DeleteParams::default()).await.unwrap();
                for number in 0..20 {
                    let name = format!("many-{number}");
                    maps.create(&PostParams::default(), &map(&name, "x")).await.unwrap();
                    maps.delete(&name, &DeleteParams::default()).await.unwrap();
                }
                maps.create(&PostParams::default(), &map("c", "1")).await.unwrap();
            })
            .await;
        shows("c", Some("1")).await;
        shows("b", None).await;
        assert_eq!(reader.state().iter().filter(|m| m.name_any() != "kube-root-ca.crt").count(), 1);
        assert!(gone.load(Ordering::SeqCst) >= 1, "it was told that its version is gone");
        assert!(lists.load(Ordering::SeqCst) > before, "it listed again");
        follower.abort();
        drop(maps);
        running.stop().await;
    }
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Boat", namespaced, status = "BoatStatus")]
struct BoatSpec {
    flag: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, schemars::JsonSchema)]
struct BoatStatus {
    flown: Option<String>,
}

struct Harbour {
    client: Client,
    scrapped: AtomicUsize,
}

const MANAGER: &str = "harbour.example.com";

/// Keeps a map with the flag for every boat, and says in the status which one flies.
async fn reconcile(
    boat: Arc<Boat>,
    harbour: Arc<Harbour>,
) -> Result<Action, Box<kube::runtime::finalizer::Error<kube::Error>>> {
    let boats: Api<Boat> = Api::namespaced(harbour.client.clone(), "default");
    let handled = finalizer(&boats, "example.com/harbour", boat, |event| async {
        match event {
            Final::Apply(boat) => fly(&harbour, &boat).await,
            Final::Cleanup(_) => {
                harbour.scrapped.fetch_add(1, Ordering::SeqCst);
                Ok(Action::await_change())
            }
        }
    });
    handled.await.map_err(Box::new)
}

async fn fly(harbour: &Harbour, boat: &Boat) -> Result<Action, kube::Error> {
    let name = boat.name_any();
    let maps: Api<ConfigMap> = Api::namespaced(harbour.client.clone(), "default");
    let child = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": [boat.controller_owner_ref(&())]},
        "data": {"flag": boat.spec.flag}});
    maps.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(child)).await?;
    let boats: Api<Boat> = Api::namespaced(harbour.client.clone(), "default");
    let status = json!({"apiVersion": "example.com/v1", "kind": "Boat",
        "metadata": {"name": name}, "status": {"flown": boat.spec.flag}});
    let apply = PatchParams::apply(MANAGER).force();
    boats.patch_status(&name, &apply, &Patch::Apply(status)).await?;
    Ok(Action::await_change())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_with_finalizers_and_apply_survives_a_restart() {
    let mut running = Restartable::start().await;
    let client = running.client().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &Boat::crd()).await.unwrap();
    let established = wait::conditions::is_crd_established();
    let waited = wait::await_condition(definitions, "boats.example.com", established);
    tokio::time::timeout(Duration::from_secs(60), waited).await.unwrap().unwrap();

    let boats: Api<Boat> = Api::namespaced(client.clone(), "default");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let harbour = Arc::new(Harbour { client: client.clone(), scrapped: AtomicUsize::new(0) });
    let stop = CancellationToken::new();
    let controller = Controller::new(boats.clone(), watcher::Config::default())
        .owns(maps.clone(), watcher::Config::default())
        .trigger_backoff(backoff())
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::clone(&harbour))
        .for_each(|_| async {});
    let controller = tokio::spawn(controller);

    let flown = async |name: &str, flag: &str| {
        found(&format!("{name} flies {flag}"), || async {
            let boat = boats.get_opt(name).await.ok()??;
            let map = maps.get_opt(name).await.ok()??;
            let shown = boat.status.clone().unwrap_or_default().flown?;
            (shown == flag && map.data?["flag"] == flag).then_some(boat)
        })
        .await
    };
    boats
        .create(&PostParams::default(), &Boat::new("tug", BoatSpec { flag: "red".into() }))
        .await
        .unwrap();
    let boat = flown("tug", "red").await;
    assert_eq!(boat.finalizers(), ["example.com/harbour"]);
    let manager = |entry: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply")
    };
    let entry = boat.managed_fields().iter().find(manager).unwrap();
    assert_eq!(entry.subresource.as_deref(), Some("status"));

    // What it owns comes back when somebody takes it away.
    let first = maps.get("tug").await.unwrap().uid();
    maps.delete("tug", &DeleteParams::default()).await.unwrap();
    found("the map is made again", || async {
        let map = maps.get_opt("tug").await.ok()??;
        (map.uid() != first).then_some(())
    })
    .await;

    // Across a restart: one boat changed while nobody listened, one is new.
    running
        .restart(|inside| async move {
            let boats: Api<Boat> = Api::namespaced(inside, "default");
            let patch = Patch::Merge(json!({"spec": {"flag": "blue"}}));
            boats.patch("tug", &PatchParams::default(), &patch).await.unwrap();
            let new = Boat::new("ferry", BoatSpec { flag: "green".into() });
            boats.create(&PostParams::default(), &new).await.unwrap();
        })
        .await;
    flown("tug", "blue").await;
    flown("ferry", "green").await;

    // Deletion runs the clean-up once, lets the boat go, and the collector takes what it owned.
    for name in ["tug", "ferry"] {
        let uid = boats.get(name).await.unwrap().uid().unwrap();
        boats.delete(name, &DeleteParams::default()).await.unwrap();
        let deleted = wait::conditions::is_deleted(&uid);
        let waited = wait::await_condition(boats.clone(), name, deleted);
        tokio::time::timeout(Duration::from_secs(60), waited).await.unwrap().unwrap();
        found("its map goes", || async { maps.get_opt(name).await.ok()?.is_none().then_some(()) })
            .await;
    }
    assert!(harbour.scrapped.load(Ordering::SeqCst) >= 2);
    stop.cancel();
    controller.await.unwrap();
    drop((boats, maps, harbour, client));
    running.stop().await;
}
