//! A store with a limit.

use serde_json::{Value, json};

use crate::{MAPS, ask, child::Server, common::client_config};

const LIMIT: usize = 6 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_refuses_what_grows_and_lets_the_rest_pass() {
    let dir = tempfile::Builder::new().prefix("longshore-bombs-").tempdir().unwrap();
    let server = Server::start(dir.path(), LIMIT).await;
    let client =
        kube::Client::try_from(client_config(&dir.path().join("kubeconfig")).await).unwrap();
    let send = async |method: &str, path: &str, kind: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ask(&client, method, path, kind, body).await
    };
    const JSON: &str = "application/json";
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "x".repeat(500_000)}});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    assert_eq!(send("POST", claims, JSON, claim).await.0, 201);
    let mut made = 0;
    let refused = loop {
        let (code, _, answer) = send("POST", MAPS, JSON, map(&format!("m{made}"))).await;
        if code != 201 {
            assert_eq!(code, 507, "{answer}");
            break answer;
        }
        made += 1;
        assert!(made < 100, "the store has no limit");
    };
    assert_eq!(refused["reason"], "StoreFull");
    let text = refused["message"].as_str().unwrap();
    assert!(text.contains(&LIMIT.to_string()) && text.contains("delete"), "{text}");
    let merge = "application/merge-patch+json";
    let first = format!("{MAPS}/m0");
    let grow = json!({"data": {"b": "x".repeat(500_000)}});
    assert_eq!(send("PATCH", &first, merge, grow.clone()).await.0, 507);
    let shrink = json!({"data": {"a": "x".repeat(499_000)}});
    assert_eq!(send("PATCH", &first, merge, shrink).await.0, 200);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    assert_eq!(send("POST", leases, JSON, lease).await.0, 201);
    let status = json!({"status": {"phase": "Bound"}});
    assert_eq!(send("PATCH", &format!("{claims}/c/status"), merge, status).await.0, 200);
    let (code, _, _) = send("GET", "/metrics", JSON, Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(send("DELETE", &first, JSON, Value::Null).await.0, 200);
    assert_eq!(send("DELETE", &format!("{MAPS}/m1"), JSON, Value::Null).await.0, 200);
    assert_eq!(send("POST", MAPS, JSON, map("again")).await.0, 201);
    server.stop().await;
    // It starts again with as much as there is, and with a limit that is too low.
    Server::start(dir.path(), LIMIT).await.stop().await;
    Server::start(dir.path(), 1000).await.stop().await;
    longshore_testing::report("bombs: 1 tried, 1 held (full store)");
}
