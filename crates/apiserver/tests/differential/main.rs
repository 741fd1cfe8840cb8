//! The same requests to this server and to the real kube-apiserver: same code, same reason.
//!
//! Nothing is written by what is compared: every attempt is a dry run, so that the real server's
//! caches cannot lag behind. `LONGSHORE_SEED` repeats a run, `LONGSHORE_LONG=1` makes it long.

#![allow(clippy::unwrap_used, reason = "tests")]

mod attempts;
mod pod_table;
mod pods;
mod random;
mod roles;

use std::path::Path;

use http_body_util::BodyExt;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use longshore_apiserver::{ApiServer, Config};
use longshore_real_kube::tools::{Tool, need};
use longshore_real_kube::{Cluster, Options};
use serde_json::Value;

/// One request.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub method: &'static str,
    pub path: String,
    pub kind: &'static str,
    pub body: Value,
    pub headers: Vec<(String, String)>,
    /// Whether only refusals for want of rights are compared: the rest is not served alike.
    pub loose: bool,
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Answer {
    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

pub async fn ask(client: &Client, attempt: &Attempt) -> Answer {
    let body = match &attempt.body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    let mut request = http::Request::builder().method(attempt.method).uri(&attempt.path);
    if !body.is_empty() {
        request = request.header("Content-Type", attempt.kind);
    }
    for (name, value) in &attempt.headers {
        request = request.header(name, value);
    }
    let answer = client.send(request.body(body.into()).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let warnings = answer.headers().get_all("warning").iter();
    let warnings = warnings.map(|w| String::from_utf8_lossy(w.as_bytes()).into_owned()).collect();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    Answer { code, warnings, body: serde_json::from_slice(&text).unwrap_or_default() }
}

/// This server in memory and a real one, which agree on their first objects.
pub struct Pair {
    pub ours: ApiServer,
    pub real: Cluster,
    pub admins: [Client; 2],
}

impl Pair {
    /// `None` where the real programs are not built.
    pub async fn start() -> Option<Self> {
        if !need(&[Tool::Etcd, Tool::KubeApiserver]) {
            return None;
        }
        let options = Options { rbac: true, etcd_without_fsync: true, ..Options::default() };
        let real = tokio::task::spawn_blocking(move || Cluster::start(&options).unwrap());
        let real = real.await.unwrap();
        let config = Config { snapshot_kinds: false, ..Config::memory() };
        let ours = ApiServer::open(config).await.unwrap();
        let admins = [ours.client(), client(real.kubeconfig()).await];
        let pair = Self { ours, real, admins };
        pair.wait_for("/api/v1/namespaces/default").await;
        pair.wait_for("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin").await;
        Some(pair)
    }

    /// The real server makes its first objects a moment after it is ready.
    async fn wait_for(&self, path: &str) {
        let attempt = Attempt {
            method: "GET",
            path: path.into(),
            kind: "",
            body: Value::Null,
            headers: Vec::new(),
            loose: false,
        };
        for _ in 0..600 {
            if ask(&self.admins[1], &attempt).await.code == 200 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{path} is not there");
    }

    /// Clients of a user on both servers.
    pub async fn user(&self, name: &str) -> [Client; 2] {
        let file = self.real.kubeconfig_for(name, &[]).unwrap();
        [self.ours.client_as(name, ["system:authenticated"]), client(&file).await]
    }

    /// Creates an object on both servers.
    pub async fn create(&self, path: &str, object: &Value) {
        for admin in &self.admins {
            let attempt = Attempt {
                method: "POST",
                path: path.into(),
                kind: "application/json",
                body: object.clone(),
                headers: Vec::new(),
                loose: false,
            };
            let made = ask(admin, &attempt).await;
            assert_eq!(made.code, 201, "{path} {object}: {}", made.body);
        }
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

pub fn is_long() -> bool {
    std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1")
}
