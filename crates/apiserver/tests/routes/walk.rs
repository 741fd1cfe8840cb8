//! The routes of a server, and calls to them.

use std::collections::BTreeSet;

use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};

use crate::samples;

/// One thing that can be asked of the server.
#[derive(Debug, Clone)]
pub struct Route {
    pub method: &'static str,
    /// Path and query.
    pub path: String,
    pub verb: String,
    pub group: String,
    /// With `/sub` for a subresource.
    pub resource: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
}

/// Somebody who asks.
pub struct Caller {
    pub client: Client,
    pub authorization: Option<String>,
}

/// Sends a request with an empty object as its body.
pub async fn call(caller: &Caller, method: &str, path: &str) -> (u16, Value) {
    let kind = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let mut request =
        http::Request::builder().method(method).uri(path).header("Content-Type", kind);
    if let Some(authorization) = &caller.authorization {
        request = request.header("Authorization", authorization);
    }
    let body = if method == "GET" { Vec::new() } else { b"{}".to_vec() };
    send(&caller.client, request.body(body.into()).unwrap()).await
}

/// Creates an object.
pub async fn create(client: &Client, path: &str, object: &Value) -> (u16, Value) {
    let request = http::Request::post(path).header("Content-Type", "application/json");
    send(client, request.body(object.to_string().into_bytes().into()).unwrap()).await
}

async fn send(client: &Client, request: http::Request<kube::client::Body>) -> (u16, Value) {
    let watching = request.uri().query().is_some_and(|query| query.contains("timeoutSeconds"));
    let answer = client.send(request).await.unwrap();
    let code = answer.status().as_u16();
    if watching && code == 200 {
        return (code, Value::Null);
    }
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

/// Every resource and subresource with every verb it takes, in all forms of its path.
pub async fn resource_routes(admin: &Client) -> Vec<Route> {
    let admin = Caller { client: admin.clone(), authorization: None };
    let (code, groups) = call(&admin, "GET", "/apis").await;
    assert_eq!(code, 200);
    let mut bases = vec![(String::new(), "/api/v1".to_owned())];
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let path = format!("/apis/{}", version["groupVersion"].as_str().unwrap());
            bases.push((group["name"].as_str().unwrap().to_owned(), path));
        }
    }
    let mut routes = Vec::new();
    for (group, base) in bases {
        let (code, list) = call(&admin, "GET", &base).await;
        assert_eq!(code, 200, "{base}");
        for resource in list["resources"].as_array().unwrap() {
            for verb in resource["verbs"].as_array().unwrap() {
                let resource = Described {
                    group: &group,
                    base: &base,
                    name: resource["name"].as_str().unwrap(),
                    namespaced: resource["namespaced"] == true,
                };
                resource.routes(verb.as_str().unwrap(), &mut routes);
            }
        }
    }
    routes
}

/// A resource as discovery describes it.
struct Described<'a> {
    group: &'a str,
    base: &'a str,
    name: &'a str,
    namespaced: bool,
}

impl Described<'_> {
    fn routes(&self, verb: &str, routes: &mut Vec<Route>) {
        let (plural, sub) = match self.name.split_once('/') {
            Some((plural, sub)) => (plural, format!("/{sub}")),
            None => (self.name, String::new()),
        };
        let object = samples::name(self.group, plural);
        let place = if self.namespaced { "/namespaces/default" } else { "" };
        let mut add = |method: &'static str, path: String, within: bool, named: bool| {
            // A namespace is inside itself.
            let own = (self.name.split('/').next() == Some("namespaces") && named)
                .then(|| object.to_owned());
            routes.push(Route {
                method,
                path: format!("{}{path}", self.base),
                verb: verb.to_owned(),
                group: self.group.to_owned(),
                resource: self.name.to_owned(),
                namespace: own.or((self.namespaced && within).then(|| "default".to_owned())),
                name: named.then(|| object.to_owned()),
            });
        };
        let collection = format!("{place}/{plural}");
        let one = format!("{collection}/{object}{sub}");
        match verb {
            "create" if sub.is_empty() => add("POST", collection, true, false),
            "create" => add("POST", one, true, true),
            "get" => add("GET", one, true, true),
            "update" => add("PUT", one, true, true),
            "patch" => add("PATCH", one, true, true),
            "delete" => add("DELETE", one, true, true),
            "deletecollection" => add("DELETE", collection, true, false),
            "list" => {
                add("GET", collection, true, false);
                if self.namespaced {
                    add("GET", format!("/{plural}"), false, false);
                }
            }
            "watch" => {
                let end = "timeoutSeconds=1";
                add("GET", format!("{collection}?watch=1&{end}"), true, false);
                add("GET", format!("/watch{collection}?{end}"), true, false);
                add("GET", format!("/watch{one}?{end}"), true, true);
                if self.namespaced {
                    add("GET", format!("/{plural}?watch=true&{end}"), false, false);
                    add("GET", format!("/watch/{plural}?{end}"), false, false);
                }
            }
            other => panic!("a verb without a route: {other}"),
        }
    }
}

/// Everything that is stored, with the newest version of it.
pub async fn state(admin: &Client, routes: &[Route]) -> Vec<Value> {
    let admin = Caller { client: admin.clone(), authorization: None };
    let mut all = Vec::new();
    for route in routes.iter().filter(|r| r.verb == "list" && r.namespace.is_none()) {
        let (code, list) = call(&admin, "GET", &route.path).await;
        assert_eq!(code, 200, "{}", route.path);
        all.push(list);
    }
    all
}

/// All verbs and all resources that occur in routes.
pub struct Rights {
    pub verbs: BTreeSet<String>,
    pub resources: Vec<(String, String)>,
}

impl Rights {
    pub fn of(routes: &[Route]) -> Self {
        let resources: BTreeSet<_> =
            routes.iter().map(|r| (r.group.clone(), r.resource.clone())).collect();
        let verbs = routes.iter().map(|r| r.verb.clone()).collect();
        Self { verbs, resources: resources.into_iter().collect() }
    }

    /// Which resource a route is of.
    pub fn number(&self, route: &Route) -> usize {
        let wanted = (route.group.clone(), route.resource.clone());
        self.resources.iter().position(|known| *known == wanted).unwrap()
    }

    /// Everything, but for one verb.
    pub fn but_verb(&self, verb: &str) -> Value {
        let verbs: Vec<&String> = self.verbs.iter().filter(|known| *known != verb).collect();
        json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs},
            {"nonResourceURLs": ["*"], "verbs": ["*"]}])
    }

    /// Everything, but for one resource.
    pub fn but_resource(&self, group: &str, resource: &str) -> Value {
        let groups: BTreeSet<&String> = self.resources.iter().map(|(group, _)| group).collect();
        let mut rules = vec![json!({"nonResourceURLs": ["*"], "verbs": ["*"]})];
        for known in groups {
            let here = self
                .resources
                .iter()
                .filter(|(g, r)| g == known && (known != group || r != resource));
            let here: Vec<&String> = here.map(|(_, r)| r).collect();
            if !here.is_empty() {
                rules.push(json!({"apiGroups": [known], "resources": here, "verbs": ["*"]}));
            }
        }
        json!(rules)
    }
}
