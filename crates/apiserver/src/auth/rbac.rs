//! Role-based access: what the roles bound to a user allow.
//!
//! Roles and bindings are read into a policy once per change of them; a request is judged by the
//! policy alone. Members of `system:masters` pass without it.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::Identity;

/// A rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(super) verbs: Vec<String>,
    pub(super) groups: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) names: Vec<String>,
    pub(super) paths: Vec<String>,
}

/// What a user wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Something with objects.
    Object {
        verb: String,
        /// Group, empty for core.
        group: String,
        /// Resource, with `/sub` for a subresource.
        resource: String,
        /// Namespace, empty for all of them or for cluster-scoped kinds.
        namespace: String,
        /// Name, empty for collections.
        name: String,
    },
    /// Something with another path.
    Path { verb: String, path: String },
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

pub(super) fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    pub(crate) fn parse(rule: &Value) -> Self {
        Self {
            verbs: texts(&rule["verbs"]),
            groups: texts(&rule["apiGroups"]),
            resources: texts(&rule["resources"]),
            names: texts(&rule["resourceNames"]),
            paths: texts(&rule["nonResourceURLs"]),
        }
    }

    /// The rules of a role.
    pub(crate) fn all(role: &Value) -> Vec<Self> {
        role["rules"].as_array().into_iter().flatten().map(Self::parse).collect()
    }

    /// Every verb on every resource and every path.
    pub(crate) fn everything() -> Vec<Self> {
        let all = || vec!["*".to_owned()];
        let objects = Self { verbs: all(), groups: all(), resources: all(), ..Self::default() };
        vec![objects, Self { verbs: all(), paths: all(), ..Self::default() }]
    }

    fn to_value(&self) -> Value {
        let mut rule = json!({"verbs": self.verbs});
        for (field, list) in [
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.paths),
        ] {
            if !list.is_empty() {
                rule[field] = json!(list);
            }
        }
        rule
    }

    /// Whether the rule allows the action.
    pub(crate) fn allows(&self, action: &Action) -> bool {
        match action {
            Action::Object { verb, group, resource, name, .. } => {
                has(&self.verbs, verb)
                    && has(&self.groups, group)
                    && self.covers_resource(resource)
                    && (self.names.is_empty() || self.names.contains(name))
            }
            Action::Path { verb, path } => {
                has(&self.verbs, verb) && self.paths.iter().any(|known| path_matches(known, path))
            }
        }
    }

    /// `*` covers everything, `*/sub` that subresource of everything.
    pub(super) fn covers_resource(&self, resource: &str) -> bool {
        let below = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        self.resources.iter().any(|known| {
            known == "*" || known == resource || below.as_deref() == Some(known.as_str())
        })
    }
}

/// A pattern ends with `*` or is the path itself.
pub(super) fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == path || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}

/// A binding of a role to some subjects.
#[derive(Debug, Clone)]
struct Binding {
    name: String,
    namespace: String,
    role_kind: String,
    role: String,
    subjects: Vec<Value>,
}

impl Binding {
    fn parse(binding: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: text(&binding["metadata"]["name"]),
            namespace: text(&binding["metadata"]["namespace"]),
            role_kind: text(&binding["roleRef"]["kind"]),
            role: text(&binding["roleRef"]["name"]),
            subjects: binding["subjects"].as_array().cloned().unwrap_or_default(),
        }
    }

    /// The subject that stands for this user, as responses name it.
    fn subject(&self, who: &Identity) -> Option<String> {
        self.subjects.iter().find_map(|subject| {
            let name = subject["name"].as_str().unwrap_or_default();
            match subject["kind"].as_str()? {
                "User" if who.user == name => Some(format!("User {name:?}")),
                "Group" if who.groups.iter().any(|g| g == name) => Some(format!("Group {name:?}")),
                "ServiceAccount" => {
                    let own = self.namespace.as_str();
                    let named = subject["namespace"].as_str().filter(|ns| !ns.is_empty());
                    let namespace = named.unwrap_or(own);
                    let user = format!("system:serviceaccount:{namespace}:{name}");
                    let shown = format!("{name}/{namespace}");
                    let fits = !namespace.is_empty() && who.user == user;
                    fits.then(|| format!("ServiceAccount {shown:?}"))
                }
                _ => None,
            }
        })
    }

    fn reason(&self, subject: &str) -> String {
        let (kind, role) = (&self.role_kind, &self.role);
        if self.namespace.is_empty() {
            let name = &self.name;
            return format!(
                "RBAC: allowed by ClusterRoleBinding {name:?} of {kind} {role:?} to {subject}"
            );
        }
        let name = format!("{}/{}", self.name, self.namespace);
        format!("RBAC: allowed by RoleBinding {name:?} of {kind} {role:?} to {subject}")
    }
}

/// All roles and bindings.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    cluster_bindings: Vec<Binding>,
    bindings: HashMap<String, Vec<Binding>>,
    cluster_roles: HashMap<String, Vec<Rule>>,
    roles: HashMap<(String, String), Vec<Rule>>,
}

impl Policy {
    /// Takes in a binding, of a namespace or of the cluster.
    pub(crate) fn bind(&mut self, binding: &Value) {
        let binding = Binding::parse(binding);
        if binding.namespace.is_empty() {
            self.cluster_bindings.push(binding);
        } else {
            self.bindings.entry(binding.namespace.clone()).or_default().push(binding);
        }
    }

    /// Takes in a role, of a namespace or of the cluster.
    pub(crate) fn add(&mut self, role: &Value) {
        let name = role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match role["metadata"]["namespace"].as_str().filter(|ns| !ns.is_empty()) {
            None => drop(self.cluster_roles.insert(name, Rule::all(role))),
            Some(ns) => drop(self.roles.insert((ns.to_owned(), name), Rule::all(role))),
        }
    }

    fn rules(&self, binding: &Binding) -> &[Rule] {
        self.rules_of(&binding.namespace, &binding.role_kind, &binding.role).unwrap_or_default()
    }

    /// The rules of a role that a binding in this namespace names; `None` when there is no such role.
    pub(crate) fn rules_of(&self, namespace: &str, kind: &str, name: &str) -> Option<&[Rule]> {
        let found = match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            "Role" => self.roles.get(&(namespace.to_owned(), name.to_owned())),
            _ => None,
        };
        found.map(Vec::as_slice)
    }

    /// The bindings that reach a namespace; only those of the cluster reach beyond.
    fn reaching<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Binding> {
        let local = self.bindings.get(namespace).into_iter().flatten();
        self.cluster_bindings.iter().chain(local)
    }

    /// Why the action is allowed; `None` when it is not.
    pub(crate) fn allows(&self, who: &Identity, action: &Action) -> Option<String> {
        if who.is_master() {
            return Some(String::new());
        }
        let namespace = match action {
            Action::Object { namespace, .. } => namespace.as_str(),
            Action::Path { .. } => "",
        };
        self.reaching(namespace).find_map(|binding| {
            let subject = binding.subject(who)?;
            let allowed = self.rules(binding).iter().any(|rule| rule.allows(action));
            allowed.then(|| binding.reason(&subject))
        })
    }

    /// All rules that hold for a user in a namespace.
    pub(crate) fn rules_for(&self, who: &Identity, namespace: &str) -> Vec<Rule> {
        if who.is_master() {
            return Rule::everything();
        }
        let mine = self.reaching(namespace).filter(|binding| binding.subject(who).is_some());
        mine.flat_map(|binding| self.rules(binding).iter().cloned()).collect()
    }
}

/// The status of a review of rules.
pub(crate) fn rules_review(rules: &[Rule]) -> Value {
    let pick = |paths: bool| -> Vec<Value> {
        rules.iter().filter(|r| r.paths.is_empty() != paths).map(Rule::to_value).collect()
    };
    json!({"resourceRules": pick(false), "nonResourceRules": pick(true), "incomplete": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(verb: &str, resource: &str, namespace: &str, name: &str) -> Action {
        Action::Object {
            verb: verb.into(),
            group: String::new(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn policy() -> Policy {
        let mut policy = Policy::default();
        policy.add(&json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [
            {"apiGroups": [""], "resources": ["claims"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["claims/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["only"]}]}));
        policy.add(&json!({"metadata": {"name": "c"}, "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["watch"]},
            {"nonResourceURLs": ["/metrics", "/healthz/*"], "verbs": ["get"]}]}));
        policy.bind(&json!({"metadata": {"name": "rb", "namespace": "n"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "n"}]}));
        policy.bind(
            &json!({"metadata": {"name": "crb"}, "roleRef": {"kind": "ClusterRole", "name": "c"},
            "subjects": [{"kind": "Group", "name": "watchers"}, {"kind": "User", "name": "w"}]}),
        );
        policy
    }

    #[test]
    fn roles_allow_what_they_say_and_no_more() {
        let bot = Identity::new("system:serviceaccount:n:bot", ["x"]);
        let rows = [
            (object("get", "claims", "n", "a"), true),
            (object("delete", "claims", "n", "a"), false),
            (object("patch", "claims", "n", "a"), false),
            (object("patch", "claims/status", "n", "a"), true),
            (object("get", "claims", "m", "a"), false),
            (object("list", "claims", "", ""), false),
            (object("get", "secrets", "n", "only"), true),
            (object("get", "secrets", "n", "other"), false),
            (object("watch", "claims", "n", ""), false),
        ];
        for (action, wanted) in rows {
            assert_eq!(policy().allows(&bot, &action).is_some(), wanted, "{action:?}");
        }
        let why = policy().allows(&bot, &object("get", "claims", "n", "a")).unwrap();
        assert_eq!(
            why,
            "RBAC: allowed by RoleBinding \"rb/n\" of Role \"r\" to ServiceAccount \"bot/n\""
        );
    }

    #[test]
    fn cluster_bindings_reach_everywhere() {
        let path = |path: &str| Action::Path { verb: "get".into(), path: path.into() };
        for who in [Identity::new("a", ["watchers"]), Identity::new("w", ["y"])] {
            assert!(policy().allows(&who, &object("watch", "pods/log", "m", "p")).is_some());
            assert!(policy().allows(&who, &path("/metrics")).is_some());
            assert!(policy().allows(&who, &path("/healthz/ping")).is_some());
            assert!(policy().allows(&who, &path("/logs")).is_none());
        }
        assert!(policy().allows(&Identity::new("z", ["system:masters"]), &path("/x")).is_some());
    }
}
