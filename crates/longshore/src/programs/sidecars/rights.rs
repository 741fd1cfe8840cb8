//! The rights of the process are the sum of those of its sidecars, and say for each of them what it needs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::table::INCLUDABLE;
use crate::programs::tests::{compare, manifest, names, of_kind};

/// The order in which verbs are written.
const VERBS: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];

/// Verbs of each sidecar, by group and resource.
type Rules = BTreeMap<(String, String), Vec<(&'static str, Vec<String>)>>;

/// The rules of the sidecars' own files, without those in the namespace of the process.
fn rules() -> Rules {
    let mut rules = Rules::new();
    for one in INCLUDABLE {
        for file in one.here().map(|here| here.rbac).unwrap_or_default() {
            // What is shared with other programs has a file of its own, with the account of this one in it.
            if *file != format!("rbac/{}.yaml", one.name) {
                continue;
            }
            let objects = manifest(file);
            let listed = of_kind(&objects, "ClusterRole").map(|role| role["rules"].as_array());
            for rule in listed.flatten().flatten() {
                assert!(rule.get("resourceNames").is_none(), "{file}: a rule about one object");
                for group in names(&rule["apiGroups"]) {
                    for resource in names(&rule["resources"]) {
                        let verbs = names(&rule["verbs"]).into_iter().map(str::to_owned).collect();
                        let key = (group.to_owned(), resource.to_owned());
                        rules.entry(key).or_default().push((one.name, verbs));
                    }
                }
            }
        }
    }
    rules
}

fn written(rules: &Rules) -> String {
    let mut text = String::new();
    for ((group, resource), needed) in rules {
        let who = needed.iter().map(|(name, verbs)| format!("{name} ({})", verbs.join(" ")));
        let who = longshore_core::words::list(who);
        let any =
            |verb: &&&str| needed.iter().any(|(_, verbs)| verbs.iter().any(|one| one == **verb));
        let verbs: Vec<&str> = VERBS.iter().filter(any).copied().collect();
        let group = if group.is_empty() { "\"\"" } else { group };
        let verbs = verbs.join(", ");
        writeln!(text, "# {who}").expect("a string");
        writeln!(text, "- apiGroups: [{group}]").expect("a string");
        writeln!(text, "  resources: [{resource}]\n  verbs: [{verbs}]").expect("a string");
    }
    text
}

#[test]
fn the_role_of_the_process_is_the_sum_of_those_of_its_sidecars() {
    let rules = rules();
    assert!(rules.len() > 15, "{} resources", rules.len());
    for (key, needed) in &rules {
        let known = |verb: &String| VERBS.contains(&verb.as_str());
        assert!(needed.iter().all(|(_, verbs)| verbs.iter().all(known)), "{key:?}: {needed:?}");
    }
    compare("deploy/rbac/sidecars.yaml", "rules:\n", "---\n", &written(&rules));
}
