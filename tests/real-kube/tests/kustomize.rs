//! The plain manifests in `deploy/kustomize` are what the charts render.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use longshore_real_kube::tools::{self, Tool};

const CHARTS: [&str; 2] = ["longshore", "snapshot-controller"];

fn deploy() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// What a chart renders with its own values, without its tests.
fn rendered(chart: &str) -> String {
    let home = tempfile::Builder::new().prefix("longshore-helm-").tempdir().unwrap();
    let mut command = Command::new(tools::path(Tool::Helm).unwrap());
    command.args(["template", chart]).arg(deploy().join("charts").join(chart));
    command.args(["--namespace", "longshore-system", "--skip-tests"]);
    // The kinds are applied with the rest, so the classes are no hooks.
    command.args(["--api-versions", "snapshot.storage.k8s.io/v1/VolumeSnapshotClass"]);
    for name in ["CACHE", "CONFIG", "DATA"] {
        command.env(format!("HELM_{name}_HOME"), home.path());
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "helm template {chart}: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let text = text.replace("managed-by: Helm", "managed-by: kustomize");
    let first = "# Written by `LONGSHORE_BLESS=1 cargo test -p longshore-real-kube --test kustomize`; do not edit.\n";
    format!("{first}{text}")
}

#[test]
fn plain_manifests_are_what_the_charts_render() {
    if !tools::need(&[Tool::Helm, Tool::Kubectl]) {
        return;
    }
    for chart in CHARTS {
        let dir = deploy().join("kustomize").join(chart);
        let file = dir.join(format!("{chart}.yaml"));
        let text = rendered(chart);
        if env::var_os("LONGSHORE_BLESS").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&file, &text).unwrap();
        }
        let have = fs::read_to_string(&file).unwrap_or_default();
        assert!(have == text, "{} is not what the chart renders", file.display());
        let mut command = Command::new(tools::path(Tool::Kubectl).unwrap());
        let output = command.arg("kustomize").arg(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl kustomize {chart}: {said}");
    }
}
