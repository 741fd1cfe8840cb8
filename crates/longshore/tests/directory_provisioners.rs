//! The directory provisioners as processes, on real directories.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use common::*;
use serde_json::{Value, json};

/// The embedded API, the volume controllers, and nothing else.
fn api(home: &Home) -> (Instance, Beside) {
    let api = Instance::start(home, "api", &["apiserver"]);
    let kubeconfig = api.kubeconfig.display().to_string();
    let args = ["controllers", "--kubeconfig", &kubeconfig, "--leader-elect=false"];
    let controllers = Beside::start(home, "controllers", &args);
    (api, controllers)
}

fn hostpath(home: &Home, api: &Instance, more: &[&str]) -> Beside {
    let (kubeconfig, root) = (api.kubeconfig.display().to_string(), home.path().join("volumes"));
    let root = root.display().to_string();
    let mut args =
        vec!["hostpath-provisioner", "--kubeconfig", &kubeconfig, "--root", &root, "-v=2"];
    args.extend(more);
    Beside::start(home, "hostpath", &args)
}

fn nfs(home: &Home, api: &Instance) -> Beside {
    let export = home.path().join("export");
    fs::create_dir_all(&export).unwrap();
    let (kubeconfig, mount) = (api.kubeconfig.display().to_string(), export.display().to_string());
    let args = ["nfs-provisioner", "--kubeconfig", &kubeconfig, "--server", "files.example"];
    let more = ["--path", "/srv/export", "--mount", &mount, "-v=2"];
    Beside::start(home, "nfs", &[&args[..], &more[..]].concat())
}

/// Names in a directory, without the trash.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != ".longshore-trash");
    names.sort();
    names
}

fn source(volume: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&volume["metadata"]["name"]), text(&volume["spec"]["hostPath"]["path"]))
}

#[test]
fn directories_of_a_node() {
    let home = Home::new("plain-hostpath");
    let (api, _controllers) = api(&home);
    let root = home.path().join("volumes");
    let program = hostpath(&home, &api, &["--node-name", "node-a"]);
    api.apply(&class("custom-storage", "longshore.dev/hostpath", "parameters: {type: custom}"));
    api.apply(&class("kept", "longshore.dev/hostpath", "reclaimPolicy: Retain"));
    let elsewhere = "allowedTopologies: [{matchLabelExpressions: [{key: kubernetes.io/hostname, values: [node-b]}]}]";
    api.apply(&class("elsewhere", "longshore.dev/hostpath", elsewhere));

    api.apply(&claim("data", "custom-storage"));
    let volume = api.bound("data");
    let (name, path) = source(&volume);
    assert_eq!(Path::new(&path), root.join(&name));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o777);
    assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(volume["spec"]["hostPath"]["type"], "Directory");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(volume["metadata"]["annotations"]["longshore.dev/provisioner-identity"], "node-a");
    let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
    let host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]});
    assert_eq!(term["matchExpressions"], json!([host]));
    let words = ["ProvisioningSucceeded", &name];
    api.event("data", &words);
    fs::write(Path::new(&path).join("file"), "x").unwrap();
    fs::create_dir(Path::new(&path).join("deep")).unwrap();

    api.apply(&claim("keep", "kept"));
    let (kept, kept_path) = source(&api.bound("keep"));
    fs::write(Path::new(&kept_path).join("file"), "kept").unwrap();
    for one in ["data", "keep"] {
        api.delete("pvc", one);
    }
    api.wait("pv", &name, "went", Value::is_null);
    api.wait("pv", &kept, "was released", |pv| pv["status"]["phase"] == "Released");
    assert_eq!(names(&root), [kept], "the retained one stays, the other is gone");

    // Nothing is made where the class does not want it, and the event says what to do.
    api.apply(&claim("lost", "elsewhere"));
    api.event("lost", &["ProvisioningFailed", "allowedTopologies", "node-a", "add it"]);
    assert_eq!(names(&root).len(), 1);
    assert_eq!(program.stop(), Some(0));
}

/// A provisioner that is killed, and one that was killed while it removed something.
#[test]
fn a_killed_provisioner_leaves_nothing() {
    let home = Home::new("plain-killed");
    let (api, _controllers) = api(&home);
    let root = home.path().join("volumes");
    api.apply(&class("plain", "longshore.dev/hostpath", ""));
    let program = hostpath(&home, &api, &["--leader-election=false"]);
    api.apply(&claim("data", "plain"));
    let (name, _) = source(&api.bound("data"));
    drop(program);
    let trash = root.join(".longshore-trash");
    fs::create_dir_all(trash.join("left/over")).unwrap();
    fs::write(trash.join("left/file"), "x").unwrap();
    assert!(api.cli(&["delete", "pvc", "data"]).status.success());
    api.wait("pv", &name, "was released", |pv| pv["status"]["phase"] == "Released");
    let program = hostpath(&home, &api, &["--leader-election=false"]);
    api.wait("pv", &name, "went", Value::is_null);
    eventually("the trash is empty", || names(&root).is_empty() && names(&trash).is_empty());
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn directories_of_an_export() {
    let home = Home::new("plain-nfs");
    let (api, _controllers) = api(&home);
    let export = home.path().join("export");
    let program = nfs(&home, &api);
    let nfs_class = |name: &str, parameters: &str| {
        api.apply(&class(name, "longshore.dev/nfs", &format!("parameters: {{{parameters}}}")));
    };
    nfs_class("archived", "");
    nfs_class("deleted", "onDelete: delete, pathPattern: \"${.PVC.namespace}/${.PVC.name}\"");
    nfs_class("retained", "onDelete: retain, archiveOnDelete: \"false\"");
    let mut volumes = Vec::new();
    for one in ["archived", "deleted", "retained"] {
        api.apply(&claim(&format!("to-be-{one}"), one));
        let volume = api.bound(&format!("to-be-{one}"));
        assert_eq!(volume["spec"]["nfs"]["server"], "files.example");
        let path = volume["spec"]["nfs"]["path"].as_str().unwrap();
        let below = path.strip_prefix("/srv/export/").unwrap().to_owned();
        fs::write(export.join(&below).join("file"), one).unwrap();
        volumes.push((volume["metadata"]["name"].as_str().unwrap().to_owned(), below));
    }
    let [(first, archived), (_, deleted), (third, retained)] = &volumes[..] else { panic!() };
    assert_eq!(archived, &format!("default-to-be-archived-{first}"));
    assert_eq!(deleted, "default/to-be-deleted");
    assert_eq!(retained, &format!("default-to-be-retained-{third}"));
    for (name, one) in volumes.iter().zip(["archived", "deleted", "retained"]) {
        api.delete("pvc", &format!("to-be-{one}"));
        api.wait("pv", &name.0, "went", Value::is_null);
    }
    let mut left = vec![format!("archived-{archived}"), "default".to_owned(), retained.clone()];
    left.sort();
    assert_eq!(names(&export), left);
    assert_eq!(names(&export.join("default")), Vec::<String>::new());
    let file = export.join(format!("archived-{archived}")).join("file");
    assert_eq!(fs::read_to_string(file).unwrap(), "archived");

    // What a class says wrong is named with what to write instead, and nothing is made.
    for (number, (parameters, words)) in [
        ("onDelete: shred", ["parameter onDelete", "delete or retain"]),
        ("archiveOnDelete: perhaps", ["parameter archiveOnDelete", "true or false"]),
        ("pathPattern: \"../../${.PVC.name}\"", ["parameter pathPattern", ". or .."]),
        ("pathPattern: \"/etc/${.PVC.name}\"", ["parameter pathPattern", "begins with /"]),
        ("pathPattern: \"${.PVC.labels.app}\"", ["parameter pathPattern", "no label \"app\""]),
        ("pathPattern: \"${.PVC.nane}\"", ["parameter pathPattern", "use .PVC.name"]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("wrong-{number}");
        nfs_class(&name, parameters);
        api.apply(&claim(&name, &name));
        api.event(&name, &["ProvisioningFailed", words[0], words[1]]);
        assert_eq!(api.json("pvc", &name)["status"]["phase"], "Pending");
    }
    assert_eq!(names(&export), left);
    assert_eq!(program.stop(), Some(0));
}

/// The tutorial's way on one machine: its class, its provisioner, and a pod that uses the claim.
#[test]
fn a_pod_uses_a_directory_of_the_embedded_node() {
    if !can_run("plain-pod") {
        return;
    }
    let home = Home::outside_tmp("plain-pod");
    let up = Instance::up(&home, "data");
    let program = hostpath(&home, &up, &["--provisioner-name", "custom-provisioner"]);
    let late = "parameters: {type: custom}\nvolumeBindingMode: WaitForFirstConsumer";
    up.apply(&class("custom-storage", "custom-provisioner", late));
    up.apply(&claim("data", "custom-storage"));
    up.apply(&pod("writer", "data", "echo kept > /data/file"));
    let succeeded = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    up.wait("pod", "writer", "succeeded", succeeded);
    let (_, path) = source(&up.bound("data"));
    assert_eq!(fs::read_to_string(Path::new(&path).join("file")).unwrap(), "kept\n");
    up.delete("pod", "writer");
    up.apply(&pod("reader", "data", "grep -q kept /data/file"));
    up.wait("pod", "reader", "succeeded", succeeded);
    up.delete("pod", "reader");
    up.delete("pvc", "data");
    eventually("the directory is gone", || !Path::new(&path).exists());
    assert_eq!(program.stop(), Some(0));
    assert_eq!(up.stop(), Some(0));
}
