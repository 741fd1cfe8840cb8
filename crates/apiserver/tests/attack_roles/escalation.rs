//! Roles and bindings that reach further than their author.

use serde_json::{Value, json};

use crate::*;

const ROLE_KINDS: &[&str] = &["roles", "clusterroles"];
const BINDING_KINDS: &[&str] = &["rolebindings", "clusterrolebindings"];
const WRITE: &[&str] = &["get", "create", "update", "patch"];

fn writers() -> Value {
    json!([on_roles(WRITE, ROLE_KINDS), on_roles(WRITE, BINDING_KINDS)])
}

fn aggregation(labels: Value) -> Value {
    json!({"clusterRoleSelectors": [{"matchLabels": labels}]})
}

/// Everything that the first roles are labelled with.
fn greedy() -> Value {
    aggregation(json!({"kubernetes.io/bootstrapping": "rbac-defaults"}))
}

fn cluster(kind: &str) -> String {
    format!("{RBAC}/{kind}")
}

fn local(kind: &str) -> String {
    format!("{RBAC}/namespaces/default/{kind}")
}

fn typed(kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    object["kind"] = json!(kind);
    object
}

pub fn all() -> Vec<Attack> {
    let mut all = bindings();
    all.extend(aggregated());
    all.extend(rules());
    all.extend(names());
    all
}

/// Bindings to roles that are not there, or are beyond the author.
fn bindings() -> Vec<Attack> {
    let later = |kind: &str, role: &str| binding("later", kind, role);
    let mut all = vec![
        attack(
            "a cluster binding to a role that comes later",
            writers(),
            vec![
                post(&cluster("clusterrolebindings"), later("ClusterRole", "none"), 404),
                post(&cluster("clusterroles"), role("none", everything()), 403),
            ],
        ),
        attack(
            "a binding to a cluster role that comes later",
            writers(),
            vec![post(&local("rolebindings"), later("ClusterRole", "none"), 404)],
        ),
        attack(
            "a binding to a role that comes later",
            writers(),
            vec![post(&local("rolebindings"), later("Role", "none"), 404)],
        ),
        attack(
            "a binding to a role of another namespace",
            writers(),
            vec![post(&local("rolebindings"), later("Role", "far"), 404)],
        )
        .with(&format!("{RBAC}/namespaces/kube-system/roles"), role("far", everything())),
        attack(
            "a cluster binding to a role",
            writers(),
            vec![post(&cluster("clusterrolebindings"), later("Role", "given"), 404)],
        ),
        attack(
            "a binding to cluster-admin",
            writers(),
            vec![
                post(&cluster("clusterrolebindings"), later("ClusterRole", "cluster-admin"), 403),
                post(&local("rolebindings"), later("ClusterRole", "cluster-admin"), 403),
            ],
        ),
        attack(
            "another group's role",
            writers(),
            vec![post(
                &cluster("clusterrolebindings"),
                json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "x", "kind": "ClusterRole", "name": "cluster-admin"}}),
                403,
            )],
        ),
        attack(
            "a role of no kind",
            writers(),
            vec![post(&cluster("clusterrolebindings"), later("Whatever", "cluster-admin"), 422)],
        ),
        attack(
            "subjects added to a binding beyond the author",
            writers(),
            vec![
                step(
                    "PATCH",
                    &cluster("clusterrolebindings/cluster-admin"),
                    MERGE,
                    json!({"subjects": binding("b", "", "")["subjects"]}),
                    403,
                ),
                step(
                    "PATCH",
                    &cluster("clusterrolebindings/cluster-admin"),
                    STRATEGIC,
                    json!({"subjects": binding("b", "", "")["subjects"]}),
                    403,
                ),
                step(
                    "PATCH",
                    &cluster("clusterrolebindings/cluster-admin"),
                    STEPS,
                    json!([{"op": "add", "path": "/subjects/-", "value": binding("b", "", "")["subjects"][0]}]),
                    403,
                ),
                step(
                    "PATCH",
                    &cluster("clusterrolebindings/cluster-admin?fieldManager=m&force=true"),
                    APPLY,
                    typed(
                        "ClusterRoleBinding",
                        binding("cluster-admin", "ClusterRole", "cluster-admin"),
                    ),
                    403,
                ),
                step(
                    "PUT",
                    &cluster("clusterrolebindings/cluster-admin"),
                    JSON,
                    binding("cluster-admin", "ClusterRole", "cluster-admin"),
                    403,
                ),
            ],
        ),
        attack(
            "a binding is turned to another role",
            writers(),
            vec![
                post(&cluster("clusterrolebindings"), binding("mine", "ClusterRole", "given"), 201),
                step(
                    "PATCH",
                    &cluster("clusterrolebindings/mine"),
                    MERGE,
                    json!({"roleRef": {"name": "cluster-admin"}}),
                    403,
                ),
            ],
        ),
    ];
    for (kind, path) in [
        ("rolebindings", local("rolebindings")),
        ("clusterrolebindings", cluster("clusterrolebindings")),
    ] {
        let one = if kind == "rolebindings" { "RoleBinding" } else { "ClusterRoleBinding" };
        let body = || typed(one, binding("new", "ClusterRole", "cluster-admin"));
        all.push(attack(
            &format!("{kind}: made by an update or an apply"),
            writers(),
            vec![
                step("PUT", &format!("{path}/new"), JSON, body(), 403),
                step("PATCH", &format!("{path}/new?fieldManager=m"), APPLY, body(), 403),
                step("PATCH", &format!("{path}/new"), MERGE, body(), 404),
            ],
        ));
        let missing = || typed(one, binding("new", "ClusterRole", "none"));
        all.push(attack(
            &format!("{kind}: to a missing role, made by an update or an apply"),
            writers(),
            vec![
                step("PUT", &format!("{path}/new"), JSON, missing(), 404),
                step("PATCH", &format!("{path}/new?fieldManager=m"), APPLY, missing(), 404),
            ],
        ));
    }
    all
}

/// Roles that are put together from others.
fn aggregated() -> Vec<Attack> {
    let sum = |rule: Value| json!({"metadata": {"name": "sum"}, "aggregationRule": rule});
    let roles = cluster("clusterroles");
    let given = cluster("clusterroles/given");
    let selectors = [
        ("the label of the first roles", greedy()),
        ("an empty selector", json!({"clusterRoleSelectors": [{}]})),
        (
            "an expression",
            json!({"clusterRoleSelectors": [{"matchExpressions": [{"key": "kubernetes.io/bootstrapping", "operator": "Exists"}]}]}),
        ),
        (
            "a negative expression",
            json!({"clusterRoleSelectors": [{"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}]}),
        ),
        ("a label that is set later", aggregation(json!({"later": "yes"}))),
    ];
    let mut all: Vec<Attack> = selectors
        .into_iter()
        .map(|(name, rule)| {
            let new = sum(rule.clone());
            let applied = typed("ClusterRole", new.clone());
            attack(
                &format!("an aggregated role with {name}"),
                writers(),
                vec![
                    post(&roles, new.clone(), 403),
                    step("PUT", &format!("{roles}/sum"), JSON, new, 403),
                    step("PATCH", &format!("{roles}/sum?fieldManager=m"), APPLY, applied, 403),
                    step("PATCH", &given, MERGE, json!({"aggregationRule": rule}), 403),
                    step("PATCH", &given, STRATEGIC, json!({"aggregationRule": rule}), 403),
                    step(
                        "PATCH",
                        &given,
                        STEPS,
                        json!([{"op": "add", "path": "/aggregationRule", "value": rule}]),
                        403,
                    ),
                    step(
                        "PATCH",
                        &format!("{given}?fieldManager=m&force=true"),
                        APPLY,
                        typed(
                            "ClusterRole",
                            json!({"metadata": {"name": "given"}, "aggregationRule": rule}),
                        ),
                        403,
                    ),
                    step(
                        "PUT",
                        &given,
                        JSON,
                        json!({"metadata": {"name": "given"}, "aggregationRule": rule}),
                        403,
                    ),
                ],
            )
        })
        .collect();
    let objects = json!({"apiGroups": ["*"], "resources": ["configmaps"], "verbs": ["*"]});
    let nearly = json!([on_roles(WRITE, ROLE_KINDS), objects]);
    all.push(attack(
        "an aggregated role with many rights",
        nearly,
        vec![post(&roles, sum(greedy()), 403)],
    ));
    let there =
        json!({"metadata": {"name": "old"}, "aggregationRule": aggregation(json!({"to": "old"}))});
    all.push(
        attack(
            "an aggregated role of others is widened, and freed of its rule",
            writers(),
            vec![
                step(
                    "PATCH",
                    &cluster("clusterroles/old"),
                    MERGE,
                    json!({"aggregationRule": greedy()}),
                    403,
                ),
                step(
                    "PATCH",
                    &cluster("clusterroles/old"),
                    MERGE,
                    json!({"aggregationRule": null}),
                    403,
                ),
                step(
                    "PATCH",
                    &cluster("clusterroles/old"),
                    MERGE,
                    json!({"metadata": {"labels": {"a": "b"}}}),
                    403,
                ),
            ],
        )
        .with(&roles, there.clone()),
    );
    all.push(
        attack(
            "a part of an aggregated role that is bound",
            writers(),
            vec![post(&roles, json!({"metadata": {"name": "part", "labels": {"to": "old"}}, "rules": everything()}), 403)],
        )
        .with(&roles, there)
        .with(&cluster("clusterrolebindings"), binding("old", "ClusterRole", "old")),
    );
    all
}

/// Rules beyond those of the author.
fn rules() -> Vec<Attack> {
    let held = json!([
        on_roles(WRITE, ROLE_KINDS),
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["mine"]},
        {"apiGroups": [""], "resources": ["pods", "*/status"], "verbs": ["get"]},
        {"nonResourceURLs": ["/logs/*"], "verbs": ["get"]},
    ]);
    let of = |group: &str, resource: &str, verb: &str| json!([{"apiGroups": [group], "resources": [resource], "verbs": [verb]}]);
    let rows = [
        ("all secrets", of("", "secrets", "get"), 403),
        (
            "another secret",
            json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["mine", "hidden"]}]),
            403,
        ),
        (
            "the same secret",
            json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["mine"]}]),
            201,
        ),
        ("another verb", of("", "pods", "list"), 403),
        ("every verb", of("", "pods", "*"), 403),
        ("every group", of("*", "pods", "get"), 403),
        ("every resource", of("", "*", "get"), 403),
        ("a subresource", of("", "pods/exec", "get"), 403),
        ("a subresource that is held for all", of("", "nodes/status", "get"), 201),
        ("a subresource of all", of("", "*/log", "get"), 403),
        ("a path", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]), 403),
        ("every path", json!([{"nonResourceURLs": ["*"], "verbs": ["get"]}]), 403),
        (
            "a path below one that is held",
            json!([{"nonResourceURLs": ["/logs/x"], "verbs": ["get"]}]),
            201,
        ),
        (
            "a right that only writes roles",
            of("rbac.authorization.k8s.io", "clusterroles", "escalate"),
            403,
        ),
        (
            "a right that only binds roles",
            of("rbac.authorization.k8s.io", "clusterroles", "bind"),
            403,
        ),
        ("impersonation", of("", "users", "impersonate"), 403),
        (
            "mixed with rights that are held",
            json!([{"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get"]}]),
            403,
        ),
    ];
    let path = cluster("clusterroles");
    rows.into_iter()
        .map(|(name, rules, code)| {
            let updated = if code == 201 { 200 } else { code };
            let whole = role("new", rules.clone());
            attack(
                &format!("a role with {name}"),
                held.clone(),
                vec![
                    post(&path, whole.clone(), code),
                    step("PUT", &format!("{path}/new"), JSON, whole, updated),
                    step("PATCH", &format!("{path}/mine"), MERGE, json!({"rules": rules}), updated),
                    step(
                        "PATCH",
                        &format!("{path}/mine"),
                        STEPS,
                        json!([{"op": "replace", "path": "/rules", "value": rules}]),
                        updated,
                    ),
                ],
            )
            .with(&path, role("mine", json!([on_core(&["get"], &["pods"])])))
        })
        .collect()
}

/// Rights to escalate and to bind, for some names or some places only.
fn names() -> Vec<Attack> {
    let named = |verb: &str, resource: &str, name: &str| json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": [resource], "verbs": [verb], "resourceNames": [name]});
    let base = [on_roles(WRITE, ROLE_KINDS), on_roles(WRITE, BINDING_KINDS)];
    let with = |more: Value| json!([base[0], base[1], more]);
    let harmless = json!([on_core(&["list"], &["nodes"])]);
    let mut local_escalation = attack(
        "escalation in one namespace does not reach the cluster",
        writers(),
        vec![
            post(&local("roles"), role("r", everything()), 201),
            post(&cluster("clusterroles"), role("r", everything()), 403),
            post(&format!("{RBAC}/namespaces/kube-system/roles"), role("r", everything()), 403),
        ],
    );
    local_escalation.local = json!([on_roles(&["escalate"], &["roles", "clusterroles"])]);
    let mut local_binding = attack(
        "binding in one namespace does not reach the cluster",
        writers(),
        vec![
            post(&local("rolebindings"), binding("b", "ClusterRole", "cluster-admin"), 201),
            post(
                &cluster("clusterrolebindings"),
                binding("b", "ClusterRole", "cluster-admin"),
                403,
            ),
            post(
                &format!("{RBAC}/namespaces/kube-system/rolebindings"),
                binding("b", "ClusterRole", "cluster-admin"),
                403,
            ),
        ],
    );
    local_binding.local = json!([on_roles(&["bind"], &["clusterroles"])]);
    vec![
        attack(
            "escalation of one name does not reach another, nor what is new",
            with(named("escalate", "clusterroles", "x")),
            vec![
                post(&cluster("clusterroles"), role("x", everything()), 403),
                post(&cluster("clusterroles"), role("y", everything()), 403),
                step("PUT", &cluster("clusterroles/y"), JSON, role("y", everything()), 403),
                step("PUT", &cluster("clusterroles/x"), JSON, role("x", harmless.clone()), 201),
            ],
        ),
        attack(
            "binding of one name does not reach another",
            with(named("bind", "clusterroles", "given")),
            vec![
                post(&cluster("clusterrolebindings"), binding("a", "ClusterRole", "given"), 201),
                post(&cluster("clusterrolebindings"), binding("b", "ClusterRole", "cluster-admin"), 403),
            ],
        ),
        attack(
            "binding of roles does not reach cluster roles",
            with(on_roles(&["bind"], &["roles"])),
            vec![post(&local("rolebindings"), binding("b", "ClusterRole", "cluster-admin"), 403)],
        ),
        attack(
            "escalation of roles does not bind",
            with(on_roles(&["escalate"], ROLE_KINDS)),
            vec![
                post(&cluster("clusterroles"), role("r", everything()), 201),
                post(&cluster("clusterrolebindings"), binding("b", "ClusterRole", "r"), 403),
            ],
        ),
        attack(
            "binding does not escalate",
            with(named("bind", "clusterroles", "given")),
            vec![step("PATCH", &cluster("clusterroles/given"), MERGE, json!({"rules": everything()}), 403)],
        ),
        local_escalation,
        local_binding,
        attack(
            "a definition takes over the roles",
            json!([on_roles(WRITE, ROLE_KINDS), on_roles(WRITE, BINDING_KINDS),
                {"apiGroups": ["apiextensions.k8s.io"], "resources": ["*"], "verbs": ["*"]}]),
            ["v1", "v2"]
                .map(|version| {
                    post(
                        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                        json!({"metadata": {"name": "clusterroles.rbac.authorization.k8s.io",
                            "annotations": {"api-approved.kubernetes.io": "https://example.com"}},
                            "spec": {"group": "rbac.authorization.k8s.io", "scope": "Cluster",
                            "names": {"plural": "clusterroles", "kind": "ClusterRole"},
                            "versions": [{"name": version, "served": true, "storage": true,
                            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
                        422,
                    )
                })
                .into(),
        ),
    ]
}
