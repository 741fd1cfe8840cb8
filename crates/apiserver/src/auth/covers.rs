//! Whether the rules that a user holds cover the rules that the user is about to grant.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::rbac::{Rule, has, path_matches};

/// A rule that stands for more single permissions than this is compared as a whole. No user writes
/// such a rule, and taking it apart would keep the server busy for as long as its author likes.
const MAX_PARTS: usize = 20_000;

/// A refusal lists this many lines.
const MAX_LINES: usize = 100;

/// The permissions in `wanted` that `held` does not cover, in the words of Kubernetes; none when all
/// are covered.
pub(crate) fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let mut left = MAX_PARTS;
    let mut lacking = Vec::new();
    for rule in wanted {
        if held.iter().any(|own| own.covers(rule)) {
            continue;
        }
        match left.checked_sub(rule.count()) {
            None => lacking.push(rule.clone()),
            Some(rest) => {
                left = rest;
                let parts = rule.parts().into_iter();
                lacking.extend(parts.filter(|part| !held.iter().any(|own| own.covers(part))));
            }
        }
    }
    lines(lacking)
}

impl Rule {
    /// Whether this rule alone allows all that the other one does.
    fn covers(&self, other: &Self) -> bool {
        let path = |path: &String| self.paths.iter().any(|pattern| path_matches(pattern, path));
        let holds = |mine: &[String], theirs: &[String]| has(mine, "*") || has_all(mine, theirs);
        holds(&self.verbs, &other.verbs)
            && holds(&self.groups, &other.groups)
            && (holds(&self.resources, &other.resources)
                || other.resources.iter().all(|resource| self.covers_resource(resource)))
            && other.paths.iter().all(path)
            && self.covers_names(other)
    }

    /// A rule without names is for all of them.
    fn covers_names(&self, other: &Self) -> bool {
        self.names.is_empty() || (!other.names.is_empty() && has_all(&self.names, &other.names))
    }

    /// How many single permissions the rule stands for.
    fn count(&self) -> usize {
        let names = self.names.len().max(1);
        let lists = [self.groups.len(), self.resources.len(), names];
        let objects = lists.into_iter().fold(1_usize, usize::saturating_mul);
        objects.saturating_add(self.paths.len()).saturating_mul(self.verbs.len())
    }

    /// The single permissions of the rule, each as a rule.
    fn parts(&self) -> Vec<Self> {
        let one = |text: &str| vec![text.to_owned()];
        let mut parts = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let rule = Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Self::default()
                    };
                    let named = self.names.iter().map(|n| Self { names: one(n), ..rule.clone() });
                    parts.extend(named);
                    if self.names.is_empty() {
                        parts.push(rule);
                    }
                }
            }
        }
        for path in &self.paths {
            let of = |verb: &String| Self { verbs: one(verb), paths: one(path), ..Self::default() };
            parts.extend(self.verbs.iter().map(of));
        }
        parts
    }

    fn line(&self) -> String {
        let fields = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let fields = fields.into_iter().filter(|(_, list)| !list.is_empty());
        let shown = fields.map(|(name, list)| format!("{name}:{}", quoted(list)));
        format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
    }
}

fn has_all(mine: &[String], theirs: &[String]) -> bool {
    if theirs.len() < 8 {
        return theirs.iter().all(|item| mine.contains(item));
    }
    let mine: HashSet<&String> = mine.iter().collect();
    theirs.iter().all(|item| mine.contains(item))
}

fn quoted(list: &[String]) -> String {
    let shown: Vec<String> = list.iter().take(MAX_LINES).map(|text| format!("{text:?}")).collect();
    format!("[{}]", shown.join(" "))
}

/// One line per resource, with all the verbs that are lacking.
fn lines(lacking: Vec<Rule>) -> Vec<String> {
    let mut lines = BTreeSet::new();
    let mut by_place: BTreeMap<[Vec<String>; 3], Rule> = BTreeMap::new();
    for rule in lacking {
        if !rule.paths.is_empty() {
            lines.insert(rule.line());
            continue;
        }
        let place = [rule.groups.clone(), rule.resources.clone(), rule.names.clone()];
        match by_place.get_mut(&place) {
            Some(known) => known.verbs.extend(rule.verbs),
            None => drop(by_place.insert(place, rule)),
        }
    }
    lines.extend(by_place.values().map(Rule::line));
    let more = lines.len().saturating_sub(MAX_LINES);
    let mut lines: Vec<String> = lines.into_iter().take(MAX_LINES).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(value: Value) -> Vec<Rule> {
        vec![Rule::parse(&value)]
    }

    fn pods(verbs: &[&str], names: &[&str]) -> Vec<Rule> {
        rule(
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": verbs, "resourceNames": names}),
        )
    }

    #[test]
    fn rules_beyond_those_held_are_found() {
        let all = Rule::everything();
        let paths = |path: &str| rule(json!({"nonResourceURLs": [path], "verbs": ["get"]}));
        let of = |group: &str, resource: &str| {
            rule(json!({"apiGroups": [group], "resources": [resource], "verbs": ["get"]}))
        };
        let rows: &[(&str, &[Rule], &[Rule], usize)] = &[
            ("the same", &pods(&["get"], &[]), &pods(&["get"], &[]), 0),
            ("one name of all", &pods(&["get"], &[]), &pods(&["get"], &["a"]), 0),
            ("all of one name", &pods(&["get"], &["a"]), &pods(&["get"], &[]), 1),
            ("another name", &pods(&["get"], &["a"]), &pods(&["get"], &["a", "b"]), 1),
            ("another verb", &pods(&["get"], &[]), &pods(&["get", "list"], &[]), 1),
            ("every verb", &pods(&["get", "list"], &[]), &pods(&["*"], &[]), 1),
            ("everything", &all, &Rule::everything(), 0),
            ("every group", &of("", "pods"), &of("*", "pods"), 1),
            ("every resource", &of("", "pods"), &of("", "*"), 1),
            ("a subresource", &of("", "pods"), &of("", "pods/log"), 1),
            ("that subresource of all", &of("", "*/log"), &of("", "pods/log"), 0),
            ("a resource by its subresource", &of("", "*/log"), &of("", "pods"), 1),
            ("a path", &of("*", "*"), &paths("/metrics"), 1),
            ("a path below a pattern", &paths("/logs/*"), &paths("/logs/a"), 0),
            ("a pattern by a path", &paths("/logs/a"), &paths("/logs/*"), 1),
            ("every path", &paths("*"), &paths("/x*"), 0),
            ("an object by a path", &paths("*"), &of("", "pods"), 1),
        ];
        for (name, held, wanted, lacking) in rows {
            assert_eq!(missing(held, wanted).len(), *lacking, "{name}");
        }
    }

    #[test]
    fn missing_verbs_of_one_resource_stand_in_one_line() {
        let lacking = missing(&pods(&["get"], &[]), &pods(&["get", "list", "watch"], &[]));
        assert_eq!(lacking, [r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#]);
    }

    #[test]
    fn two_rules_together_cover_what_neither_covers_alone() {
        let held = [pods(&["get"], &[]), pods(&["list"], &[])].concat();
        assert!(missing(&held, &pods(&["get", "list"], &[])).is_empty());
    }

    #[test]
    fn a_rule_of_countless_permissions_is_compared_as_a_whole() {
        let many: Vec<String> = (0..3000).map(|n| format!("x{n}")).collect();
        let huge = rule(json!({"apiGroups": many, "resources": many, "verbs": many}));
        assert!(missing(&huge, &huge).is_empty());
        assert!(missing(&Rule::everything(), &huge).is_empty());
        let refused = missing(&pods(&["get"], &[]), &huge);
        assert!(refused.len() == 1 && refused[0].len() < 10_000);
    }
}
