//! Who gets in where: a walk over every route that the server has, as everybody who may not.
//!
//! The routes come from discovery, so that a new kind or subresource is walked without being named
//! here; only its sample object has to be added.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod samples;
mod walk;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{Running, client_config};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use longshore_apiserver::Config;
use longshore_apiserver::clock::Clock;
use serde_json::{Value, json};
use walk::{Route, call, create, resource_routes};

/// A clock that a test sets forward.
#[derive(Default)]
struct Ahead(AtomicI64);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        Timestamp::now() + SignedDuration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// A server with a sample of every kind, its routes, and its state before anybody was refused.
struct World {
    running: Running,
    clock: Arc<Ahead>,
    admin: Client,
    routes: Vec<Route>,
}

impl World {
    async fn start() -> Self {
        let clock = Arc::new(Ahead::default());
        let running = Running::with(|_| Config { clock: clock.clone(), ..Config::memory() }).await;
        let admin = running.server.client();
        samples::create_all(&admin).await;
        let routes = resource_routes(&admin).await;
        assert!(routes.len() > 200, "{} routes", routes.len());
        Self { running, clock, admin, routes }
    }

    /// A client with this `Authorization` header and nothing else to show, on a socket.
    async fn caller(&self, authorization: Option<&str>) -> walk::Caller {
        let mut config = client_config(&self.running.kubeconfig).await;
        config.auth_info = kube::config::AuthInfo::default();
        walk::Caller {
            client: Client::try_from(config).unwrap(),
            authorization: authorization.map(str::to_owned),
        }
    }

    fn user(&self, name: &str) -> walk::Caller {
        let client = self.running.server.client_as(name, ["system:authenticated"]);
        walk::Caller { client, authorization: None }
    }

    async fn account_token(&self, account: &str) -> String {
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let body = json!({"spec": {"expirationSeconds": 600}});
        let (code, made) = create(&self.admin, &path, &body).await;
        assert_eq!(code, 201, "{made}");
        made["status"]["token"].as_str().unwrap().to_owned()
    }
}

/// Paths beside the resources, and whether they are open to anybody, to known users, or to few.
async fn other_paths(admin: &Client) -> Vec<(String, Open)> {
    let caller = walk::Caller { client: admin.clone(), authorization: None };
    let (code, root) = call(&caller, "GET", "/").await;
    assert_eq!(code, 200);
    let named = root["paths"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_owned());
    let mut paths: Vec<String> = named.collect();
    let (code, index) = call(&caller, "GET", "/openapi/v3").await;
    assert_eq!(code, 200);
    let documents = index["paths"].as_object().unwrap().values();
    paths.extend(documents.map(|d| d["serverRelativeURL"].as_str().unwrap().to_owned()));
    paths.extend(["/", "/logs", "/debug/pprof", "/healthz/ping", "/nothing"].map(str::to_owned));
    let sorted = |path: String| {
        let open = match path.as_str() {
            p if ["/healthz", "/livez", "/readyz"].iter().any(|h| p.starts_with(h)) => {
                Open::Anybody
            }
            p if ["/api", "/openapi", "/version"].iter().any(|h| p.starts_with(h)) => Open::Known,
            _ => Open::Few,
        };
        (path, open)
    };
    paths.into_iter().map(sorted).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Anybody,
    Known,
    Few,
}

fn unauthorized() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401})
}

/// No, wrong, malformed, foreign and expired credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_good_credentials_every_route_is_closed() {
    let world = World::start().await;
    let expired = world.account_token("x").await;
    world.clock.0.store(3600, Ordering::Relaxed);
    let good = world.account_token("x").await;
    let (head, tail) = good.rsplit_once('.').unwrap();
    let unsigned = format!("Bearer {head}.{}", "A".repeat(tail.len()));
    let expired = format!("Bearer {expired}");
    let others = other_paths(&world.admin).await;
    let before = walk::state(&world.admin, &world.routes).await;
    let wrong = [
        None,
        Some("Bearer guess"),
        Some("Bearer a.b.c"),
        Some(unsigned.as_str()),
        Some(expired.as_str()),
    ];
    for authorization in wrong {
        let caller = world.caller(authorization).await;
        for route in &world.routes {
            let (code, body) = call(&caller, route.method, &route.path).await;
            let place = format!("{authorization:?} {} {}", route.method, route.path);
            assert_eq!((code, body), (401, unauthorized()), "{place}");
        }
        for (path, open) in &others {
            let (code, body) = call(&caller, "GET", path).await;
            if *open == Open::Anybody && authorization.is_none() {
                assert_eq!(code, 200, "{path}");
            } else {
                assert_eq!((code, body), (401, unauthorized()), "{authorization:?} {path}");
            }
        }
    }
    // Other schemes, and headers that hold nothing, are no credentials; the good one is, however
    // its scheme is spelled.
    let rows = [("", 401), ("Bearer", 401), ("Bearer ", 401), ("Basic YTpi", 401)];
    let spelled = [format!("Bearer {good}"), format!("bearer {good}"), format!("BEARER  {good} ")];
    let rows = rows.into_iter().map(|(text, code)| (text.to_owned(), code));
    for (authorization, wanted) in rows.chain(spelled.map(|text| (text, 200))) {
        let caller = world.caller(Some(&authorization)).await;
        let (code, body) = call(&caller, "GET", "/version").await;
        assert_eq!(code, wanted, "{authorization:?}: {body}");
    }
    assert_eq!(walk::state(&world.admin, &world.routes).await, before, "something changed");
    world.running.stop().await;
}

/// What a refused user is told, in full.
fn forbidden(user: &str, route: &Route) -> Value {
    let Route { group, resource, namespace, name, verb, .. } = route;
    let plural = resource.split('/').next().unwrap();
    let mut details = json!({"kind": plural});
    let mut subject = plural.to_owned();
    if !group.is_empty() {
        details["group"] = json!(group);
        subject = format!("{plural}.{group}");
    }
    if let Some(name) = name {
        details["name"] = json!(name);
        subject = format!("{subject} {name:?}");
    }
    let place = match namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let message = format!(
        "{subject} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}"
    );
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Forbidden", "details": details, "code": 403})
}

/// Reviews of oneself are open to all known users.
fn is_own_review(route: &Route) -> bool {
    route.resource.starts_with("selfsubject")
}

/// No role at all, and every right but in another namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_role_here_every_route_is_closed() {
    let world = World::start().await;
    let (code, made) = create(&world.admin, "/api/v1/namespaces", &named("elsewhere")).await;
    assert_eq!(code, 201, "{made}");
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/elsewhere/rolebindings";
    let binding = samples::binding("all", "ClusterRole", "cluster-admin", "emma");
    assert_eq!(create(&world.admin, path, &binding).await.0, 201);
    samples::settle(&world.admin).await;
    let others = other_paths(&world.admin).await;
    let before = walk::state(&world.admin, &world.routes).await;
    for user in ["jane", "emma"] {
        let caller = world.user(user);
        for route in &world.routes {
            let (code, body) = call(&caller, route.method, &route.path).await;
            let place = format!("{user} {} {}", route.method, route.path);
            if is_own_review(route) {
                assert_ne!(code, 403, "{place}");
            } else {
                assert_eq!((code, body), (403, forbidden(user, route)), "{place}");
            }
        }
        for (path, open) in &others {
            let (code, body) = call(&caller, "GET", path).await;
            if *open != Open::Few {
                assert_eq!(code, 200, "{path}: {body}");
            } else {
                assert_eq!((code, body), (403, forbidden_path(user, "get", path)), "{path}");
            }
            if *open != Open::Anybody {
                let plain = path.split('?').next().unwrap();
                let (code, body) = call(&caller, "POST", path).await;
                assert_eq!((code, body), (403, forbidden_path(user, "post", plain)), "{path}");
            }
        }
    }
    // In her own namespace the second one is at home: it is the place that was refused.
    let caller = world.user("emma");
    let (code, _) = call(&caller, "GET", "/api/v1/namespaces/elsewhere/secrets").await;
    assert_eq!(code, 200);
    assert_eq!(walk::state(&world.admin, &world.routes).await, before, "something changed");
    world.running.stop().await;
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn forbidden_path(user: &str, verb: &str, path: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("forbidden: User {user:?} cannot {verb} path {path:?}"),
        "reason": "Forbidden", "details": {}, "code": 403})
}

/// Binds a role of the cluster to a user of the same name.
async fn grant(admin: &Client, name: &str, rules: Value) {
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let (code, made) = create(admin, &format!("{base}/clusterroles"), &role).await;
    assert_eq!(code, 201, "{made}");
    let binding = samples::binding(name, "ClusterRole", name, name);
    let (code, made) = create(admin, &format!("{base}/clusterrolebindings"), &binding).await;
    assert_eq!(code, 201, "{made}");
}

/// Every right but this verb, every right but on this resource, and then this resource alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_lacks_the_right_does_not_open_its_route() {
    let world = World::start().await;
    let rights = walk::Rights::of(&world.routes);
    for verb in &rights.verbs {
        grant(&world.admin, &format!("but-{verb}"), rights.but_verb(verb)).await;
    }
    for (number, (group, resource)) in rights.resources.iter().enumerate() {
        let but = rights.but_resource(group, resource);
        grant(&world.admin, &format!("but-{number}"), but).await;
        let only = json!([{"apiGroups": [group], "resources": [resource], "verbs": rights.verbs}]);
        grant(&world.admin, &format!("only-{number}"), only).await;
    }
    let before = walk::state(&world.admin, &world.routes).await;
    for route in world.routes.iter().filter(|route| !is_own_review(route)) {
        let number = rights.number(route);
        for user in [format!("but-{}", route.verb), format!("but-{number}")] {
            let (code, body) = call(&world.user(&user), route.method, &route.path).await;
            let place = format!("{user} {} {}", route.method, route.path);
            assert_eq!((code, body), (403, forbidden(&user, route)), "{place}");
        }
        // With the right the door is open, whatever is said behind it; nothing is to change.
        let user = format!("only-{number}");
        let sign = if route.path.contains('?') { '&' } else { '?' };
        let path = format!("{}{sign}dryRun=All&fieldManager=walk", route.path);
        let (_, body) = call(&world.user(&user), route.method, &path).await;
        let refused = forbidden(&user, route);
        assert_ne!(body["message"], refused["message"], "{} {path}", route.method);
    }
    assert_eq!(walk::state(&world.admin, &world.routes).await, before, "something changed");
    world.running.stop().await;
}
