//! Attacks through volumes: what a pod can reach, change or fill by way of what is mounted into it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use common::*;
use longshore_testing::{Need, need, report};
use serde_json::{Value, json};

/// A pod with these volumes, mounted at `/v/NAME`, that runs a script.
fn pod_with(name: &str, volumes: Value, container: Value, pod: Value, script: &str) -> String {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| {
            let name = volume["name"].as_str().unwrap();
            json!({"name": name, "mountPath": format!("/v/{name}")})
        })
        .collect();
    let mut main = json!({"name": "main", "image": "host", "command": ["/bin/sh", "-c", script],
        "volumeMounts": mounts});
    merge(&mut main, container);
    let mut spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [main], "volumes": volumes});
    merge(&mut spec, pod);
    let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec});
    object.to_string()
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// Exchanges names, one of them a link, until it is killed.
const SWAP: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
int main(void) {
    for (;;) {
        renameat2(AT_FDCWD, "race/a", AT_FDCWD, "race/b", RENAME_EXCHANGE);
        renameat2(AT_FDCWD, "dirs/a", AT_FDCWD, "dirs/b", RENAME_EXCHANGE);
    }
}
"#;

/// Makes directories in directories, far beyond the longest path.
const DEEP: &str = r#"
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    for (int i = 0; i < 5000; i++)
        if (mkdir("d", 0755) || chdir("d")) return 1;
    puts("made");
    return 0;
}
"#;

/// A program that pods can start: they see the host's root, without `/tmp` and the data directory.
fn compiled(home: &Home, name: &str, source: &str) -> std::path::PathBuf {
    let (code, program) = (home.path().join(format!("{name}.c")), home.path().join(name));
    fs::write(&code, source).unwrap();
    let done = Command::new("cc").arg("-o").args([&program, &code]).status().unwrap();
    assert!(done.success());
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn over(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// Runs a pod to its end and gives its output.
fn output(up: &Instance, yaml: &str, name: &str) -> String {
    up.apply(yaml);
    up.wait("pod", name, "ended", over);
    text(&up.cli(&["logs", name]))
}

fn host_path(path: &Path, kind: &str) -> Value {
    json!([{"name": "h", "hostPath": {"path": path, "type": kind}}])
}

#[test]
fn a_neighbour_that_exchanges_names_cannot_point_the_ownership_walk_at_the_host() {
    if !can_run("a-group") || !need("a-group", &[Need::Tool("cc")]) {
        return;
    }
    let home = Home::outside_tmp("a-group");
    let up = Instance::up(&home, "data");
    let victim = home.path().join("victim");
    fs::create_dir(&victim).unwrap();
    let secret = victim.join("secret");
    fs::write(&secret, "host").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let look = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.mode() & 0o7777, found.gid(), found.uid())
    };
    let before = (look(&secret), look(&victim));
    up.apply(&claim("shared", "longshore-local"));
    // Everything that the standard "restricted" asks for.
    let restricted = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "runAsNonRoot": true, "runAsUser": 1000, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}});
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "shared"}}]);
    let swap = compiled(&home, "swap", SWAP);
    let script = format!(
        "cd /v/d && mkdir -p race dirs && : > race/a && chmod 4777 race/a && ln -sfn {0}/secret race/b && \
         mkdir -p dirs/a && ln -sfn {0} dirs/b && exec {1}",
        victim.display(),
        swap.display()
    );
    let attacker = pod_with(
        "attacker",
        volumes.clone(),
        json!({"securityContext": restricted}),
        json!({"securityContext": {"fsGroup": 1000}}),
        &script,
    );
    up.apply(&attacker);
    up.wait("pod", "attacker", "ran", |pod| pod["status"]["phase"] == "Running");
    for round in 0..20 {
        let name = format!("helper-{round}");
        let group = json!({"securityContext": {"fsGroup": 1234 + round}});
        let helper = pod_with(&name, volumes.clone(), json!({}), group, "true");
        output(&up, &helper, &name);
        up.delete("pod", &name);
        assert_eq!((look(&secret), look(&victim)), before, "round {round}");
    }
    up.delete("pod", "attacker");
    up.delete("pvc", "shared");
    up.stop_without_a_trace(&home);
}

#[test]
fn host_paths_are_checked_and_show_nothing_of_the_instance() {
    if !can_run("a-host") {
        return;
    }
    let home = Home::outside_tmp("a-host");
    let up = Instance::up(&home, "data");
    let data = up.data_dir.clone();
    let file = home.path().join("file");
    fs::write(&file, "plain").unwrap();
    let link = home.path().join("link");
    std::os::unix::fs::symlink(data.join("api"), &link).unwrap();
    let bind = home.path().join("bind");
    fs::create_dir(&bind).unwrap();
    let bound = Command::new("mount").arg("--bind").arg(data.join("api/pki")).arg(&bind).status();
    assert!(bound.unwrap().success());

    let mut held = 0;
    let image = data.join("pool");
    for (index, (path, kind, word)) in [
        (data.clone(), "", "belongs to this instance"),
        (data.join("api/pki"), "Directory", "belongs to this instance"),
        (data.join("kubeconfig"), "File", "belongs to this instance"),
        (image, "", "belongs to this instance"),
        (link.clone(), "", "belongs to this instance"),
        (bind.clone(), "", "belongs to this instance"),
        (file.clone(), "Directory", "is not a directory"),
        (file.clone(), "Socket", "is not a socket"),
        (file.clone(), "CharDevice", "is not a character device"),
        (file.clone(), "BlockDevice", "is not a block device"),
        (home.path().to_owned(), "File", "is not a file"),
        (home.path().join("none"), "", "No such file"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("refused-{index}");
        up.apply(&pod_with(&name, host_path(&path, kind), json!({}), json!({}), "ls /v/h"));
        up.event(&name, &["FailedMount", word]);
        up.delete("pod", &name);
        held += 1;
    }
    // Directories above it are given with the instance covered, whatever leads there.
    let look = "for f in $(find /v/h -name ca.key -o -name kubeconfig -o -name 'vol-*' 2>/dev/null); \
                do echo FOUND $f; done; test -e /v/h/file && echo there";
    for (index, mount) in
        [json!({}), json!({"subPath": "data"}), json!({"subPath": "link"})].into_iter().enumerate()
    {
        let name = format!("above-{index}");
        let mut one = json!({"name": "h", "mountPath": "/v/h"});
        merge(&mut one, mount);
        let volumes = host_path(home.path(), "Directory");
        let yaml = pod_with(&name, volumes, json!({"volumeMounts": [one]}), json!({}), look);
        up.apply(&yaml);
        if index == 0 {
            up.wait("pod", &name, "ended", over);
        } else {
            // The link leads out of the volume, so inside it there is nothing of that name.
            let word = ["belongs to this instance", "failed to prepare subPath"][index - 1];
            up.event(&name, &[word]);
        }
        let shown = text(&up.cli(&["logs", &name]));
        assert!(!shown.contains("FOUND"), "{name}: {shown}");
        assert_eq!(shown.contains("there"), index == 0, "{name}: {shown}");
        up.delete("pod", &name);
        held += 1;
    }
    // A volume made by hand is no way around it.
    up.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: sneaky}}\nspec:\n  \
         capacity: {{storage: 16Mi}}\n  accessModes: [ReadWriteOnce]\n  storageClassName: \"\"\n  \
         hostPath: {{path: {}}}\n",
        data.join("api").display()
    ));
    up.apply(&(claim("sneaky", "\"\"") + "  volumeName: sneaky\n"));
    up.apply(&pod("sneaky", "sneaky", "ls /data/pki && echo FOUND"));
    up.event("sneaky", &["belongs to this instance"]);
    assert!(!text(&up.cli(&["logs", "sneaky"])).contains("FOUND"));
    up.delete("pod", "sneaky");
    held += 1;
    // Whoever may run privileged containers has the host anyway.
    let privileged = json!({"securityContext": {"privileged": true}});
    let yaml = pod_with("root", host_path(&data, ""), privileged, json!({}), "cat /v/h/kubeconfig");
    assert!(output(&up, &yaml, "root").contains("client-key-data"));
    up.delete("pod", "root");
    report(&format!("attacks through host paths: {held} tried, {held} held"));
    let gone = Command::new("umount").arg(&bind).status().unwrap();
    assert!(gone.success());
    up.stop_without_a_trace(&home);
}

/// Opens every hostile device and says what came of it.
const OPEN_ALL: &str =
    "for f in /v/h/*; do (: < $f) 2>&1 && echo READ $f; (: >> $f) 2>&1 && echo WROTE $f; done";

/// A directory with device nodes that everybody may open: of a disk, of memory and of the kernel's log.
fn hostile_nodes(home: &Home) -> std::path::PathBuf {
    let (image, dir) = (home.path().join("disk"), home.path().join("hostile"));
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    fs::create_dir(&dir).unwrap();
    let done = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
    let disk = fs::metadata(text(&done).trim()).unwrap().rdev();
    let minor = rustix::fs::minor(disk).to_string();
    for (name, kind, major, minor) in
        [("disk", "b", "7", minor.as_str()), ("memory", "c", "1", "1"), ("log", "c", "1", "11")]
    {
        let mut command = Command::new("mknod");
        command.args(["--mode", "0666"]).arg(dir.join(name)).args([kind, major, minor]);
        assert!(command.status().unwrap().success());
    }
    dir
}

#[test]
fn devices_on_a_volume_stay_shut_and_a_raw_block_volume_is_its_containers_alone() {
    if !can_run("a-devices") {
        return;
    }
    let home = Home::outside_tmp("a-devices");
    let up = Instance::up(&home, "data");
    let nodes = host_path(&hostile_nodes(&home), "Directory");
    let add = |names: &[&str]| json!({"securityContext": {"capabilities": {"add": names}}});
    let user = json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}});
    let mut held = 0;
    for (name, context) in [("root", json!({})), ("mknod", add(&["MKNOD"])), ("user", user)] {
        let said = output(&up, &pod_with(name, nodes.clone(), context, json!({}), OPEN_ALL), name);
        assert_eq!(said.matches("Operation not permitted").count(), 6, "{name}: {said}");
        assert!(!said.contains("READ") && !said.contains("WROTE"), "{name}: {said}");
        held += 6;
    }
    // Whoever may run privileged containers has the host anyway, as with other runtimes.
    let privileged = json!({"securityContext": {"privileged": true}});
    let yaml = pod_with("privileged", nodes.clone(), privileged, json!({}), OPEN_ALL);
    assert!(output(&up, &yaml, "privileged").contains("READ /v/h/disk\nWROTE /v/h/disk"));

    // The first container has a raw block volume, the second has not, and makes a node for it.
    up.apply(&(claim("raw", "longshore-local") + "  volumeMode: Block\n"));
    let script = format!(
        "echo mine > /dev/raw && head -c 4 /dev/raw && echo; stat -L -c 'minor %T' /dev/raw; {OPEN_ALL}; \
         while :; do {OPEN_ALL}; echo round; sleep 0.2; done"
    );
    let thief = "until [ -s /v/s/minor ]; do sleep 0.1; done; \
                 mknod /dev/stolen b 7 $(cat /v/s/minor) && (: < /dev/stolen) && echo STOLEN; echo tried; sleep 1000";
    let volumes = json!([nodes[0], {"name": "s", "emptyDir": {}},
        {"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}}]);
    let mounts = json!([{"name": "h", "mountPath": "/v/h"}, {"name": "s", "mountPath": "/v/s"}]);
    let script = format!("echo $((0x$(stat -L -c %T /dev/raw))) > /v/s/minor; {script}");
    let main = json!({"volumeMounts": mounts, "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}]});
    let mut pod: Value =
        serde_json::from_str(&pod_with("raw", volumes, main, json!({}), &script)).unwrap();
    let mut other = json!({"name": "thief", "image": "host", "command": ["/bin/sh", "-c", thief],
        "volumeMounts": mounts});
    merge(&mut other, add(&["MKNOD"]));
    pod["spec"]["containers"].as_array_mut().unwrap().push(other);
    up.apply(&pod.to_string());
    let said = |up: &Instance, container: &str| text(&up.cli(&["logs", "raw", "-c", container]));
    let rounds = |up: &Instance| said(up, "main").matches("round").count();
    eventually("both have tried", || said(&up, "thief").contains("tried") && rounds(&up) > 1);
    assert!(said(&up, "main").contains("mine\n"), "{}", said(&up, "main"));
    assert!(said(&up, "thief").contains("Operation not permitted"), "{}", said(&up, "thief"));
    let before = rounds(&up);
    up.kill();
    let up = Instance::up(&home, "data");
    up.wait("pod", "raw", "was adopted", |pod| pod["status"]["phase"] == "Running");
    eventually("it tried again", || rounds(&up) > before + 1);
    for container in ["main", "thief"] {
        let said = said(&up, container);
        let broke = ["READ", "WROTE", "STOLEN"].iter().any(|word| said.contains(word));
        assert!(!broke, "{container}: {said}");
    }
    // Six by the owner of the raw block volume, one by the thief.
    held += 7;
    report(&format!("attacks through device nodes: {held} tried, {held} held"));
    for (kind, name) in [("pod", "raw"), ("pvc", "raw")] {
        up.delete(kind, name);
    }
    let disk = loops().into_iter().find(|(_, file)| Path::new(file) == home.path().join("disk"));
    assert!(Command::new("losetup").arg("-d").arg(disk.unwrap().0).status().unwrap().success());
    up.stop_without_a_trace(&home);
}

#[test]
fn scratch_space_and_secrets_are_where_they_should_be_and_bounded() {
    if !can_run("a-scratch") || !need("a-scratch", &[Need::Tool("cc")]) {
        return;
    }
    let home = Home::outside_tmp("a-scratch");
    let up = Instance::up(&home, "data");
    up.apply(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: default}\nstringData: {key: canary-4711}\n",
    );
    let volumes = json!([
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 256}},
    ]);
    // Errors come through another pipe, in no certain order.
    let script = "exec 2> /dev/null; head -c 20971520 /dev/zero > /v/memory/big; stat -f -c %T /v/memory /v/secret; \
                  wc -c < /v/memory/big; cat /v/secret/key; echo x > /v/secret/key || echo read-only; \
                  sleep 1000";
    up.apply(&pod_with("memory", volumes, json!({}), json!({}), script));
    up.wait("pod", "memory", "ran", |pod| pod["status"]["phase"] == "Running");
    eventually("it printed", || text(&up.cli(&["logs", "memory"])).contains("read-only"));
    let shown = text(&up.cli(&["logs", "memory"]));
    assert!(shown.contains("tmpfs\ntmpfs\n1048576\ncanary-4711"), "{shown}");
    let up = {
        up.kill();
        Instance::up(&home, "data")
    };
    up.wait("pod", "memory", "was adopted", |pod| pod["status"]["phase"] == "Running");
    up.delete("pod", "memory");
    assert_eq!(mounts_below(&home.path().join("data/nodes")), Vec::<String>::new());

    let volumes = json!([{"name": "disk", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let script = "head -c 20971520 /dev/zero > /v/disk/big; sleep 1000";
    up.apply(&pod_with("disk", volumes, json!({}), json!({}), script));
    up.wait("pod", "disk", "was evicted", |pod| pod["status"]["reason"] == "Evicted");
    let status = up.json("pod", "disk")["status"].clone();
    assert_eq!(status["phase"], "Failed");
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    assert!(ended.is_object(), "{status}");
    up.event("disk", &["Evicted", "exceeds the limit \"1Mi\""]);
    up.delete("pod", "disk");

    // A deep tree neither stops the removal nor costs a descriptor per level.
    let volumes = json!([{"name": "deep", "emptyDir": {}}]);
    let deep = compiled(&home, "deep", DEEP);
    let script = format!("cd /v/deep && {}", deep.display());
    let yaml = pod_with("deep", volumes, json!({}), json!({}), &script);
    assert!(output(&up, &yaml, "deep").contains("made"));
    let uid = up.json("pod", "deep")["metadata"]["uid"].as_str().unwrap().to_owned();
    up.delete("pod", "deep");
    let nodes = fs::read_dir(up.data_dir.join("nodes")).unwrap().flatten();
    for node in nodes {
        eventually("its directory went", || !node.path().join("pods").join(&uid).exists());
    }
    up.stop_without_a_trace(&home);
}
