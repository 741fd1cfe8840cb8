//! Random rules, and random attempts of who has them.

use serde_json::{Value, json};

use crate::Attempt;
use crate::random::Random;

pub const RBAC: &str = "rbac.authorization.k8s.io";
const BASE: &str = "/apis/rbac.authorization.k8s.io/v1";
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const STEPS: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "bind",
    "escalate",
    "impersonate",
];
const CORE: &[&str] = &[
    "pods",
    "pods/log",
    "pods/status",
    "pods/binding",
    "pods/eviction",
    "pods/exec",
    "*/status",
    "secrets",
    "configmaps",
    "serviceaccounts",
    "serviceaccounts/token",
    "users",
    "groups",
    "*",
];
const ROLES: &[&str] = &["roles", "clusterroles", "rolebindings", "clusterrolebindings"];
const AUTHENTICATION: &[&str] = &["uids", "userextras/scopes", "userextras/example.com/x", "*"];
const PATHS: &[&str] = &["/metrics", "/logs/*", "/logs/a", "/healthz", "*"];
const NAMES: &[&str] =
    &["fix-few", "fix-all", "fix-sum", "fix-pod", "fix-map", "bot", "new", "bob"];

/// A rule for objects, or for paths.
pub fn rule(random: &mut Random, cluster: bool) -> Value {
    if cluster && random.percent(12) {
        return json!({"nonResourceURLs": random.some(PATHS, 2), "verbs": random.some(&["get", "post", "*"], 2)});
    }
    let (group, resources) = match random.below(10) {
        0..=3 => ("", random.some(CORE, 3)),
        4..=6 => (RBAC, random.some(ROLES, 3)),
        7 => ("coordination.k8s.io", vec!["leases"]),
        8 => ("authentication.k8s.io", random.some(AUTHENTICATION, 2)),
        _ => ("*", random.some(&["pods", "*", "clusterroles", "configmaps"], 2)),
    };
    let verbs = if random.percent(15) { vec!["*"] } else { random.some(VERBS, 5) };
    let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    if random.percent(25) {
        rule["resourceNames"] = json!(random.some(NAMES, 2));
    }
    rule
}

/// Rules of one role of a set; most sets can write roles, or the attempts would not get far.
pub fn rules(random: &mut Random, cluster: bool) -> Vec<Value> {
    let mut rules: Vec<Value> = (0..1 + random.below(5)).map(|_| rule(random, cluster)).collect();
    if random.percent(40) {
        let verbs = random.some(&["get", "list", "create", "update", "patch", "delete"], 5);
        let resources =
            random.some(&["pods", "configmaps", "pods/status", "serviceaccounts/token"], 4);
        rules.push(json!({"apiGroups": [""], "resources": resources, "verbs": verbs}));
    }
    if random.percent(30) {
        let resources = random.some(&["users", "groups", "serviceaccounts"], 3);
        rules.push(json!({"apiGroups": [""], "resources": resources, "verbs": ["impersonate"]}));
    }
    if random.percent(25) {
        rules.extend(constrained(random));
    }
    if random.percent(75) {
        let verbs =
            random.some(&["get", "create", "update", "patch", "delete", "escalate", "bind"], 5);
        rules.push(json!({"apiGroups": [RBAC], "resources": ROLES, "verbs": verbs}));
    }
    if random.percent(4) {
        rules.push(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}));
        if cluster {
            rules.push(json!({"nonResourceURLs": ["*"], "verbs": ["*"]}));
        }
    }
    rules
}

/// The two rights that impersonation in one constrained way needs, or one of them.
fn constrained(random: &mut Random) -> Vec<Value> {
    let mode = random.word(&["user-info", "serviceaccount", "arbitrary-node", "associated-node"]);
    let verb = random.word(&["get", "list", "*"]);
    let resources =
        ["users", "groups", "uids", "nodes", "serviceaccounts", "userextras/example.com/x"];
    let who = json!({"apiGroups": ["authentication.k8s.io"], "resources": resources, "verbs": [format!("impersonate:{mode}")]});
    let verb = if verb == "*" { verb.to_owned() } else { format!("impersonate-on:{mode}:{verb}") };
    let what = json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
    if random.percent(80) { vec![who, what] } else { vec![who] }
}

fn attempt(method: &'static str, path: String, kind: &'static str, body: Value) -> Attempt {
    Attempt { method, path, kind, body, headers: Vec::new(), loose: false }
}

/// One attempt; `held` are rules of its author, to be granted as they are or changed a little.
pub fn any(random: &mut Random, held: &[Value]) -> Attempt {
    match random.below(10) {
        0..=2 => on_role(random, held),
        3..=4 => on_binding(random),
        5..=6 => on_object(random),
        7 => token(random),
        8 => impersonation(random),
        _ => review(random),
    }
}

fn wanted(random: &mut Random, held: &[Value], cluster: bool) -> Vec<Value> {
    let one = |random: &mut Random| {
        if held.is_empty() || random.percent(35) {
            return rule(random, cluster);
        }
        let mut rule = random.pick(held).clone();
        match random.below(6) {
            0 => rule["verbs"] = json!(["get"]),
            1 if rule["resources"].is_array() => rule["resources"] = json!(random.some(CORE, 2)),
            2 if rule["resources"].is_array() => {
                rule["resourceNames"] = json!(random.some(NAMES, 2))
            }
            3 if rule["nonResourceURLs"].is_array() => {
                rule["nonResourceURLs"] = json!(random.some(PATHS, 1))
            }
            _ => {}
        }
        rule
    };
    (0..random.below(3)).map(|_| one(random)).collect()
}

/// Writes of an object by all methods; all are dry runs.
fn write(
    random: &mut Random,
    collection: &str,
    name: &str,
    typed: &Value,
    patch: Value,
) -> Attempt {
    let one = format!("{collection}/{name}");
    match random.below(9) {
        0 | 1 => attempt("POST", format!("{collection}?dryRun=All"), JSON, typed.clone()),
        2 => attempt("PUT", format!("{one}?dryRun=All"), JSON, typed.clone()),
        3 => attempt("PATCH", format!("{one}?dryRun=All"), MERGE, patch),
        4 => attempt("PATCH", format!("{one}?dryRun=All"), STRATEGIC, patch),
        5 => {
            let steps: Vec<Value> = patch.as_object().into_iter().flatten().map(|(field, value)| json!({"op": "add", "path": format!("/{field}"), "value": value})).collect();
            attempt("PATCH", format!("{one}?dryRun=All"), STEPS, json!(steps))
        }
        6 | 7 => attempt(
            "PATCH",
            format!("{one}?dryRun=All&fieldManager=m&force=true"),
            APPLY,
            typed.clone(),
        ),
        _ => attempt("DELETE", format!("{one}?dryRun=All"), JSON, Value::Null),
    }
}

fn on_role(random: &mut Random, held: &[Value]) -> Attempt {
    let cluster = random.percent(60);
    let collection = if cluster {
        format!("{BASE}/clusterroles")
    } else {
        format!("{BASE}/namespaces/default/roles")
    };
    let name = random.word(if cluster {
        &["new", "fix-few", "fix-all", "fix-sum"][..]
    } else {
        &["new", "fix-few", "fix-all"]
    });
    let kind = if cluster { "ClusterRole" } else { "Role" };
    let rules = wanted(random, held, cluster);
    let mut object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name}, "rules": rules});
    let mut patch = json!({"rules": rules});
    if cluster && random.percent(25) {
        let rule = json!({"clusterRoleSelectors": [{"matchLabels": {"nobody": "has"}}]});
        object["aggregationRule"] = rule.clone();
        patch["aggregationRule"] = rule;
    }
    let method = random.below(6);
    if method == 0 {
        // What concerns only the garbage collector, and what seems harmless.
        let metadata = random.pick(&[
            json!({"finalizers": ["example.com/x"]}),
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}]}),
            json!({"labels": {"a": "b"}}),
            json!({"annotations": {"a": "b"}}),
        ]).clone();
        let path = format!("{collection}/{name}?dryRun=All");
        return attempt("PATCH", path, MERGE, json!({"metadata": metadata}));
    }
    write(random, &collection, name, &object, patch)
}

fn on_binding(random: &mut Random) -> Attempt {
    let cluster = random.percent(50);
    let collection = if cluster {
        format!("{BASE}/clusterrolebindings")
    } else {
        format!("{BASE}/namespaces/default/rolebindings")
    };
    let name = random.word(&["new", "fix-few", "fix-all"]);
    let kind = if cluster { "ClusterRoleBinding" } else { "RoleBinding" };
    let role_kind = if cluster || random.percent(50) { "ClusterRole" } else { "Role" };
    // A binding that is there keeps its role, mostly.
    let role = if name == "new" || random.percent(15) {
        random.word(&["fix-few", "fix-all", "missing", "cluster-admin"])
    } else {
        name
    };
    let subjects = json!([{"kind": "User", "name": "mallory", "apiGroup": RBAC}]);
    let role_kind = if name == "new" { role_kind } else { "ClusterRole" };
    let object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role}, "subjects": subjects});
    write(random, &collection, name, &object, json!({"subjects": subjects}))
}

fn on_object(random: &mut Random) -> Attempt {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}});
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let get = |path: String| attempt("GET", path, JSON, Value::Null);
    match random.below(12) {
        0 => write(random, pods, "new", &pod("new"), labels),
        1 => {
            let name = random.word(&["new", "fix-map"]);
            write(
                random,
                "/api/v1/namespaces/default/configmaps",
                name,
                &map(name),
                json!({"data": {"a": "c"}}),
            )
        }
        2 => {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "new"}, "spec": {}});
            write(
                random,
                "/apis/coordination.k8s.io/v1/namespaces/default/leases",
                "new",
                &lease,
                json!({"spec": {}}),
            )
        }
        3 => get(random
            .pick(&[
                pods,
                "/api/v1/namespaces/default/pods/fix-pod",
                "/api/v1/pods",
                "/api/v1/secrets",
            ])
            .to_string()),
        4 => get(format!(
            "{pods}?fieldSelector={}",
            random.word(&[
                "metadata.name%3Dfix-pod",
                "metadata.name%21%3Dfix-pod",
                "metadata.name%3Dfix-pod,spec.nodeName%3D",
                "spec.nodeName%3Dx",
                "metadata.name%3D%3Dfix-pod"
            ])
        )),
        5 => attempt(
            "DELETE",
            format!("{pods}?dryRun=All&labelSelector=none%3Dnone"),
            JSON,
            Value::Null,
        ),
        6 => attempt(
            "PATCH",
            format!("{pods}/fix-pod/status?dryRun=All"),
            MERGE,
            json!({"status": {"message": "x"}}),
        ),
        7 => {
            let name = random.word(&["fix-pod", "none"]);
            let path = format!("{pods}/{name}/status?dryRun=All&fieldManager=m");
            let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": {"message": "x"}});
            attempt("PATCH", path, APPLY, body)
        }
        8 => {
            // A connection that is asked for by GET needs a second right since 1.37. None is served here.
            let (method, below) = if random.percent(40) {
                ("GET", "log")
            } else {
                ("POST", random.word(&["exec", "attach", "portforward"]))
            };
            let path = format!("{pods}/fix-pod/{below}");
            Attempt { loose: true, ..attempt(method, path, JSON, Value::Null) }
        }
        9 => attempt(
            "POST",
            format!("{pods}/none/binding?dryRun=All"),
            JSON,
            json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "none"}, "target": {"kind": "Node", "name": "n"}}),
        ),
        10 => attempt(
            "POST",
            format!("{pods}/none/eviction?dryRun=All"),
            JSON,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}}),
        ),
        _ => Attempt {
            loose: true,
            ..get(random
                .word(&["/metrics", "/logs/a", "/logs/b", "/healthz", "/api", "/apis", "/version"])
                .to_string())
        },
    }
}

fn token(random: &mut Random) -> Attempt {
    let account = random.word(&["bot", "none"]);
    let spec = random
        .pick(&[
            json!({}),
            json!({"expirationSeconds": "x"}),
            json!({"expirationSeconds": 1e300}),
            json!({"expirationSeconds": 1000.5}),
            json!({"expirationSeconds": 599}),
            json!({"expirationSeconds": 600}),
            json!({"expirationSeconds": 4_294_967_297_i64}),
            json!({"audiences": ["a"]}),
            json!({"audiences": "a"}),
            json!({"audiences": [1]}),
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}),
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "fix-pod"}}),
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "bot-pod"}}),
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "bot-pod", "uid": "other"}}),
            json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "none"}}),
            json!({"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "none"}}),
            json!({"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "fix-map"}}),
            json!("x"),
        ])
        .clone();
    let mut body =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    if random.percent(15) {
        body["metadata"] = random
            .pick(&[
                json!({"name": "other"}),
                json!({"uid": "other"}),
                json!({"namespace": "other"}),
            ])
            .clone();
    }
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
    attempt("POST", path, JSON, body)
}

fn impersonation(random: &mut Random) -> Attempt {
    let path = random
        .word(&[
            "/api/v1/namespaces/default/pods",
            "/api/v1/namespaces/default/pods/fix-pod",
            "/apis",
            "/metrics",
        ])
        .to_string();
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
    if random.percent(90) {
        add(
            "Impersonate-User",
            random.word(&[
                "bob",
                "alice",
                "system:serviceaccount:default:bot",
                "system:serviceaccount:kube-system:bot",
                "system:serviceaccount:default:bot:x",
                "system:anonymous",
                "system:node:n",
            ]),
        );
    }
    if random.percent(35) {
        add(
            "Impersonate-Group",
            random.word(&[
                "few",
                "system:masters",
                "system:authenticated",
                "system:unauthenticated",
            ]),
        );
    }
    if random.percent(20) {
        add("Impersonate-Uid", random.word(&["1", "new"]));
    }
    if random.percent(20) {
        add(
            random.word(&[
                "Impersonate-Extra-Scopes",
                "Impersonate-Extra-example.com%2fx",
                "Impersonate-Extra-Other",
            ]),
            random.word(&["view", "new"]),
        );
    }
    Attempt { headers, loose: path == "/metrics", ..attempt("GET", path, JSON, Value::Null) }
}

fn review(random: &mut Random) -> Attempt {
    let group = random.word(&["", RBAC, "coordination.k8s.io"]);
    let attributes = json!({"verb": random.word(VERBS), "group": group, "resource": random.word(&["pods", "secrets", "clusterroles", "leases", "configmaps"]),
        "subresource": random.word(&["", "", "status", "log"]), "namespace": random.word(&["", "default", "kube-system"]), "name": random.word(&["", "fix-few", "fix-pod"])});
    let path = json!({"verb": random.word(&["get", "post"]), "path": random.word(&["/metrics", "/logs/a", "/logs/x/y", "/healthz"])});
    let spec = if random.percent(25) {
        json!({"nonResourceAttributes": path})
    } else {
        json!({"resourceAttributes": attributes})
    };
    let base = "/apis/authorization.k8s.io/v1";
    let body = |kind: &str, spec: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    match random.below(5) {
        0 => attempt(
            "POST",
            format!("{base}/selfsubjectrulesreviews"),
            JSON,
            body("SelfSubjectRulesReview", json!({"namespace": "default"})),
        ),
        1 => {
            let mut spec = spec;
            spec["user"] = json!("mallory");
            attempt(
                "POST",
                format!("{base}/subjectaccessreviews"),
                JSON,
                body("SubjectAccessReview", spec),
            )
        }
        _ => attempt(
            "POST",
            format!("{base}/selfsubjectaccessreviews"),
            JSON,
            body("SelfSubjectAccessReview", spec),
        ),
    }
}
