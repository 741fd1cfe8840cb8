//! Roles and their bindings.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1 as roles;
use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{items, label_selector, same, text};
use crate::registry::strategy::{Strategy, Traits};
use crate::registry::table::{AGE, NAME, PLAIN, Row, Table, column, wide};
use crate::registry::{go_values, names};

pub(super) static CLUSTER_ROLE_BINDING: BuiltinKind = BuiltinKind {
    group_version: (GROUP, "v1"),
    names: Names {
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        short: &[],
        categories: &[],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<roles::ClusterRoleBinding>,
    rules: || Arc::new(Binding { cluster: true }),
    table: BINDINGS,
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[
        "atomic rbac.v1.RoleRef",
        "atomic rbac.v1.Subject",
        "required rbac.v1.RoleRef kind name",
        "required rbac.v1.Subject kind name",
    ],
    protobuf: &[
        "rbac.ClusterRoleBinding: 1 metadata meta.ObjectMeta, 2 subjects []rbac.Subject, \
         3 roleRef rbac.RoleRef",
        "rbac.RoleRef: 1 apiGroup s, 2 kind s, 3 name s",
        "rbac.Subject: 1 kind s, 2 apiGroup s, 3 name s, 4 namespace s",
    ],
};

pub(super) static CLUSTER_ROLE: BuiltinKind = BuiltinKind {
    group_version: (GROUP, "v1"),
    names: Names { kind: "ClusterRole", plural: "clusterroles", short: &[], categories: &[] },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<roles::ClusterRole>,
    rules: || Arc::new(Role { cluster: true }),
    table: PLAIN,
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &[
        "rbac.AggregationRule: 1 clusterRoleSelectors []meta.LabelSelector",
        "rbac.ClusterRole: 1 metadata meta.ObjectMeta, 2 rules []rbac.PolicyRule, \
         3 aggregationRule rbac.AggregationRule",
        "rbac.PolicyRule: 1 verbs []s, 2 apiGroups []s, 3 resources []s, 4 resourceNames []s, \
         5 nonResourceURLs []s",
    ],
};

pub(super) static ROLE_BINDING: BuiltinKind = BuiltinKind {
    group_version: (GROUP, "v1"),
    names: Names { kind: "RoleBinding", plural: "rolebindings", short: &[], categories: &[] },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<roles::RoleBinding>,
    rules: || Arc::new(Binding { cluster: false }),
    table: BINDINGS,
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &["rbac.RoleBinding: 1 metadata meta.ObjectMeta, 2 subjects []rbac.Subject, \
         3 roleRef rbac.RoleRef"],
};

pub(super) static ROLE: BuiltinKind = BuiltinKind {
    group_version: (GROUP, "v1"),
    names: Names { kind: "Role", plural: "roles", short: &[], categories: &[] },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<roles::Role>,
    rules: || Arc::new(Role { cluster: false }),
    table: PLAIN,
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &["rbac.Role: 1 metadata meta.ObjectMeta, 2 rules []rbac.PolicyRule"],
};

const BINDINGS: Table = Table {
    columns: &[NAME, column("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")],
    cells: binding_cells,
};

fn binding_cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let subjects = |kind: &str| -> String {
        let found = items(object, "/subjects").iter().filter(|s| text(s, "/kind") == kind);
        let names: Vec<String> = found
            .map(|subject| match text(subject, "/namespace") {
                "" => text(subject, "/name").to_owned(),
                namespace => format!("{namespace}/{}", text(subject, "/name")),
            })
            .collect();
        names.join(", ")
    };
    json!([name, role, age, subjects("User"), subjects("Group"), subjects("ServiceAccount")])
}

const GROUP: &str = "rbac.authorization.k8s.io";
const TRAITS: Traits = Traits { path_names: true, create_on_update: true, ..Traits::PLAIN };

/// The rules of roles; those of the cluster may also speak of paths.
pub(super) struct Role {
    /// Whether the role is one of the cluster.
    pub cluster: bool,
}

impl Strategy for Role {
    fn traits(&self) -> Traits {
        TRAITS
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        for (i, rule) in items(object, "/rules").iter().enumerate() {
            self.check(&mut causes, &format!("rules[{i}]"), rule);
        }
        if !object["aggregationRule"].is_null() {
            let field = "aggregationRule.clusterRoleSelectors";
            let selectors = items(object, "/aggregationRule/clusterRoleSelectors");
            if selectors.is_empty() {
                let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
                causes.push(Cause::required(field, why));
            }
            for (i, selector) in selectors.iter().enumerate() {
                label_selector(&mut causes, &format!("{field}[{i}]"), selector);
            }
        }
        causes
    }
}

impl Role {
    fn check(&self, causes: &mut Causes, field: &str, rule: &Value) {
        let empty = |name: &str| items(rule, &format!("/{name}")).is_empty();
        let verbs = empty("verbs").then(|| Cause::required(format!("{field}.verbs"), ""));
        if !empty("nonResourceURLs") {
            let paths = &rule["nonResourceURLs"];
            let field = format!("{field}.nonResourceURLs");
            if !self.cluster {
                let why = "namespaced rules cannot apply to non-resource URLs";
                causes.push(Cause::invalid(field, paths, why));
            } else if ["apiGroups", "resources", "resourceNames"].iter().any(|name| !empty(name)) {
                let why = "rules cannot apply to both regular resources and non-resource URLs";
                causes.push(Cause::invalid(field, paths, why));
            }
            causes.extend(verbs);
            return;
        }
        if empty("apiGroups") {
            let why = "resource rules must supply at least one api group";
            causes.push(Cause::required(format!("{field}.apiGroups"), why));
        }
        if empty("resources") {
            let why = "resource rules must supply at least one resource";
            causes.push(Cause::required(format!("{field}.resources"), why));
        }
        causes.extend(verbs);
    }
}

/// The rules of bindings.
pub(super) struct Binding {
    /// Whether the binding is one of the cluster.
    pub cluster: bool,
}

impl Strategy for Binding {
    fn traits(&self) -> Traits {
        TRAITS
    }

    fn default(&self, object: &mut Value) {
        if text(object, "/roleRef/apiGroup").is_empty() {
            object["roleRef"]["apiGroup"] = json!(GROUP);
        }
        for subject in object["subjects"].as_array_mut().into_iter().flatten() {
            let user = matches!(text(subject, "/kind"), "User" | "Group");
            if user && text(subject, "/apiGroup").is_empty() {
                subject["apiGroup"] = json!(GROUP);
            }
        }
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let reference = &object["roleRef"];
        let known: &[&str] = if self.cluster { &["ClusterRole"] } else { &["Role", "ClusterRole"] };
        if text(reference, "/apiGroup") != GROUP {
            let group = text(reference, "/apiGroup");
            causes.push(Cause::not_supported("roleRef.apiGroup", group, &[GROUP]));
        }
        if !known.contains(&text(reference, "/kind")) {
            causes.push(Cause::not_supported("roleRef.kind", text(reference, "/kind"), known));
        }
        match text(reference, "/name") {
            "" => causes.push(Cause::required("roleRef.name", "")),
            name => causes.extend(Cause::each("roleRef.name", name, names::path_segment(name))),
        }
        for (i, subject) in items(object, "/subjects").iter().enumerate() {
            self.check_subject(&mut causes, &format!("subjects[{i}]"), subject);
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        if !same(&new["roleRef"], &old["roleRef"]) {
            let role = go_values::compact(go_values::ROLE_REF, &new["roleRef"]);
            causes.push(Cause::invalid_shown("roleRef", &role, "field is immutable"));
        }
        causes
    }
}

impl Binding {
    fn check_subject(&self, causes: &mut Causes, field: &str, subject: &Value) {
        let (name, group) = (text(subject, "/name"), text(subject, "/apiGroup"));
        let of_group = |causes: &mut Causes, known: &str| {
            if group != known {
                causes.push(Cause::not_supported(format!("{field}.apiGroup"), group, &[known]));
            }
        };
        let named = |causes: &mut Causes| {
            if name.is_empty() {
                causes.push(Cause::required(format!("{field}.name"), ""));
            }
        };
        match text(subject, "/kind") {
            "ServiceAccount" => {
                named(causes);
                if !name.is_empty() {
                    causes.extend(Cause::each(
                        &format!("{field}.name"),
                        name,
                        names::subdomain(name),
                    ));
                }
                of_group(causes, "");
                // In a namespace, accounts without one are those of the namespace itself.
                if self.cluster && text(subject, "/namespace").is_empty() {
                    causes.push(Cause::required(format!("{field}.namespace"), ""));
                }
            }
            "User" | "Group" => {
                named(causes);
                of_group(causes, GROUP);
            }
            other => {
                let known = ["ServiceAccount", "User", "Group"];
                causes.push(Cause::not_supported(format!("{field}.kind"), other, &known));
                named(causes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(causes: Causes) -> Vec<String> {
        causes.into_iter().map(|c| c.field).collect()
    }

    #[test]
    fn rules_name_verbs_and_what_they_are_for() {
        let check = |cluster, rule: Value| {
            fields(Role { cluster }.validate_create(&json!({"rules": [rule]})))
        };
        let good = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        assert!(check(false, good).is_empty());
        assert_eq!(
            check(false, json!({"apiGroups": [""], "resources": ["x"]})),
            ["rules[0].verbs"]
        );
        let path = json!({"verbs": ["get"], "nonResourceURLs": ["/x"]});
        assert_eq!(check(false, path.clone()), ["rules[0].nonResourceURLs"]);
        assert!(check(true, path).is_empty());
        let bare = check(true, json!({"verbs": ["get"]}));
        assert_eq!(bare, ["rules[0].apiGroups", "rules[0].resources"]);
    }

    #[test]
    fn bindings_name_a_role_that_stays_the_same() {
        let mut binding = json!({"roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]});
        let rules = Binding { cluster: false };
        rules.default(&mut binding);
        assert!(rules.validate_create(&binding).is_empty());
        let strict = fields(Binding { cluster: true }.validate_create(&binding));
        assert_eq!(strict, ["roleRef.kind", "subjects[1].namespace"]);
        let mut other = binding.clone();
        other["roleRef"]["name"] = json!("x");
        assert!(fields(rules.validate_update(&other, &binding)).contains(&"roleRef".into()));
    }
}
