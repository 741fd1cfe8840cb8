//! `cargo xtask deploy`: what `deploy` has from elsewhere in the repository. The charts have the CRDs of snapshots
//! and the rules of each program's account; the Dockerfile has the packages and links of the image. Checked by
//! `cargo xtask check`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{image, run};

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
        _ => bail!("say `deploy` or `deploy --check`"),
    };
    let mut stale = Vec::new();
    for (path, text) in files()? {
        let file = run::root().join("deploy").join(&path);
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
        eprintln!("wrote deploy/{path}");
    }
    if !stale.is_empty() {
        bail!("run `cargo xtask deploy`; in `deploy` these are not as elsewhere: {stale:?}");
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
            files.insert(format!("charts/snapshot-controller/files/crds/{name}"), read(path)?);
        }
    }
    for (chart, programs) in RULES {
        for program in programs {
            let text = read(run::root().join(format!("deploy/rbac/{program}.yaml")))?;
            for (scope, rules) in rules(&text) {
                files.insert(format!("charts/{chart}/files/rules/{program}.{scope}.yaml"), rules);
            }
        }
    }
    files.insert("image/Dockerfile".to_owned(), dockerfile());
    Ok(files)
}

/// The image for people who build with a container engine.
fn dockerfile() -> String {
    let links: String = image::LINKS
        .iter()
        .map(|name| format!(" \\\n    && ln -s /usr/bin/longshore /{name}"))
        .collect();
    let tools = image::TOOL_PACKAGES.join(" ");
    format!(
        "# Written by `cargo xtask deploy`; do not edit. `cargo xtask image` makes a smaller image without a container engine.\n\
         #   docker build -f deploy/image/Dockerfile -t longshore:{} .\n\
         FROM rust:1-bookworm AS build\n\
         WORKDIR /src\n\
         COPY . .\n\
         RUN cargo build --locked --profile dist --package longshore && cp target/dist/longshore /longshore\n\
         \n\
         FROM debian:bookworm-slim\n\
         RUN apt-get update \\\n    && apt-get install -y --no-install-recommends {tools} \\\n    && rm -rf /var/lib/apt/lists/*\n\
         COPY --from=build /longshore /usr/bin/longshore\n\
         RUN ln -s /usr/bin/longshore /longshore{links}\n\
         ENTRYPOINT [\"/longshore\"]\n",
        env!("CARGO_PKG_VERSION")
    )
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
    fn deploy_is_as_the_rest_of_the_repository() {
        task(&["--check".to_owned()]).unwrap();
    }
}
