//! Claims that are filled from a snapshot and from another claim, with the real binary and real data.
//!
//! Snapshots are cut of an idle volume and of one that a pod writes to, restored into claims of the same size and
//! of a larger one, and deleted before and after what came of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use common::*;
use serde_json::Value;

const HELD: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

fn from_snapshot_and_claim(test: &str, class: &str) {
    if !can_run(test) {
        return;
    }
    let home = Home::new(test);
    let up = Instance::up(&home, "data");
    up.apply(&claim("origin", class));
    let write =
        "head -c 2000000 /dev/urandom > /data/file && sha256sum /data/file > /data/sum && sync";
    up.apply(&pod("writer", "origin", write));
    up.wait("pod", "writer", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "writer"]).status.success());
    up.wait("pod", "writer", "went", Value::is_null);
    let name = up.json("pvc", "origin")["spec"]["volumeName"].as_str().unwrap().to_owned();
    up.apply(&snapshot("snap", "origin"));
    up.wait("volumesnapshot", "snap", "ready", ready);
    let seen = up.json("volumesnapshot", "snap");
    assert_eq!(seen["spec"]["volumeSnapshotClassName"], class, "the default class of its driver");

    // What is written after the snapshot is in the clone, and not in what is restored.
    up.apply(&pod("later", "origin", "echo later > /data/later && sync"));
    up.wait("pod", "later", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "later"]).status.success());
    up.wait("pod", "later", "went", Value::is_null);
    // One that is cut while a pod writes holds all that was synced before.
    up.apply(&pod(
        "busy",
        "origin",
        "n=0; while true; do n=$((n+1)); echo $n >> /data/log; sync; done",
    ));
    up.wait("pod", "busy", "runs", |pod| pod["status"]["phase"] == "Running");
    up.apply(&snapshot("busy", "origin"));
    up.wait("volumesnapshot", "busy", "ready", ready);
    up.delete("pod", "busy");
    let from = "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: snap}";
    let larger = filled("restored", class, from).replace("16Mi", "24Mi");
    up.apply(&larger);
    up.apply(&filled("again", class, &from.replace("name: snap", "name: busy")));
    up.apply(&filled("cloned", class, "{kind: PersistentVolumeClaim, name: origin}"));
    let restored = "sha256sum -c /data/sum && test ! -e /data/later && rm /data/file && sync";
    up.apply(&pod("reads-restored", "restored", restored));
    let cloned = "sha256sum -c /data/sum && grep -q later /data/later && rm /data/file && sync";
    up.apply(&pod("reads-cloned", "cloned", cloned));
    // Whole lines, counted from one without a gap.
    let counted = "sha256sum -c /data/sum && awk '$1 != NR {exit 1}' /data/log && sync";
    up.apply(&pod("reads-again", "again", counted));
    for name in ["reads-restored", "reads-cloned", "reads-again"] {
        up.wait("pod", name, "succeeded", succeeded);
        assert!(up.cli(&["delete", "pod", name]).status.success());
        up.wait("pod", name, "went", Value::is_null);
    }
    up.wait("volumesnapshot", "snap", "is free", |one| {
        let finalizers = one["metadata"]["finalizers"].as_array();
        finalizers.is_none_or(|all| !all.iter().any(|finalizer| finalizer == HELD))
    });

    // The source is as it was, and goes before its copies without harm.
    up.apply(&pod("reads-origin", "origin", "sha256sum -c /data/sum"));
    up.wait("pod", "reads-origin", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "reads-origin"]).status.success());
    up.wait("pod", "reads-origin", "went", Value::is_null);
    assert!(up.cli(&["delete", "pvc", "origin"]).status.success());
    up.wait("pv", &name, "went", Value::is_null);
    // A snapshot outlives its source, and goes before or after what was restored from it.
    up.delete("volumesnapshot", "busy");
    up.apply(&pod("reads-later", "cloned", "grep -q later /data/later"));
    up.wait("pod", "reads-later", "succeeded", succeeded);
    up.delete("pod", "reads-later");
    for claim in ["restored", "cloned", "again"] {
        up.delete("pvc", claim);
    }
    up.delete("volumesnapshot", "snap");
    let contents: Value =
        serde_json::from_slice(&up.cli(&["get", "volumesnapshotcontents", "-o", "json"]).stdout)
            .unwrap();
    assert_eq!(contents["items"].as_array().map(Vec::len), Some(0));
    eventually("no image file is left", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
}

#[test]
fn on_the_local_driver() {
    from_snapshot_and_claim("sources-local", "longshore-local");
}

#[test]
fn on_the_shared_driver() {
    from_snapshot_and_claim("sources-shared", "longshore-shared");
}

#[test]
fn a_group_is_cut_at_once_restored_and_deleted() {
    if !can_run("sources-group") {
        return;
    }
    let home = Home::new("sources-group");
    let up = Instance::up(&home, "data");
    for name in ["one", "two"] {
        let labelled = claim(name, "longshore-local-immediate")
            .replace("namespace: default}", "namespace: default, labels: {app: db}}");
        up.apply(&labelled);
        up.apply(&pod(name, name, &format!("echo {name} > /data/name && sync")));
        up.wait("pod", name, "succeeded", succeeded);
        up.delete("pod", name);
    }
    up.apply(
        "apiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshotClass\n\
         metadata: {name: groups}\ndriver: local.csi.longshore.dev\ndeletionPolicy: Delete\n---\n\
         apiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshot\n\
         metadata: {name: group, namespace: default}\n\
         spec: {volumeGroupSnapshotClassName: groups, source: {selector: {matchLabels: {app: db}}}}\n",
    );
    up.wait("volumegroupsnapshot", "group", "ready", ready);
    let members = || {
        let done = up.cli(&["get", "volumesnapshots", "-o", "json"]);
        let list: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    };
    eventually("two members are ready", || members().len() == 2 && members().iter().all(ready));
    let of_two = members()
        .into_iter()
        .find(|member| member["spec"]["source"]["persistentVolumeClaimName"] == "two")
        .unwrap();
    let name = of_two["metadata"]["name"].as_str().unwrap();
    for claim in ["one", "two"] {
        up.delete("pvc", claim);
    }
    let from = format!("{{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: {name}}}");
    up.apply(&filled("restored", "longshore-local-immediate", &from));
    up.apply(&pod("reads", "restored", "grep -q two /data/name"));
    up.wait("pod", "reads", "succeeded", succeeded);
    up.delete("pod", "reads");
    up.delete("volumegroupsnapshot", "group");
    eventually("the members went with the group", || members().is_empty());
    up.delete("pvc", "restored");
    eventually("no image file is left", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
}
