//! What holds for every program of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::error::ErrorKind;
use serde_json::Value;

use super::PROGRAMS;
use crate::cli::{Entry, Row, help, upstream};

/// With this variable, texts in the repository that come from the table are written again.
const BLESS: &str = "LONGSHORE_BLESS";

const ELECTION: &str = "rbac/leader-election.yaml";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn entries() -> impl Iterator<Item = (&'static Row, &'static Entry)> {
    PROGRAMS.iter().filter_map(|row| row.entry().map(|entry| (row, entry)))
}

/// The objects of a file below `deploy`.
pub(super) fn manifest(file: &str) -> Vec<Value> {
    let path = root().join("deploy").join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts = text.split("\n---\n").map(serde_saphyr::from_str);
    parts.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{file}: {error}"))
}

pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

pub(super) fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Compares what is between two texts of a file with what the table says, or writes it.
pub(super) fn compare(file: &str, begin: &str, end: &str, want: &str) {
    let path = root().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begin).expect("where it begins");
    let (found, after) = rest.split_at(rest.rfind(end).expect("where it ends"));
    if found != want && std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, format!("{before}{begin}{want}{after}")).unwrap();
        return;
    }
    assert_eq!(found, want, "{file} is old: run the tests once with {BLESS}=1");
}

#[test]
fn every_name_is_used_once() {
    let mut used = BTreeMap::new();
    for row in PROGRAMS {
        for name in row.official.iter().chain([&row.name]) {
            let other = used.insert(*name, row.name).filter(|other| *other != row.name);
            assert_eq!(other, None, "{name} is also a name of another program");
        }
    }
}

#[test]
fn every_program_says_what_it_is_and_how_it_is_called() {
    for (row, entry) in entries() {
        assert!(!entry.summary.ends_with('.') && !entry.summary.is_empty(), "{}", row.name);
        for official in row.official {
            let named = format!("(as {official})");
            assert!(entry.summary.ends_with(&named), "{}: {}", row.name, entry.summary);
        }
        let call = format!("longshore {}", row.name);
        assert!(entry.examples.contains(&call), "{}: {}", row.name, entry.examples);
    }
}

#[test]
fn documentation_lists_every_program() {
    let mut table = String::from("| program | what it does |\n|---|---|\n");
    for (row, entry) in entries() {
        let summary = entry.summary.replace("(as ", "(as `").replace(')', "`)");
        let summary = if summary.contains("(as `") { summary } else { entry.summary.to_owned() };
        table += &format!("| `{}` | {summary} |\n", row.name);
    }
    let (begin, end) = ("<!-- programs: begin -->\n", "<!-- programs: end -->");
    compare("docs/command-line.md", begin, end, &table);
}

#[test]
fn every_official_program_has_a_version_that_help_and_documents_name() {
    let mut table = String::from("| official program | matched version |\n|---|---|\n");
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for (row, entry) in entries() {
        let released = |name: &&&str| !upstream::UNRELEASED.contains(*name);
        for official in row.official.iter().filter(released) {
            let listed = upstream::MATCHED.iter().find(|(name, _)| name == official);
            let (name, version) = listed.unwrap_or_else(|| panic!("{official}: which version?"));
            table += &format!("| `{name}` | {version} |\n");
            assert!(readme.contains(&format!("{name} {version}")), "README: {name} {version}");
            let help = help::command(row.name, entry).render_help().to_string();
            assert!(help.contains(&format!("those of {name} {version}")), "{help}");
        }
    }
    table += &format!("| Kubernetes | {} |\n| CSI | {} |\n", upstream::KUBERNETES, upstream::CSI);
    let (begin, end) = ("<!-- versions: begin -->\n", "<!-- versions: end -->");
    compare("docs/command-line.md", begin, end, &table);
}

/// Flags that stand under these headings, and nowhere else.
const HEADINGS: &[(&str, &[&str])] = &[
    ("Kubernetes API", &["kubeconfig", "master", "kube-api-qps", "kube-api-burst"]),
    ("Logging", &["v", "logging-format"]),
];

#[test]
fn flags_stand_under_their_own_headings() {
    for (row, entry) in entries() {
        let command = help::command(row.name, entry);
        for arg in command.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            let heading = arg.get_help_heading().unwrap_or("Options");
            let Some((_, own)) = HEADINGS.iter().find(|(name, _)| *name == heading) else {
                continue;
            };
            assert!(own.contains(&flag), "{}: --{flag} stands under {heading}", row.name);
        }
    }
}

#[test]
fn help_lists_the_feature_gates_with_their_defaults() {
    for (row, entry) in entries() {
        let command = help::command(row.name, entry);
        let gates = command.get_arguments().find(|arg| arg.get_long() == Some("feature-gates"));
        let Some(help) = gates.map(|arg| arg.get_help().unwrap().to_string()) else { continue };
        assert!(help.contains(" (on") || help.contains(" (off"), "{}: {help}", row.name);
    }
}

#[test]
fn every_role_belongs_to_a_program() {
    let owned: BTreeSet<&str> = entries().flat_map(|(_, entry)| entry.rbac).copied().collect();
    let dir = std::fs::read_dir(root().join("deploy/rbac")).unwrap();
    let shipped: BTreeSet<String> = dir
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml") && name != "00-namespace.yaml")
        .map(|name| format!("rbac/{name}"))
        .collect();
    for file in &shipped {
        assert!(owned.contains(file.as_str()), "no program needs deploy/{file}");
    }
    for file in owned {
        assert!(shipped.contains(file) || file.ends_with("-provisioner/rbac.yaml"), "{file}");
    }
}

#[test]
fn rules_name_groups_resources_and_verbs_without_wildcards() {
    for (row, entry) in entries() {
        for file in entry.rbac {
            let objects = manifest(file);
            let roles = of_kind(&objects, "ClusterRole").chain(of_kind(&objects, "Role"));
            let rules: Vec<&Value> =
                roles.flat_map(|role| role["rules"].as_array().unwrap()).collect();
            assert!(!rules.is_empty(), "{file}");
            for rule in rules {
                for list in ["apiGroups", "resources", "verbs"] {
                    let listed = names(&rule[list]);
                    assert!(
                        !listed.is_empty() && !listed.contains(&"*"),
                        "{}: {file}: {list} of {rule}",
                        row.name
                    );
                }
            }
        }
    }
}

#[test]
fn accounts_are_named_like_their_programs_and_bound_to_every_role() {
    for (row, entry) in entries() {
        let account = format!("longshore-{}", row.name);
        let Some(first) = entry.rbac.first() else { continue };
        let objects = manifest(first);
        let accounts: Vec<_> = of_kind(&objects, "ServiceAccount").collect();
        assert_eq!(accounts.len(), 1, "{first}");
        assert_eq!(accounts[0]["metadata"]["name"], account, "{first}");
        for file in entry.rbac {
            let objects = manifest(file);
            for kind in ["ClusterRole", "Role"] {
                for role in of_kind(&objects, kind) {
                    let name = &role["metadata"]["name"];
                    let binding = format!("{kind}Binding");
                    let bound = of_kind(&objects, &binding).any(|binding| {
                        let subjects = binding["subjects"].as_array().unwrap();
                        binding["roleRef"]["name"] == *name
                            && subjects.iter().any(|subject| subject["name"] == account)
                    });
                    assert!(bound, "{file}: {kind} {name} is not bound to {account}");
                }
            }
        }
    }
}

#[test]
fn leader_election_is_granted_to_the_programs_that_ask_for_it() {
    let asking = entries().filter(|(_, entry)| entry.rbac.contains(&ELECTION));
    let subjects: String = asking
        .map(|(row, _)| {
            let name = row.name;
            format!(
                "- kind: ServiceAccount\n  name: longshore-{name}\n  namespace: longshore-system\n"
            )
        })
        .collect();
    compare(&format!("deploy/{ELECTION}"), "subjects:\n", "", &subjects);
}

#[test]
fn documentation_says_which_program_needs_which_role() {
    let mut needed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (row, entry) in entries() {
        for file in entry.rbac.iter().filter_map(|file| file.strip_prefix("rbac/")) {
            needed.entry(file).or_default().push(format!("`longshore {}`", row.name));
        }
    }
    let mut table = String::from("| file | for |\n|---|---|\n");
    for (file, programs) in needed {
        table += &format!("| `{file}` | {} |\n", programs.join(", "));
    }
    let (begin, end) = ("<!-- roles: begin -->\n", "<!-- roles: end -->");
    compare("deploy/rbac/README.md", begin, end, &table);
}

/// The flags that a text names.
fn flags_in(text: &str) -> impl Iterator<Item = &str> {
    let beyond = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let names = text.split("--").skip(1).map(move |rest| rest.split(beyond).next().unwrap_or(""));
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// The command lines in the last columns of a section's table.
fn ways_back_in(text: &str) -> impl Iterator<Item = &str> {
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.filter_map(|row| row.trim_matches('|').rsplit_once(" | ")?.1.trim().strip_prefix('`'))
        .filter_map(|rest| rest.split('`').next())
}

/// `docs/differences.md` names programs in its headings, and below them flags of each.
#[test]
fn documented_differences_name_flags_that_exist_and_the_way_back() {
    let page = std::fs::read_to_string(root().join("docs/differences.md")).unwrap();
    let sections = page.split("\n## ").skip(1);
    let (mut rows, mut ways_back) = (0, 0);
    for section in sections {
        let (heading, text) = section.split_once('\n').unwrap();
        for name in heading.split('`').skip(1).step_by(2) {
            let (row, entry) = entries().find(|(row, _)| row.name == name).expect(name);
            let command = help::command(row.name, entry);
            let known: Vec<&str> =
                command.get_arguments().filter_map(|arg| arg.get_long()).collect();
            for flag in flags_in(text) {
                assert!(known.contains(&flag), "{name} has no --{flag}");
            }
            for line in ways_back_in(text) {
                let words = std::iter::once(name).chain(line.split(' '));
                match command.clone().try_get_matches_from(words) {
                    Ok(_) => {}
                    // Others than those of the row.
                    Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {}
                    Err(error) => panic!("{name} {line}: {error}"),
                }
                ways_back += 1;
            }
        }
        for line in text.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [_, _, _, back] = cells[..] else { panic!("four columns: {line}") };
            let no_switch = back.strip_prefix("no switch: ").is_some_and(|why| !why.is_empty());
            assert!(no_switch || back.starts_with("`--"), "a flag or a reason: {line}");
            rows += 1;
        }
    }
    assert!(rows > 30 && ways_back > 15, "{rows} rows and {ways_back} flags are read");
}
