//! Snapshots of volumes under load on real data: what is on them, what their order is, where they can be restored, and
//! what is left of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use serde_json::Value;

/// Writes numbers, each of which is on disk before it is told.
const COUNT: &str =
    "n=0; while :; do n=$((n+1)); echo $n >> /data/log; sync /data/log; echo $n > /data/told; done";

/// The number that [`COUNT`] told last; what is told is on disk.
fn told(up: &Instance, pod: &str) -> u64 {
    let mut command = Command::new(binary());
    command.args(["exec", pod, "--kubeconfig"]).arg(&up.kubeconfig);
    let done = command.args(["--", "cat", "/data/told"]).output().unwrap();
    String::from_utf8_lossy(&done.stdout).trim().parse().unwrap_or(0)
}

fn image(up: &Instance, handle: &str) -> PathBuf {
    let name = format!("{handle}.img");
    let all = images_below(&up.data_dir);
    all.into_iter().find(|path| path.ends_with(&name)).unwrap_or_else(|| panic!("no {name}"))
}

fn content_of(up: &Instance, snapshot: &str) -> Value {
    let seen = up.json("volumesnapshot", snapshot);
    let bound = seen["status"]["boundVolumeSnapshotContentName"].as_str().unwrap().to_owned();
    up.json("volumesnapshotcontent", &bound)
}

/// A check that repairs nothing and replays no journal: what needs either is no clean filesystem.
fn is_clean(image: &Path) {
    let done = Command::new("e2fsck").args(["-f", "-n"]).arg(image).output().unwrap();
    let said = text(&done);
    assert!(done.status.success() && !said.contains("journal"), "{}: {said}", image.display());
}

fn nothing_is_left(up: Instance, home: &Home) {
    for kind in ["volumesnapshots", "volumesnapshotcontents", "volumegroupsnapshotcontents"] {
        eventually(kind, || up.list(kind).is_empty());
    }
    eventually("no image file is left", || images_below(&up.data_dir).is_empty());
    up.stop_without_a_trace(home);
}

/// On both drivers: the filesystem in the snapshot is clean as it is, and has all that was synced before.
#[test]
fn a_snapshot_under_load_is_clean_and_has_all_that_was_synced() {
    if !can_run("snapshots-load") {
        return;
    }
    let home = Home::new("snapshots-load");
    let up = Instance::up(&home, "data");
    for class in ["longshore-local", "longshore-shared"] {
        up.apply(&claim("origin", class));
        up.apply(&pod("busy", "origin", COUNT));
        eventually("something is written", || told(&up, "busy") > 20);
        let mut least = Vec::new();
        for name in ["first", "second", "third"] {
            least.push((name, told(&up, "busy")));
            up.apply(&snapshot(name, "origin"));
            up.wait("volumesnapshot", name, "ready", ready);
            let handle = content_of(&up, name)["status"]["snapshotHandle"].clone();
            is_clean(&image(&up, handle.as_str().unwrap()));
        }
        // The source goes first, its snapshots in an order that is not theirs.
        up.delete("pod", "busy");
        up.delete("pvc", "origin");
        for (name, least) in [least[1], least[2], least[0]] {
            let restored = filled("restored", class, &from_snapshot(name)).replace("16Mi", "24Mi");
            up.apply(&restored);
            let read = format!(
                "awk '$1 != NR {{exit 1}} END {{exit NR < {least}}}' /data/log && \
                 [ $(stat -f -c '%b * %S' /data | xargs expr) -gt 18000000 ] && echo new >> /data/log && sync"
            );
            up.run_pod("reads", "restored", &read);
            let handle = up.bound("restored")["spec"]["csi"]["volumeHandle"].clone();
            is_clean(&image(&up, handle.as_str().unwrap()));
            up.delete("pvc", "restored");
            up.delete("volumesnapshot", name);
        }
    }
    nothing_is_left(up, &home);
}

/// Two volumes of one pod, which writes each number to the first and then to the second.
fn two_volumes(name: &str, first: &str, second: &str, script: &str) -> String {
    pod(name, first, script)
        .replace(
            "volumeMounts: [{name: data, mountPath: /data}]",
            "volumeMounts: [{name: data, mountPath: /data}, {name: more, mountPath: /more}]",
        )
        .replace(
            &format!("persistentVolumeClaim: {{claimName: {first}}}\n"),
            &format!(
                "persistentVolumeClaim: {{claimName: {first}}}\n  - name: more\n    \
                 persistentVolumeClaim: {{claimName: {second}}}\n"
            ),
        )
}

const GROUP_CLASS: &str = "apiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshotClass\n\
     metadata: {name: groups}\ndriver: local.csi.longshore.dev\ndeletionPolicy: Delete\n";

fn group(name: &str, app: &str) -> String {
    format!(
        "apiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshot\n\
         metadata: {{name: {name}, namespace: default}}\n\
         spec: {{volumeGroupSnapshotClassName: groups, source: {{selector: {{matchLabels: {{app: {app}}}}}}}}}\n"
    )
}

fn labelled(name: &str, app: &str) -> String {
    claim(name, "longshore-local")
        .replace("namespace: default}", &format!("namespace: default, labels: {{app: {app}}}}}"))
}

/// The member of a group that is of this claim.
fn member(up: &Instance, group: &str, claim: &str) -> String {
    let of = |one: &Value| {
        one["metadata"]["ownerReferences"][0]["name"] == group
            && one["spec"]["source"]["persistentVolumeClaimName"] == claim
    };
    let found = up.list("volumesnapshots").into_iter().find(of);
    found.unwrap_or_default()["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_group_keeps_the_order_of_writes_across_its_volumes() {
    if !can_run("snapshots-order") {
        return;
    }
    let home = Home::new("snapshots-order");
    let up = Instance::up(&home, "data");
    up.apply(GROUP_CLASS);
    for name in ["log", "index"] {
        up.apply(&labelled(name, "db"));
    }
    let write = "n=0; while :; do n=$((n+1)); echo $n >> /data/log; sync /data/log; \
        echo $n >> /more/index; sync /more/index; done";
    up.apply(&two_volumes("db", "log", "index", write));
    up.wait("pod", "db", "runs", |pod| pod["status"]["phase"] == "Running");
    let groups = ["g1", "g2", "g3"];
    for name in groups {
        up.apply(&group(name, "db"));
        up.wait("volumegroupsnapshot", name, "ready", ready);
    }
    up.delete("pod", "db");
    for name in groups {
        for claim in ["log", "index"] {
            let (from, restored) = (member(&up, name, claim), format!("{claim}-restored"));
            up.wait("volumesnapshot", &from, "ready", ready);
            up.apply(&filled(&restored, "longshore-local", &from_snapshot(&from)));
        }
        // Whatever the second has, the first had before; and it is not more than one number ahead.
        let read = "a=$(wc -l < /data/log); b=$(wc -l < /more/index); echo $a $b; \
            [ $b -gt 0 ] && [ $a -ge $b ] && [ $a -le $((b+1)) ]";
        up.apply(&two_volumes("reads", "log-restored", "index-restored", read));
        up.wait("pod", "reads", "succeeded", succeeded);
        for (kind, name) in [("pod", "reads"), ("pvc", "log-restored"), ("pvc", "index-restored")] {
            up.delete(kind, name);
        }
    }
    for name in ["g2", "g1", "g3"] {
        up.delete("volumegroupsnapshot", name);
    }
    for name in ["log", "index"] {
        up.delete("pvc", name);
    }
    nothing_is_left(up, &home);
}

/// Upstream's stress test of groups: pods with their volumes, and several group snapshots of each at once. Ten and ten
/// with `LONGSHORE_LONG=1`.
/// case: snapshotter/81
#[test]
fn many_groups_of_many_pods() {
    if !can_run("snapshots-stress") {
        return;
    }
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let many = if long { 10 } else { 3 };
    let home = Home::new("snapshots-stress");
    let up = Instance::up(&home, "data");
    up.apply(GROUP_CLASS);
    let pods: Vec<String> = (0..many).map(|n| format!("pod-{n}")).collect();
    for name in &pods {
        let claims = [format!("{name}-a"), format!("{name}-b")];
        for claim in &claims {
            up.apply(&labelled(claim, name));
        }
        let write = "while :; do date >> /data/log; date >> /more/log; sync; sleep 0.2; done";
        up.apply(&two_volumes(name, &claims[0], &claims[1], write));
    }
    for name in &pods {
        up.wait("pod", name, "runs", |pod| pod["status"]["phase"] == "Running");
    }
    let groups: Vec<String> =
        pods.iter().flat_map(|pod| (0..many).map(move |n| format!("{pod}-g{n}"))).collect();
    for name in &groups {
        up.apply(&group(name, name.rsplit_once("-g").unwrap().0));
    }
    for name in &groups {
        up.wait("volumegroupsnapshot", name, "ready", ready);
    }
    eventually("every member is ready", || {
        let members = up.list("volumesnapshots");
        members.len() == 2 * groups.len() && members.iter().all(ready)
    });
    for name in &groups {
        assert!(up.cli(&["delete", "volumegroupsnapshot", name, "--wait=false"]).status.success());
    }
    eventually("every group is gone", || up.list("volumegroupsnapshots").is_empty());
    for name in &pods {
        up.delete("pod", name);
        up.delete("pvc", &format!("{name}-a"));
        up.delete("pvc", &format!("{name}-b"));
    }
    nothing_is_left(up, &home);
}

/// Both take a while on a pool that shares no blocks; what they are made from is deleted meanwhile.
#[test]
fn a_restore_and_a_clone_outlive_their_sources() {
    const HELD: &str = "provisioner.storage.kubernetes.io/";
    if !can_run("snapshots-going") {
        return;
    }
    let home = Home::new("snapshots-going");
    let up = Instance::up(&home, "data");
    let class = "longshore-local-immediate";
    let large = |yaml: String| yaml.replace("16Mi", "256Mi");
    up.apply(&large(claim("origin", class)));
    let write =
        "head -c 180000000 /dev/urandom > /data/file && sha256sum /data/file > /data/sum && sync";
    up.run_pod("writes", "origin", write);
    up.apply(&snapshot("snap", "origin"));
    up.wait("volumesnapshot", "snap", "ready", ready);
    let begun = |source: &Value| {
        let finalizers = source["metadata"]["finalizers"].to_string();
        finalizers.contains(HELD)
    };
    for (kind, source, copy, from) in [
        ("volumesnapshot", "snap", "restored", from_snapshot("snap")),
        ("pvc", "origin", "cloned", "{kind: PersistentVolumeClaim, name: origin}".to_owned()),
    ] {
        up.apply(&large(filled(copy, class, &from)));
        eventually("the copy is begun, or made", || {
            begun(&up.json(kind, source)) || up.json("pvc", copy)["status"]["phase"] == "Bound"
        });
        assert!(up.cli(&["delete", kind, source, "--wait=false"]).status.success());
        up.run_pod("reads", copy, "sha256sum -c /data/sum");
        up.wait(kind, source, "went", Value::is_null);
    }
    for name in ["cloned", "restored"] {
        up.delete("pvc", name);
    }
    nothing_is_left(up, &home);
}

/// A shared snapshot is restored wherever the pod runs. A local one stays on its node, and a claim that cannot have
/// it says why.
#[test]
fn where_a_snapshot_can_be_restored() {
    if !can_run("snapshots-nodes") {
        return;
    }
    let home = Home::new("snapshots-nodes");
    let up = Instance::start(&home, "data", &["up", "--nodes", "2", "--node-name", "n"]);
    let nodes: Vec<String> = up
        .list("nodes")
        .iter()
        .map(|node| node["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    let [here, there] = [&nodes[0], &nodes[1]];
    for (name, class) in [("shared", "longshore-shared"), ("local", "longshore-local")] {
        up.apply(&claim(name, class));
        let write = pod(name, name, "echo kept > /data/file && sync");
        up.apply(&on_node(&write, here));
        up.wait("pod", name, "succeeded", succeeded);
        up.delete("pod", name);
        up.apply(&snapshot(name, name));
        up.wait("volumesnapshot", name, "ready", ready);
        up.apply(&filled(&format!("{name}-there"), class, &from_snapshot(name)));
        let read =
            pod(&format!("{name}-there"), &format!("{name}-there"), "grep -q kept /data/file");
        up.apply(&on_node(&read, there));
    }
    up.wait("pod", "shared-there", "succeeded", succeeded);
    let said = up.event("local-there", &["is not on node", there]);
    assert!(said.contains("its pod has to run where it was cut"), "{said}");
    // On its own node it works.
    up.delete("pod", "local-there");
    up.delete("pvc", "local-there");
    up.apply(&filled("local-here", "longshore-local", &from_snapshot("local")));
    up.apply(&on_node(&pod("local-here", "local-here", "grep -q kept /data/file"), here));
    up.wait("pod", "local-here", "succeeded", succeeded);
    for (kind, name) in [
        ("pod", "local-here"),
        ("pod", "shared-there"),
        ("pvc", "local-here"),
        ("pvc", "shared-there"),
        ("pvc", "local"),
        ("pvc", "shared"),
        ("volumesnapshot", "local"),
        ("volumesnapshot", "shared"),
    ] {
        up.delete(kind, name);
    }
    nothing_is_left(up, &home);
}

/// A snapshot leaves one instance as a file and becomes one of another.
#[test]
fn a_snapshot_is_exported_and_imported() {
    if !can_run("snapshots-file") {
        return;
    }
    let home = Home::new("snapshots-file");
    let up = Instance::up(&home, "data");
    up.apply(&claim("origin", "longshore-local"));
    let write =
        "head -c 3000000 /dev/urandom > /data/file && sha256sum /data/file > /data/sum && sync";
    up.run_pod("writes", "origin", write);
    up.apply(&snapshot("snap", "origin"));
    up.wait("volumesnapshot", "snap", "ready", ready);
    let transfer = |up: &Instance, args: &[&str], stdin: &[u8]| {
        use std::io::Write as _;
        let mut child = Command::new(binary())
            .arg("snapshot")
            .args(args)
            .arg("--data-dir")
            .arg(&up.data_dir)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // One that refuses reads nothing.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        child.wait_with_output().unwrap()
    };
    let file = home.path().join("snap.file");
    let name = file.display().to_string();
    let done = transfer(&up, &["export", "snap", &name], b"");
    assert!(done.status.success(), "{}", text(&done));
    let piped = transfer(&up, &["export", "snap", "-"], b"");
    let whole = std::fs::read(&file).unwrap();
    assert!(piped.status.success() && piped.stdout == whole, "{}", text(&piped));
    let refused = |done: std::process::Output, words: &str| {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(words), "{words}: {said}");
    };
    refused(
        transfer(&up, &["export", "lost", &name], b""),
        "there is no VolumeSnapshot default/lost",
    );
    refused(
        transfer(&up, &["import", "snap", &name], b""),
        "VolumeSnapshot default/snap is there already",
    );
    up.delete("volumesnapshot", "snap");
    up.delete("pvc", "origin");
    nothing_is_left(up, &home);

    let other = Instance::up(&home, "other");
    let half = &whole[..whole.len() / 2];
    refused(transfer(&other, &["import", "snap", "-"], half), "it ends in the middle");
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    refused(transfer(&other, &["import", "snap", "-"], &changed), "its checksum does not fit");
    refused(
        transfer(&other, &["import", "snap", "-"], b"PK"),
        "does not begin as an exported snapshot",
    );
    assert!(images_below(&other.data_dir).is_empty() && other.list("volumesnapshots").is_empty());
    for class in ["longshore-local", "longshore-shared"] {
        let done = transfer(&other, &["import", "snap", &name, "--class", class], b"");
        assert!(done.status.success(), "{}", text(&done));
        assert_eq!(other.json("volumesnapshot", "snap")["status"]["readyToUse"], true);
        let larger = filled("restored", class, &from_snapshot("snap")).replace("16Mi", "24Mi");
        other.apply(&larger);
        other.run_pod("reads", "restored", "sha256sum -c /data/sum");
        other.delete("volumesnapshot", "snap");
        other.delete("pvc", "restored");
    }
    // Without a server: the pool alone.
    let pool = home.path().join("pool");
    std::fs::create_dir(&pool).unwrap();
    let pool = pool.display().to_string();
    let alone = |args: &[&str]| Command::new(binary()).arg("snapshot").args(args).output().unwrap();
    let done = alone(&["import", "snap", &name, "--pool", &pool]);
    let said = text(&done);
    assert!(done.status.success(), "{said}");
    let handle = said.split(' ').next().unwrap();
    let again = home.path().join("again.file").display().to_string();
    let done = alone(&["export", handle, &again, "--pool", &pool]);
    assert!(done.status.success(), "{}", text(&done));
    let done = alone(&["import", "again", &again, "--pool", &pool]);
    assert!(done.status.success() && !text(&done).contains(handle), "{}", text(&done));
    nothing_is_left(other, &home);
}
