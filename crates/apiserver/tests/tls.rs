//! The server on a socket: who gets in, and who does not.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Running, client_config};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, WatchParams};
use kube::config::AuthInfo;
use kube::{Client, Config};

async fn status_of(config: Config, path: &str) -> u16 {
    let client = Client::try_from(config).unwrap();
    let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    client.send(request).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_known_clients_get_in() {
    let running = Running::start().await;
    let admin = client_config(&running.kubeconfig).await;
    let namespaces: Api<Namespace> = Api::all(Client::try_from(admin.clone()).unwrap());
    assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 4);

    let mut nobody = admin.clone();
    nobody.auth_info = AuthInfo::default();
    assert_eq!(status_of(nobody.clone(), "/api/v1/namespaces").await, 401);
    assert_eq!(status_of(nobody.clone(), "/version").await, 401);
    assert_eq!(status_of(nobody.clone(), "/metrics").await, 401);
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(status_of(nobody.clone(), path).await, 200, "{path}");
    }

    let token = std::fs::read_to_string(running.data_dir.join("pki/admin.token")).unwrap();
    for (token, wanted) in [(token.as_str(), 200), ("guess", 401)] {
        let auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        let mut config = admin.clone();
        config.auth_info = auth_info;
        assert_eq!(status_of(config, "/api/v1/namespaces").await, wanted);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_watch_does_not_hold_the_server_up() {
    let running = Running::start().await;
    let client = Client::try_from(client_config(&running.kubeconfig).await).unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    let stream = namespaces.watch(&WatchParams::default(), "0").await.unwrap();
    running.stop().await;
    // The stream ends by itself, with or without an error of the connection.
    let _: Vec<_> = stream.collect().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_are_refused() {
    let running = Running::start().await;
    let client = Client::try_from(client_config(&running.kubeconfig).await).unwrap();
    let body = vec![b' '; 4 << 20];
    let request = http::Request::post("/api/v1/namespaces/default/configmaps")
        .header("Content-Type", "application/json")
        .body(body.into())
        .unwrap();
    assert_eq!(client.send(request).await.unwrap().status(), 413);
    running.stop().await;
}
