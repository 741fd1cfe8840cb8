//! Attempts of a user with few rights to get more of them, or to do what others are needed for.
//!
//! Every attempt has a server of its own. At its end the user must not be able to do what nobody was
//! given the right to, whatever the answers were.

#![allow(clippy::unwrap_used, reason = "tests")]

mod creation;
mod escalation;
mod impersonation;
mod tokens;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use longshore_apiserver::auth::Identity;
use longshore_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

pub const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const STEPS: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// What only somebody with all rights may delete.
const CANARY: &str = "/apis/storage.k8s.io/v1/csinodes/none";

/// One request and the code that it must be answered with.
pub struct Step {
    pub method: &'static str,
    pub path: String,
    pub kind: &'static str,
    pub body: Value,
    pub headers: Vec<(&'static str, String)>,
    pub code: u16,
}

/// Shorthand for a request without further headers.
pub fn step(method: &'static str, path: &str, kind: &'static str, body: Value, code: u16) -> Step {
    Step { method, path: path.to_owned(), kind, body, headers: Vec::new(), code }
}

pub fn post(path: &str, body: Value, code: u16) -> Step {
    step("POST", path, JSON, body, code)
}

pub fn get(path: &str, code: u16) -> Step {
    step("GET", path, JSON, Value::Null, code)
}

/// An attempt: what the user may do everywhere, and in the namespace `default`; what is there
/// already; what they try.
pub struct Attack {
    pub name: String,
    pub rules: Value,
    pub local: Value,
    pub there: Vec<(String, Value)>,
    pub steps: Vec<Step>,
}

pub fn attack(name: &str, rules: Value, steps: Vec<Step>) -> Attack {
    Attack { name: name.into(), rules, local: json!([]), there: Vec::new(), steps }
}

impl Attack {
    pub fn with(mut self, path: &str, object: Value) -> Self {
        self.there.push((path.to_owned(), object));
        self
    }
}

/// A rule for kinds of roles and bindings.
pub fn on_roles(verbs: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": resources, "verbs": verbs})
}

pub fn on_core(verbs: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": resources, "verbs": verbs})
}

pub fn everything() -> Value {
    json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
}

pub fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

/// A binding to Mallory.
pub fn binding(name: &str, kind: &str, role: &str) -> Value {
    json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}]})
}

async fn ask(server: &ApiServer, who: Identity, step: &Step) -> (u16, Value) {
    let body = if step.body.is_null() { Vec::new() } else { step.body.to_string().into_bytes() };
    let mut request = http::Request::builder().method(step.method).uri(&step.path);
    request = request.header("Content-Type", step.kind);
    for (name, value) in &step.headers {
        request = request.header(*name, value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let answer = server.service_as(who).handle(request).await;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

async fn must(server: &ApiServer, path: &str, object: &Value) {
    let admin = Identity::new("admin", ["system:masters"]);
    let (code, said) = ask(server, admin, &post(path, object.clone(), 201)).await;
    assert_eq!(code, 201, "{path}: {said}");
}

/// Waits until the kinds of a definition are served.
async fn served(server: &ApiServer, path: &str) {
    for _ in 0..1000 {
        let admin = Identity::new("admin", ["system:masters"]);
        if ask(server, admin, &get(path, 200)).await.0 == 200 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("{path} is not served");
}

/// What went wrong, if anything.
async fn carry_out(attack: &Attack) -> Result<(), String> {
    let server =
        ApiServer::open(Config { snapshot_kinds: false, ..Config::memory() }).await.unwrap();
    must(&server, &format!("{RBAC}/clusterroles"), &role("given", attack.rules.clone())).await;
    let bindings = format!("{RBAC}/clusterrolebindings");
    must(&server, &bindings, &binding("given", "ClusterRole", "given")).await;
    let local = format!("{RBAC}/namespaces/default");
    must(&server, &format!("{local}/roles"), &role("local", attack.local.clone())).await;
    must(&server, &format!("{local}/rolebindings"), &binding("local", "Role", "local")).await;
    let secret = json!({"metadata": {"name": "hidden"}, "stringData": {"word": "x"}});
    must(&server, "/api/v1/namespaces/kube-system/secrets", &secret).await;
    for (path, object) in &attack.there {
        must(&server, path, object).await;
        if path.ends_with("customresourcedefinitions") {
            served(&server, "/apis/example.com/v1").await;
        }
    }
    let mallory = || Identity::new("mallory", ["system:authenticated"]);
    for (number, step) in attack.steps.iter().enumerate() {
        let (code, said) = ask(&server, mallory(), step).await;
        if code != step.code {
            let Step { method, path, code: wanted, .. } = step;
            return Err(format!("step {number}, {method} {path}: {code}, not {wanted}: {said}"));
        }
    }
    // Roles that are put together from others are so a moment later.
    for _ in 0..20 {
        let last = step("DELETE", CANARY, JSON, Value::Null, 403);
        let (code, _) = ask(&server, mallory(), &last).await;
        if code != 403 {
            return Err(format!("{CANARY} can be deleted: {code}"));
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    Ok(())
}

#[tokio::test]
async fn no_attempt_gets_beyond_the_rights_of_its_author() {
    let mut attacks = escalation::all();
    attacks.extend(creation::all());
    attacks.extend(impersonation::all());
    attacks.extend(tokens::all());
    let mut broken = Vec::new();
    for attack in &attacks {
        if let Err(why) = carry_out(attack).await {
            broken.push(format!("{}: {why}", attack.name));
        }
    }
    longshore_testing::report(&format!(
        "attacks on roles: {} tried, {} held",
        attacks.len(),
        attacks.len() - broken.len()
    ));
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
