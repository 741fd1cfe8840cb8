//! Role-based access: what the roles bound to somebody allow.
//!
//! Roles and bindings are read into a policy once per change of them; a request is judged by the
//! policy alone. Members of `system:masters` pass without it.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::Identity;

/// A rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
}

/// What somebody wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Something with objects.
    Object {
        /// Verb.
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
    Path {
        /// Verb.
        verb: String,
        /// The path.
        path: String,
    },
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    /// Reads a rule.
    pub fn parse(rule: &Value) -> Self {
        Self {
            verbs: texts(&rule["verbs"]),
            groups: texts(&rule["apiGroups"]),
            resources: texts(&rule["resources"]),
            names: texts(&rule["resourceNames"]),
            paths: texts(&rule["nonResourceURLs"]),
        }
    }

    /// The rules of a role.
    pub fn all(role: &Value) -> Vec<Self> {
        role["rules"].as_array().into_iter().flatten().map(Self::parse).collect()
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
    pub fn allows(&self, action: &Action) -> bool {
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
    fn covers_resource(&self, resource: &str) -> bool {
        let below = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        self.resources.iter().any(|known| {
            known == "*" || known == resource || below.as_deref() == Some(known.as_str())
        })
    }

    /// The single permissions of a rule, each as a rule.
    fn parts(&self) -> Vec<Self> {
        let one = |text: &str| vec![text.to_owned()];
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for path in &self.paths {
                parts.push(Self { verbs: one(verb), paths: one(path), ..Self::default() });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    let rule = Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Self::default()
                    };
                    if self.names.is_empty() {
                        parts.push(rule.clone());
                    }
                    let named = self.names.iter().map(|n| Self { names: one(n), ..rule.clone() });
                    parts.extend(named);
                }
            }
        }
        parts
    }

    /// How many single permissions it stands for.
    fn count(&self) -> usize {
        let lists = [&self.groups, &self.resources, &self.names, &self.paths];
        lists.iter().fold(self.verbs.len().max(1), |product, list| {
            product.saturating_mul(list.len().max(1))
        })
    }

    /// Whether this rule holds all of a single permission.
    fn holds(&self, part: &Self) -> bool {
        let all = |mine: &[String], theirs: &[String]| theirs.iter().all(|item| has(mine, item));
        if !part.paths.is_empty() {
            return all(&self.verbs, &part.verbs)
                && part.paths.iter().all(|p| self.paths.iter().any(|k| path_matches(k, p)));
        }
        all(&self.verbs, &part.verbs)
            && all(&self.groups, &part.groups)
            && part.resources.iter().all(|r| self.covers_resource(r))
            && (self.names.is_empty()
                || (!part.names.is_empty() && part.names.iter().all(|n| self.names.contains(n))))
    }
}

fn path_matches(known: &str, path: &str) -> bool {
    match known.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => known == path,
    }
}

/// The permissions in `wanted` that `held` does not have.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Value> {
    /// Single permissions that are looked at; a few lists of a hundred words each make millions.
    const MAX_PARTS: usize = 50_000;
    const MAX_TOLD: usize = 100;
    let mut room = MAX_PARTS;
    let parts = wanted.iter().flat_map(|rule| match room.checked_sub(rule.count()) {
        Some(left) => {
            room = left;
            rule.parts()
        }
        // What is too large to be taken apart has to be held as it is.
        None => vec![rule.clone()],
    });
    let lacking = parts.filter(|part| !held.iter().any(|rule| rule.holds(part)));
    lacking.take(MAX_TOLD).map(|part| part.to_value()).collect()
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

    /// The subject that stands for this user, as answers name it.
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
                    (who.user == user).then(|| format!("ServiceAccount {shown:?}"))
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
pub struct Policy {
    cluster_bindings: Vec<Binding>,
    bindings: HashMap<String, Vec<Binding>>,
    cluster_roles: HashMap<String, Vec<Rule>>,
    roles: HashMap<(String, String), Vec<Rule>>,
}

impl Policy {
    /// Takes in a binding, of a namespace or of the cluster.
    pub fn bind(&mut self, binding: &Value) {
        let binding = Binding::parse(binding);
        if binding.namespace.is_empty() {
            self.cluster_bindings.push(binding);
        } else {
            self.bindings.entry(binding.namespace.clone()).or_default().push(binding);
        }
    }

    /// Takes in a role, of a namespace or of the cluster.
    pub fn add(&mut self, role: &Value) {
        let name = role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match role["metadata"]["namespace"].as_str().filter(|ns| !ns.is_empty()) {
            None => drop(self.cluster_roles.insert(name, Rule::all(role))),
            Some(ns) => drop(self.roles.insert((ns.to_owned(), name), Rule::all(role))),
        }
    }

    fn rules(&self, binding: &Binding) -> &[Rule] {
        let found = match binding.role_kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&binding.role),
            _ => self.roles.get(&(binding.namespace.clone(), binding.role.clone())),
        };
        found.map_or(&[], Vec::as_slice)
    }

    /// The rules of a role that a binding names.
    pub fn rules_of(&self, namespace: &str, kind: &str, name: &str) -> Vec<Rule> {
        let found = match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            _ => self.roles.get(&(namespace.to_owned(), name.to_owned())),
        };
        found.cloned().unwrap_or_default()
    }

    /// The bindings that reach a namespace; only those of the cluster reach beyond.
    fn reaching<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Binding> {
        let local = self.bindings.get(namespace).into_iter().flatten();
        self.cluster_bindings.iter().chain(local)
    }

    /// Why the action is allowed; `None` when it is not.
    pub fn allows(&self, who: &Identity, action: &Action) -> Option<String> {
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

    /// All rules that hold for somebody in a namespace.
    pub fn rules_for(&self, who: &Identity, namespace: &str) -> Vec<Rule> {
        if who.is_master() {
            let all = || vec!["*".to_owned()];
            let objects = Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() };
            return vec![objects, Rule { verbs: all(), paths: all(), ..Rule::default() }];
        }
        let mine = self.reaching(namespace).filter(|binding| binding.subject(who).is_some());
        mine.flat_map(|binding| self.rules(binding).iter().cloned()).collect()
    }
}

/// The status of a review of rules.
pub fn rules_review(rules: &[Rule]) -> Value {
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

    #[test]
    fn nobody_gives_away_more_than_they_hold() {
        let rule = |value: Value| vec![Rule::parse(&value)];
        let held =
            rule(json!({"apiGroups": [""], "resources": ["a", "b"], "verbs": ["get", "list"]}));
        let less = rule(
            json!({"apiGroups": [""], "resources": ["a"], "verbs": ["get"], "resourceNames": ["x"]}),
        );
        let more = rule(json!({"apiGroups": [""], "resources": ["a", "c"], "verbs": ["get"]}));
        assert!(missing(&held, &less).is_empty());
        assert_eq!(missing(&held, &more).len(), 1);
        assert_eq!(
            missing(&less, &rule(json!({"apiGroups": [""], "resources": ["a"], "verbs": ["get"]})))
                .len(),
            1
        );
        assert_eq!(
            missing(&held, &rule(json!({"nonResourceURLs": ["/x"], "verbs": ["get"]}))).len(),
            1
        );
    }

    /// Taken apart it would be a hundred million permissions.
    #[test]
    fn rules_of_many_words_are_not_taken_apart() {
        let words =
            |sign: &str| -> Vec<String> { (0..100).map(|i| format!("{sign}{i}")).collect() };
        let large = Rule {
            verbs: words("v"),
            groups: words("g"),
            resources: words("r"),
            names: words("n"),
            ..Rule::default()
        };
        let all = || vec!["*".to_owned()];
        let admin = Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() };
        let large = std::slice::from_ref(&large);
        assert_eq!(missing(&[], large).len(), 1);
        assert!(missing(&[admin], large).is_empty());
        assert!(missing(large, large).is_empty());
    }
}
