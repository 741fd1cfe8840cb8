//! `kill -9` loses nothing that was answered.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use common::client_config;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use longshore_apiserver::{ApiServer, Config, auth};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

const CHILD_DIR: &str = "LONGSHORE_TEST_CRASH_DIR";
const WRITERS: usize = 6;
const ANSWERS_PER_ROUND: usize = 150;
const ROUNDS: usize = 3;

/// Not a test of its own: the process that gets killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else { return };
    let server = ApiServer::open(Config::at(dir.join("data"))).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = server.kubeconfig(listener.local_addr().unwrap());
    auth::write_private(&dir.join("kubeconfig"), &kubeconfig).unwrap();
    println!("\nready");
    server.serve(listener, CancellationToken::new()).await.unwrap();
}

async fn start_child(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line == "ready" {
            return child;
        }
    }
    panic!("the server ended before it was ready");
}

/// What the server has promised: name → value, `None` for deleted. A name with an answer still
/// outstanding is not in it.
type Promises = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// Creates, changes and deletes until the connection breaks.
async fn write_until_killed(maps: Api<ConfigMap>, prefix: String, promises: Promises) {
    for i in 0.. {
        let name = format!("{prefix}-{i}");
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "1"}}))
                .unwrap();
        let Ok(mut made) = maps.create(&PostParams::default(), &map).await else { return };
        promises.lock().insert(name.clone(), Some("1".into()));
        if i % 2 == 0 {
            promises.lock().remove(&name);
            made.data = Some(BTreeMap::from([("k".into(), "2".into())]));
            let Ok(_) = maps.replace(&name, &PostParams::default(), &made).await else { return };
            promises.lock().insert(name.clone(), Some("2".into()));
        }
        if i % 3 == 0 {
            promises.lock().remove(&name);
            let Ok(_) = maps.delete(&name, &DeleteParams::default()).await else { return };
            promises.lock().insert(name, None);
        }
    }
}

async fn run_and_kill(dir: &Path, round: usize, promises: &Promises) {
    let before = promises.lock().len();
    let mut child = start_child(dir).await;
    let config = client_config(&dir.join("kubeconfig")).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let maps = Api::namespaced(Client::try_from(config.clone()).unwrap(), "default");
        let prefix = format!("r{round}-w{writer}");
        writers.spawn(write_until_killed(maps, prefix, Arc::clone(promises)));
    }
    while promises.lock().len() < before + ANSWERS_PER_ROUND {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().await.unwrap();
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_answered_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let promises = Promises::default();
    for round in 0..ROUNDS {
        run_and_kill(dir.path(), round, &promises).await;
        let server = ApiServer::open(Config::at(dir.path().join("data"))).await.unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
        let promised = promises.lock().clone();
        for (name, wanted) in &promised {
            let found = maps.get_opt(name).await.unwrap();
            let value = found.map(|map| map.data.unwrap()["k"].clone());
            assert_eq!(value, *wanted, "{name} after round {round}");
        }
        server.shutdown().await;
    }
}
