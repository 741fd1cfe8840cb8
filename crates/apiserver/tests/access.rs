//! Who may do what: roles and tokens of service accounts. `routes` walks every route.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Running, client_config};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Config};
use longshore_apiserver::{ApiServer, Config as ServerConfig};
use serde_json::{Value, json};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

async fn send(client: &Client, method: &str, path: &str) -> (u16, Value) {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/json")
        .body(b"{}".to_vec().into())
        .unwrap();
    let answer = client.send(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn a_role_opens_what_it_names_in_its_namespace() {
    let server = ApiServer::open(ServerConfig::memory()).await.unwrap();
    let admin = server.client();
    let jane = server.client_as("jane", ["system:authenticated"]);
    let params = PostParams::default();
    let roles: Api<Role> = Api::namespaced(admin.clone(), "default");
    let role = json!({"metadata": {"name": "r"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "create"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create"]}]});
    roles.create(&params, &from(role)).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(admin, "default");
    let binding = json!({"metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]});
    bindings.create(&params, &from(binding)).await.unwrap();
    let maps = |namespace: &str| Api::<ConfigMap>::namespaced(jane.clone(), namespace);
    let all = ListParams::default();
    assert_eq!(code(maps("default").list(&all).await), 200);
    assert_eq!(code(maps("kube-system").list(&all).await), 403);
    assert_eq!(code(Api::<ConfigMap>::all(jane.clone()).list(&all).await), 403);
    assert_eq!(code(maps("default").delete("x", &DeleteParams::default()).await), 403);

    // Roles within her own rights she may make, others not; nor may she bind a stronger one.
    let own: Api<Role> = Api::namespaced(jane.clone(), "default");
    let rule = |verb: &str| {
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]}]);
        from::<Role>(json!({"metadata": {"name": verb}, "rules": rules}))
    };
    assert_eq!(code(own.create(&params, &rule("list")).await), 200);
    assert_eq!(code(own.create(&params, &rule("delete")).await), 403);
    let strong: RoleBinding = from(json!({"metadata": {"name": "up"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": []}));
    let own: Api<RoleBinding> = Api::namespaced(jane, "default");
    assert_eq!(code(own.create(&params, &strong).await), 403);
}

#[tokio::test]
async fn aggregated_roles_follow_their_parts() {
    let server = ApiServer::open(ServerConfig::memory()).await.unwrap();
    let api: Api<ClusterRole> = Api::all(server.client());
    let params = PostParams::default();
    let sum = json!({"metadata": {"name": "sum"}, "rules": [], "aggregationRule": {
        "clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}});
    api.create(&params, &from(sum)).await.unwrap();
    let part = json!({"metadata": {"name": "part", "labels": {"to": "sum"}}, "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    api.create(&params, &from(part)).await.unwrap();
    for _ in 0..500 {
        if api.get("sum").await.unwrap().rules.is_some_and(|rules| rules.len() == 1) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the role was not put together");
}

async fn token(admin: &Client, request: Value) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    let request: TokenRequest = from(request);
    let answer = accounts.create_token_request("bot", &PostParams::default(), &request).await;
    answer.unwrap().status.unwrap().token.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_lives_as_long_as_its_account_and_its_pod() {
    let running = Running::start().await;
    let mut config = client_config(&running.kubeconfig).await;
    let admin = Client::try_from(config.clone()).unwrap();
    config.auth_info = Default::default();
    let params = PostParams::default();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    accounts.create(&params, &from(json!({"metadata": {"name": "bot"}}))).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "bot", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&params, &from(pod)).await.unwrap();

    let plain = token(&admin, json!({"metadata": {}, "spec": {"audiences": []}})).await;
    let foreign = token(&admin, json!({"metadata": {}, "spec": {"audiences": ["vault"]}})).await;
    let bound = token(
        &admin,
        json!({"metadata": {}, "spec": {"audiences": [],
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}),
    )
    .await;
    let asks = |token: &str| {
        let mut config: Config = config.clone();
        config.auth_info.token = Some(token.to_owned().into());
        async move { send(&Client::try_from(config).unwrap(), "GET", "/api/v1").await.0 }
    };
    assert_eq!(asks(&plain).await, 200);
    assert_eq!(asks(&bound).await, 200);
    assert_eq!(asks(&foreign).await, 401, "it is for somebody else");
    assert_eq!(asks(&format!("{plain}x")).await, 401);
    assert_eq!(asks("nonsense").await, 401);
    let bare = Client::try_from(config.clone()).unwrap();
    assert_eq!(send(&bare, "GET", "/api/v1").await.0, 401);
    assert_eq!(send(&bare, "GET", "/healthz").await.0, 200);

    pods.delete("p", &DeleteParams::default()).await.unwrap();
    assert_eq!(asks(&bound).await, 401);
    accounts.delete("bot", &DeleteParams::default()).await.unwrap();
    assert_eq!(asks(&plain).await, 401);
    let (status, _) =
        send(&admin, "POST", "/api/v1/namespaces/default/serviceaccounts/bot/token").await;
    assert_eq!(status, 404);
    running.stop().await;
}
