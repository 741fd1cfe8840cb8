//! Programs in a pod whose service account token is rotated: they go on with the new one, and the old
//! one is refused.

use std::path::Path;
use std::time::{Duration, Instant};

use http::Request;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use longshore_cluster::ClientConfig;
use longshore_testing::{Need, found, need};
use serde_json::{Value, json};

use super::common::Home;
use super::stack::{Access, Stack};
use super::{can_run, cluster};

/// As in client-go and every client: a token's file is read again after a minute at the latest.
const READ_AGAIN: Duration = Duration::from_secs(65);

/// A token of the account that is good as long as there is a secret of this name.
async fn token(client: &kube::Client, secret: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let object = serde_json::from_value(json!({"metadata": {"name": secret}})).unwrap();
    let made = secrets.create(&PostParams::default(), &object).await.unwrap();
    let bound = json!({"apiVersion": "v1", "kind": "Secret", "name": secret,
                       "uid": made.metadata.uid});
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                        "spec": {"expirationSeconds": 3600, "boundObjectRef": bound}});
    let path = "/api/v1/namespaces/default/serviceaccounts/sidecars/token";
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(review.to_string().into_bytes()).unwrap();
    let answer: Value = client.request(request).await.unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Puts a token into place as a kubelet does, in one step.
fn write(account: &Path, token: &str) {
    std::fs::write(account.join("next"), token).unwrap();
    std::fs::rename(account.join("next"), account.join("token")).unwrap();
}

/// Whether the server knows who brings the token.
async fn is_known(client: &kube::Client, token: &str) -> bool {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                        "spec": {"token": token}});
    let request = Request::post("/apis/authentication.k8s.io/v1/tokenreviews");
    let request = request.header("content-type", "application/json");
    let request = request.body(review.to_string().into_bytes()).unwrap();
    let answer: Value = client.request(request).await.unwrap();
    answer["status"]["authenticated"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_go_on_with_a_new_token_when_the_old_one_is_refused() {
    if !can_run() || !need("control_plane", &[Need::Root, Need::Tool("unshare")]) {
        return;
    }
    let (cluster, home) = (cluster(), Home::new("tokens"));
    let client = ClientConfig::from_kubeconfig(cluster.kubeconfig()).client().await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "sidecars"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let files = home.path().join("account");
    std::fs::create_dir(&files).unwrap();
    std::fs::copy(cluster.ca_file(), files.join("ca.crt")).unwrap();
    std::fs::write(files.join("namespace"), "default").unwrap();
    let old = token(&client, "old").await;
    write(&files, &old);
    let access = Access::Pod { account: files.clone(), port: cluster.apiserver_ports()[0] };
    let mut stack = Stack::start_with(access, cluster.kubeconfig(), true).await;

    let new = token(&client, "new").await;
    write(&files, &new);
    let rotated = Instant::now();
    stack.users.churn("rotated", || rotated.elapsed() > READ_AGAIN).await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    secrets.delete("old", &DeleteParams::default()).await.unwrap();
    // The server remembers for some seconds whom it knew.
    found("the old token is refused", || async { (!is_known(&client, &old).await).then_some(()) })
        .await;
    assert!(is_known(&client, &new).await);

    let refused = Instant::now();
    // Two renewals of every lease.
    stack.users.churn("refused", || refused.elapsed() > Duration::from_secs(12)).await;
    stack.settle("refused", Instant::now()).await;
    stack.nobody_lost_a_lease("refused").await;
    stack.clear("refused").await;
    stack.stop().await;
    tokio::task::block_in_place(|| cluster.stop().unwrap());
}
