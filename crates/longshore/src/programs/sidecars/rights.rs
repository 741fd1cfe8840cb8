//! The rights of the process are the sum of those of its sidecars, and say for each of them what it needs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use longshore_core::provision::DriverCapabilities;

use super::Config;
use super::table::{INCLUDABLE, Member};
use crate::cli::config_of;
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

/// What a controller begins without, and when it needs it: nobody asks for these before it leads.
const LATER: &[(&str, &str)] = &[
    ("events", "left out where they may not be written"),
    ("secrets", "only for classes and volumes that name one"),
    ("nodes", "only for drivers with a topology, and with --enable-node-watcher"),
    ("csinodes", "for the provisioner only with a topology"),
    (
        "persistentvolumeclaims/status",
        "for the health monitor only beside a driver with health calls; the resizer asks at once",
    ),
    ("pods", "only for drivers that expand no volume in use, and with --enable-node-watcher"),
    ("storageclasses", "get, as the official file has it"),
    ("volumeattachments", "for the provisioner only where the driver attaches"),
    ("volumeattributesclasses", "only for claims that name one"),
    ("volumesnapshots", "only for claims from snapshots"),
    ("volumesnapshotcontents", "for the provisioner only for claims from snapshots"),
    ("referencegrants", "only with CrossNamespaceVolumeDataSource"),
    ("volumegroupsnapshotclasses", "only for group snapshots"),
    ("volumegroupsnapshotcontents", "only for group snapshots"),
    ("volumegroupsnapshotcontents/status", "only for group snapshots"),
];

#[test]
fn each_controller_asks_for_the_rules_of_its_file_before_it_leads() {
    let rules = rules();
    let can = DriverCapabilities { publish: true, ..DriverCapabilities::default() };
    let mut asked = 0;
    for (name, member) in config_of::<Config>(&[]).unwrap().members {
        let Member::Controller(controller) = member else { panic!("{name} has no rights") };
        let rights = controller.rights(&can);
        let less = controller.rights(&DriverCapabilities::default());
        for right in less {
            let more = rights.iter().find(|more| more.resource == right.resource).unwrap();
            assert!(right.verbs.iter().all(|verb| more.verbs.contains(verb)), "{name}: {right:?}");
        }
        for right in rights {
            let key = (right.group.to_owned(), right.resource.to_owned());
            let (_, have) = rules[&key].iter().find(|(who, _)| *who == name).unwrap();
            for verb in right.verbs {
                assert!(have.iter().any(|one| one == verb), "{name} asks to {verb} {key:?}");
                asked += 1;
            }
        }
        for ((group, resource), needed) in &rules {
            let verbs = needed.iter().filter(|(who, _)| *who == name).flat_map(|(_, verbs)| verbs);
            let right = rights.iter().find(|one| one.group == group && one.resource == resource);
            for verb in verbs {
                let now = right.is_some_and(|right| right.verbs.contains(&verb.as_str()));
                let later = LATER.iter().any(|(one, _)| one == resource);
                assert!(now || later, "{name}: nobody asks whether it may {verb} {resource}");
            }
        }
    }
    assert!(asked > 30, "{asked} verbs");
}
