//! The example is a program: it runs here against a kubeconfig, as the guide says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{Api, ObjectKey};
use longshore_provisioner::{Claim, StorageClass, Volume};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// How long a condition may take before the test gives up. Long, because machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// `cargo test` builds examples beside the directory of the tests.
fn example() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().parent().unwrap().join("examples/directories")
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn until<F: Future<Output = bool>>(what: &str, log: &Path, done: impl Fn() -> F) {
    let began = Instant::now();
    while !done().await {
        let text = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", text());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_serves_a_claim() {
    let home = tempfile::Builder::new().prefix("longshore-example-").tempdir().unwrap();
    let (root, log) = (home.path().join("root"), home.path().join("log"));
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = home.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig(listener.local_addr().unwrap())).unwrap();
    let stop = CancellationToken::new();
    let (serving, token) = (server.clone(), stop.clone());
    let served = tokio::spawn(async move { serving.serve(listener, token).await });
    let program = Command::new(example())
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .arg("--root")
        .arg(&root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let program = Ended(program);

    let api = Api::new(server.client());
    let name = "example.com/directories";
    let class = json!({"metadata": {"name": "plain"}, "provisioner": name});
    api.create::<StorageClass>(&class).await.unwrap();
    // No binder runs here, so its part is done by hand: the annotation, and later the phase.
    let claim = json!({"metadata": {"name": "data", "namespace": "default",
            "annotations": {"volume.kubernetes.io/storage-provisioner": name}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "plain",
            "resources": {"requests": {"storage": "1Mi"}}}});
    let made = api.create::<Claim>(&claim).await.unwrap();
    let volume = format!("pvc-{}", made["metadata"]["uid"].as_str().unwrap());
    let key = ObjectKey::cluster(&volume);
    let there = || async { api.get::<Volume>(&key).await.unwrap().is_some() };
    until("there is a volume", &log, there).await;
    assert!(root.join(&volume).is_dir());

    let mut whole = api.get_raw::<Volume>(&key).await.unwrap().unwrap();
    whole["status"] = json!({"phase": "Released"});
    api.update_status::<Volume>(&whole).await.unwrap();
    until("the directory goes", &log, || async { !root.join(&volume).exists() }).await;
    drop(program);
    stop.cancel();
    served.await.unwrap().unwrap();
    server.shutdown().await;
}
