//! Roles that are always there, and roles that are put together from others.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::ApiResult;
use crate::ops::{Core, Part, Source, Target, WriteOptions};
use crate::patch::Patch;

/// Where the roles of the cluster are stored.
pub(super) const STORAGE: &str = "rbac.authorization.k8s.io/clusterroles";

/// What stands in the text of every role that is put together from others.
const SUM_MARK: &str = "\"aggregationRule\"";

/// Roles and bindings that the server starts with, by resource.
pub(crate) fn first_roles() -> Vec<(&'static str, Value)> {
    const REVIEWS: &[&str] = &["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    let all = json!(["*"]);
    let health = json!(["/healthz", "/livez", "/readyz", "/version", "/version/"]);
    let discovery = json!([
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ]);
    let role = |name: &str, rules: Value| {
        ("clusterroles", json!({"metadata": metadata(name), "rules": rules}))
    };
    let binding = |name: &str, groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "name": group})).collect();
        let reference = json!({"kind": "ClusterRole", "name": name});
        let body = json!({"metadata": metadata(name), "roleRef": reference, "subjects": subjects});
        ("clusterrolebindings", body)
    };
    vec![
        role(
            "cluster-admin",
            json!([{"apiGroups": all, "resources": all, "verbs": all},
                {"nonResourceURLs": all, "verbs": all}]),
        ),
        role("system:discovery", json!([{"nonResourceURLs": discovery, "verbs": ["get"]}])),
        role("system:public-info-viewer", json!([{"nonResourceURLs": health, "verbs": ["get"]}])),
        role(
            "system:basic-user",
            json!([
                {"apiGroups": ["authorization.k8s.io"], "resources": REVIEWS, "verbs": ["create"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"],
                    "verbs": ["create"]},
            ]),
        ),
        binding("cluster-admin", &["system:masters"]),
        binding("system:discovery", &["system:authenticated"]),
        binding("system:basic-user", &["system:authenticated"]),
        binding("system:public-info-viewer", &["system:authenticated", "system:unauthenticated"]),
    ]
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
    })
}

/// Gives roles with an aggregation rule the rules of the roles they select.
pub(super) async fn aggregate(core: &Core) -> ApiResult<()> {
    let stored = core.store.list(STORAGE, None).objects;
    // Few roles are put together from others. Without one, nothing has to be read.
    let is_sum = |body: &[u8]| std::str::from_utf8(body).is_ok_and(|b| b.contains(SUM_MARK));
    if !stored.iter().any(|role| is_sum(&role.body)) {
        return Ok(());
    }
    let roles: Vec<Value> = stored.iter().map(|o| o.value()).collect();
    for role in roles.iter().filter(|role| role["aggregationRule"].is_object()) {
        let rules = gather(role, &roles);
        if rules.as_slice() == role["rules"].as_array().map_or(&[][..], Vec::as_slice) {
            continue;
        }
        let registry = core.registry();
        let found = registry.find("rbac.authorization.k8s.io", "v1", "clusterroles");
        let Some(resource) = found else { return Ok(()) };
        let target = Target {
            resource: Arc::clone(resource),
            namespace: String::new(),
            name: role["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        };
        let patch = json!({
            "metadata": {"resourceVersion": role["metadata"]["resourceVersion"]}, "rules": rules,
        });
        let source = Source::Patch(Patch::Merge(patch));
        match core.update(&target, Part::Main, &source, WriteOptions::default()).await {
            Ok(_) => {}
            // What changed meanwhile brings us back here.
            Err(status) if matches!(status.code, 404 | 409) => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

/// The rules of all selected roles, each once.
fn gather(role: &Value, roles: &[Value]) -> Vec<Value> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
    let mut rules: Vec<Value> = Vec::new();
    let mut known = HashSet::new();
    for selector in selectors.into_iter().flatten() {
        let chosen = roles.iter().filter(|other| {
            other["metadata"]["name"] != role["metadata"]["name"]
                && selects(selector, &other["metadata"]["labels"])
        });
        for rule in chosen.flat_map(|other| other["rules"].as_array().into_iter().flatten()) {
            if known.insert(rule.to_string()) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

/// Whether a label selector object selects these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms = selector["matchExpressions"].as_array().into_iter().flatten();
    equal.clone().all(|(key, value)| labels.get(key) == Some(value))
        && terms.all(|term| {
            let has = labels.get(term["key"].as_str().unwrap_or_default());
            let among = |value: &Value| {
                term["values"].as_array().is_some_and(|values| values.contains(value))
            };
            match term["operator"].as_str().unwrap_or_default() {
                "In" => has.is_some_and(among),
                "NotIn" => !has.is_some_and(among),
                "Exists" => has.is_some(),
                "DoesNotExist" => has.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_roles_are_put_together() {
        let rule = |name: &str| json!({"verbs": ["get"], "resources": [name]});
        let role = |name: &str, label: &str| json!({"metadata": {"name": name, "labels": {"to": label}}, "rules": [rule(name)]});
        let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"to": "sum"}},
            {"matchExpressions": [{"key": "to", "operator": "In", "values": ["sum", "more"]}]}]}});
        let roles = [sum.clone(), role("a", "sum"), role("b", "more"), role("c", "other")];
        assert_eq!(gather(&sum, &roles), [rule("a"), rule("b")]);
    }
}
