//! `cargo xtask charts`: what the charts have from elsewhere in the repository: the CRDs of snapshots, and the
//! rules of each program's account. Checked by `cargo xtask check`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// Files of `deploy/rbac` whose rules a chart has.
const RULES: [(&str, &[&str]); 2] = [
    ("snapshot-controller", &["snapshot-controller", "leader-election"]),
    (
        "longshore",
        &[
            "attacher",
            "capacity",
            "leader-election",
            "leak-guard",
            "provisioner",
            "resizer",
            "snapshotter",
        ],
    ),
];

/// Writes the files, or compares them.
pub fn task(args: &[String]) -> Result<()> {
    let check = match args {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("say `charts` or `charts --check`"),
    };
    let mut stale = Vec::new();
    for (path, text) in files()? {
        let file = run::root().join("deploy/charts").join(&path);
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            continue;
        }
        if check {
            stale.push(path);
            continue;
        }
        let dir = file.parent().context("a file is in a directory")?;
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        eprintln!("wrote deploy/charts/{path}");
    }
    if !stale.is_empty() {
        bail!("run `cargo xtask charts`; these differ from deploy/crds or deploy/rbac: {stale:?}");
    }
    Ok(())
}

fn files() -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let crds = run::root().join("deploy/crds");
    for entry in fs::read_dir(&crds).with_context(|| crds.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.insert(format!("snapshot-controller/files/crds/{name}"), read(path)?);
        }
    }
    for (chart, programs) in RULES {
        for program in programs {
            let text = read(run::root().join(format!("deploy/rbac/{program}.yaml")))?;
            for (scope, rules) in rules(&text) {
                files.insert(format!("{chart}/files/rules/{program}.{scope}.yaml"), rules);
            }
        }
    }
    Ok(files)
}

fn read(file: PathBuf) -> Result<String> {
    fs::read_to_string(&file).with_context(|| file.display().to_string())
}

/// The rules of each role in a file, with their comments, and whether they hold in the cluster or a namespace.
fn rules(text: &str) -> Vec<(&'static str, String)> {
    text.split("\n---\n")
        .filter_map(|document| {
            let kind = document.lines().find_map(|line| line.strip_prefix("kind: "))?;
            let scope = match kind {
                "ClusterRole" => "cluster",
                "Role" => "namespace",
                _ => return None,
            };
            let at = document.find("\nrules:\n")?;
            Some((scope, format!("{}\n", document[at + 1..].trim_end())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_cut_out_of_roles_with_their_comments() {
        let text = "# first\nkind: ServiceAccount\n---\nkind: ClusterRole\nmetadata:\n  name: x\n\
                    rules:\n# Why.\n- verbs: [get]\n---\nkind: ClusterRoleBinding\n---\nkind: Role\n\
                    rules:\n- verbs: [list]\n";
        let want = [
            ("cluster", "rules:\n# Why.\n- verbs: [get]\n".to_owned()),
            ("namespace", "rules:\n- verbs: [list]\n".to_owned()),
        ];
        assert_eq!(rules(text), want);
    }

    #[test]
    fn the_charts_have_the_rules_and_kinds_of_today() {
        task(&["--check".to_owned()]).unwrap();
    }
}
