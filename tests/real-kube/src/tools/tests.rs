use std::collections::BTreeSet;

use super::table::Kind;
use super::*;

fn module(dir: &Path, text: &str) {
    fs::write(dir.join("go.mod"), text).unwrap();
    fs::write(dir.join("go.sum"), "sums").unwrap();
}

#[test]
fn the_key_follows_pins_and_flags_and_nothing_else() {
    let dir = tempfile::Builder::new().prefix("longshore-rk-key-").tempdir().unwrap();
    module(dir.path(), "module a\ngo 1.23.0\n");
    let first = key(Tool::CsiProvisioner, dir.path()).unwrap();
    assert_eq!(key(Tool::CsiProvisioner, dir.path()).unwrap(), first);
    assert_ne!(key(Tool::CsiResizer, dir.path()).unwrap(), first, "another program, other flags");
    fs::write(dir.path().join("notes.txt"), "no part of the build").unwrap();
    assert_eq!(key(Tool::CsiProvisioner, dir.path()).unwrap(), first);
    fs::write(dir.path().join("main.go"), "package main").unwrap();
    let with_main = key(Tool::CsiProvisioner, dir.path()).unwrap();
    assert_ne!(with_main, first, "a main program of ours counts");
    module(dir.path(), "module a\ngo 1.24.0\n");
    assert_ne!(key(Tool::CsiProvisioner, dir.path()).unwrap(), with_main, "another pin");
}

#[test]
fn every_pinned_tool_has_its_module_and_names_are_unique() {
    let mut names = BTreeSet::new();
    for tool in Tool::ALL {
        assert!(names.insert(tool.program()), "{} twice", tool.program());
        assert_eq!(Tool::named(tool.program()).unwrap(), tool);
        let Source::Module { module, package, kind, .. } = table::entry(tool).1 else { continue };
        let text = fs::read_to_string(module_dir(module).join("go.mod")).unwrap();
        let main = module_dir(module).join("main.go").is_file();
        let named = text.lines().any(|line| line.trim_start_matches("tool ").trim() == package);
        assert!(named || main || kind == Kind::Test, "{module}/go.mod does not name {package}");
    }
}

#[test]
fn linked_versions_are_the_pinned_ones() {
    let pins = [
        ("kubernetes", format!("k8s.io/kubernetes {KUBERNETES}")),
        ("kubectl", "k8s.io/kubectl v0.32.4".to_owned()),
        ("kubectl-next", "k8s.io/kubectl v0.37.2".to_owned()),
        ("sidecars", "external-provisioner/v5 v5.3.0".to_owned()),
        ("sidecars", "external-resizer v1.14.0".to_owned()),
        ("snapshotter", "external-snapshotter/v8 v8.6.0".to_owned()),
        ("hostpath", "csi-driver-host-path v1.7.2".to_owned()),
        ("containerd", "containerd/v2 v2.4.2".to_owned()),
        ("csi-sanity", "csi-test/v5 v5.6.0".to_owned()),
    ];
    for (module, pin) in pins {
        let text = fs::read_to_string(module_dir(module).join("go.mod")).unwrap();
        assert!(text.contains(&pin), "{module}/go.mod does not pin {pin}");
    }
}

#[test]
fn a_tool_that_cannot_be_pinned_says_so_and_may_be_brought() {
    let cache = Path::new("/nowhere");
    let error = build::build_one(Tool::CsiAttacher, cache, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("csi-attacher cannot be built"), "{error}");
    assert!(error.contains(BROUGHT), "{error}");
    assert!(cached(Tool::CsiAttacher, cache).unwrap().is_none());

    let dir = tempfile::Builder::new().prefix("longshore-rk-brought-").tempdir().unwrap();
    let at = Some(dir.path().to_owned());
    assert_eq!(brought(Tool::CsiAttacher, at.clone()), None);
    fs::write(dir.path().join("csi-attacher"), "").unwrap();
    assert_eq!(brought(Tool::CsiAttacher, at), Some(dir.path().join("csi-attacher")));
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = Tool::named("kube-proxy").unwrap_err().to_string();
    assert!(error.contains("kube-proxy") && error.contains("kube-apiserver"), "{error}");
}
