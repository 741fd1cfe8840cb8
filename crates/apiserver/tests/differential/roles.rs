//! Random sets of roles, and what their holders may do on either server.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::attempts::{self, RBAC};
use crate::random::Random;
use crate::{Answer, Attempt, Pair, ask, is_long};

const BASE: &str = "/apis/rbac.authorization.k8s.io/v1";
const PER_SET: usize = 30;

/// What is there for all sets.
async fn fixtures(pair: &Pair) {
    let few = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let local = format!("{BASE}/namespaces/default");
    for (name, rules) in [("fix-few", &few), ("fix-all", &all)] {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        pair.create(&format!("{BASE}/clusterroles"), &role).await;
        pair.create(&format!("{local}/roles"), &role).await;
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}});
        pair.create(&format!("{BASE}/clusterrolebindings"), &binding).await;
        pair.create(&format!("{local}/rolebindings"), &binding).await;
    }
    let sum = json!({"metadata": {"name": "fix-sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"nobody": "has"}}]}});
    pair.create(&format!("{BASE}/clusterroles"), &sum).await;
    let core = "/api/v1/namespaces/default";
    pair.create(&format!("{core}/serviceaccounts"), &json!({"metadata": {"name": "bot"}})).await;
    pair.create(&format!("{core}/configmaps"), &json!({"metadata": {"name": "fix-map"}})).await;
    for (name, account) in [("fix-pod", "default"), ("bot-pod", "bot")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}});
        pair.create(&format!("{core}/pods"), &pod).await;
    }
}

/// Gives a user their roles, and waits until the real server knows.
async fn grant(pair: &Pair, user: &str, cluster: &[Value], local: &[Value], clients: &[Client; 2]) {
    let marker =
        |group: &str| json!({"apiGroups": [group], "resources": ["markers"], "verbs": ["get"]});
    let role = |rules: &[Value], group: &str| {
        let rules: Vec<Value> = rules.iter().cloned().chain([marker(group)]).collect();
        json!({"metadata": {"name": user}, "rules": rules})
    };
    let binding = |kind: &str| {
        json!({"metadata": {"name": user}, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}]})
    };
    let namespaced = format!("{BASE}/namespaces/default");
    pair.create(&format!("{BASE}/clusterroles"), &role(cluster, "far.example.com")).await;
    pair.create(&format!("{BASE}/clusterrolebindings"), &binding("ClusterRole")).await;
    pair.create(&format!("{namespaced}/roles"), &role(local, "near.example.com")).await;
    pair.create(&format!("{namespaced}/rolebindings"), &binding("Role")).await;
    for group in ["far.example.com", "near.example.com"] {
        let review = Attempt {
            method: "POST",
            path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".into(),
            kind: "application/json",
            body: json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes":
                {"verb": "get", "group": group, "resource": "markers", "namespace": "default"}}}),
            headers: Vec::new(),
            loose: false,
        };
        let mut known = false;
        for _ in 0..2000 {
            known = ask(&clients[1], &review).await.body["status"]["allowed"] == true;
            if known {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(known, "the real server does not know the roles of {user}");
    }
}

/// What is compared of an answer.
fn compared(attempt: &Attempt, answer: &Answer) -> Value {
    if attempt.loose {
        return json!(matches!(answer.code, 401 | 403));
    }
    json!([answer.code, answer.reason(), answer.body["status"]["allowed"]])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_roles_allow_and_refuse_the_same_on_both_servers() {
    let Some(pair) = Pair::start().await else { return };
    fixtures(&pair).await;
    let seed = std::env::var("LONGSHORE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()) + 1);
    let sets = if is_long() { 500 } else { 40 };
    longshore_testing::report(&format!("differential roles: LONGSHORE_SEED={seed}, {sets} sets"));
    let (mut tried, mut refused, mut differ) = (0, 0, Vec::new());
    for set in 0..sets {
        let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(set));
        let user = format!("u{set}");
        let clients = pair.user(&user).await;
        let cluster = attempts::rules(&mut random, true);
        let local = attempts::rules(&mut random, false);
        grant(&pair, &user, &cluster, &local, &clients).await;
        let held: Vec<Value> = cluster.iter().chain(&local).cloned().collect();
        for _ in 0..PER_SET {
            let attempt = attempts::any(&mut random, &held);
            let ours = ask(&clients[0], &attempt).await;
            let real = ask(&clients[1], &attempt).await;
            tried += 1;
            refused += usize::from(real.code == 403);
            let (is, wanted) = (compared(&attempt, &ours), compared(&attempt, &real));
            if is != wanted {
                differ.push(format!(
                    "set {set}: {} {} {} {:?}\n  rules: {}\n  local: {}\n  ours {is}: {}\n  real {wanted}: {}",
                    attempt.method, attempt.path, attempt.body, attempt.headers,
                    json!(cluster), json!(local), ours.message(), real.message()
                ));
            }
        }
    }
    longshore_testing::report(&format!(
        "differential roles: {tried} attempts, {refused} forbidden, {} differ",
        differ.len()
    ));
    pair.real.stop().unwrap();
    assert!(differ.is_empty(), "seed {seed}:\n{}", differ.join("\n"));
}
