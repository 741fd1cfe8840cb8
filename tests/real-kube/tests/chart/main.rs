//! Our image and our chart on a real cluster: imported into containerd, installed by the real helm, run as
//! pods under the accounts and rules of the chart.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../support/mod.rs"]
mod support;

mod helm;
mod swap;

use std::fs;
use std::ops::Range;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, Options, node};
use support::{TOOLS, eventually, ok, options, pod, step};

use helm::Helm;

const CLASS: &str = "longshore-local";

fn claim(cluster: &Cluster, name: &str, size: &str, more: &str) {
    let text = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\n\
         spec:\n  storageClassName: {CLASS}\n  accessModes: [ReadWriteOnce]\n\
         \x20 resources: {{requests: {{storage: {size}}}}}\n{more}"
    );
    ok(cluster, &["apply", "--filename", "-"], &text);
}

fn read(cluster: &Cluster, pod: &str, file: &str) -> String {
    ok(cluster, &["exec", pod, "--", "cat", file], "")
}

/// A value of an object, empty while it has none.
fn value(cluster: &Cluster, object: &str, path: &str) -> String {
    ok(cluster, &["get", object, "--output", &format!("jsonpath={{{path}}}")], "")
}

/// A volume is made, written, snapshotted, grown while a pod writes, restored and cloned.
fn life_of_a_volume(cluster: &Cluster) {
    claim(cluster, "first", "320Mi", "");
    let write = "echo kept > /data/file && sync && touch /tmp/done && sleep 1000";
    step("  a pod with a new claim", || pod(cluster, "writer", write, Some("first")));

    let snapshot = "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\n\
                    metadata: {name: cut}\nspec: {volumeSnapshotClassName: longshore-local, \
                    source: {persistentVolumeClaimName: first}}\n";
    ok(cluster, &["apply", "--filename", "-"], snapshot);
    step("  its snapshot", || {
        eventually("the snapshot is ready", || {
            value(cluster, "volumesnapshot/cut", ".status.readyToUse") == "true"
        });
    });
    ok(cluster, &["exec", "writer", "--", "sh", "-c", "echo changed > /data/file && sync"], "");

    let grow = r#"{"spec":{"resources":{"requests":{"storage":"400Mi"}}}}"#;
    ok(cluster, &["patch", "pvc", "first", "--patch", grow], "");
    step("  its growth under the pod", || {
        eventually("the claim has what it asks for", || {
            value(cluster, "pvc/first", ".status.capacity.storage") == "400Mi"
        });
    });
    let blocks = ok(cluster, &["exec", "writer", "--", "df", "-k", "/data"], "");
    let kib: u64 =
        blocks.lines().last().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    // Its log takes 64 MiB.
    assert!(kib > 330 * 1024, "the filesystem has {kib} KiB");

    let from =
        "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: cut}\n";
    claim(cluster, "restored", "400Mi", from);
    let idle = "touch /tmp/done && sleep 1000";
    step("  a pod with the restored volume", || pod(cluster, "reader", idle, Some("restored")));
    assert_eq!(read(cluster, "reader", "/data/file"), "kept\n");

    claim(cluster, "cloned", "400Mi", "  dataSource: {kind: PersistentVolumeClaim, name: first}\n");
    step("  a pod with a clone", || pod(cluster, "cloner", idle, Some("cloned")));
    assert_eq!(read(cluster, "cloner", "/data/file"), "changed\n");
    ok(cluster, &["delete", "pod/reader", "pod/cloner", "pvc/restored", "pvc/cloned"], "");
}

/// A volume as a block device, and one that lives as long as its pod.
fn other_kinds_of_volumes(cluster: &Cluster) {
    let pods = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {storageClassName: longshore-local, volumeMode: Block, accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: kinds}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  securityContext: {fsGroup: 4000}
  containers:
  - name: main
    image: longshore.test/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, "echo raw | dd of=/dev/raw && echo x > /inline/file && touch /tmp/done && sleep 1000"]
    readinessProbe: {exec: {command: [test, -e, /tmp/done]}, periodSeconds: 1}
    volumeDevices: [{name: raw, devicePath: /dev/raw}]
    volumeMounts: [{name: inline, mountPath: /inline}]
  volumes:
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  - name: inline
    csi: {driver: local.csi.longshore.dev, volumeAttributes: {size: 32Mi}}
"#;
    ok(cluster, &["apply", "--filename", "-"], pods);
    ok(cluster, &["wait", "--for=condition=Ready", "pod/kinds", "--timeout=120s"], "");
    let group = ok(cluster, &["exec", "kinds", "--", "stat", "-c", "%g", "/inline/file"], "");
    assert_eq!(group, "4000\n", "fsGroup of an inline volume");
    ok(cluster, &["delete", "pod/kinds", "pvc/raw", "--timeout=90s"], "");
}

/// The pods of the chart are ended in the middle of work; what runs goes on, and work is done.
fn parts_restart(cluster: &Cluster, namespace: &str) {
    claim(cluster, "meanwhile", "320Mi", "");
    let all = ["--namespace", namespace, "delete", "pods", "--all", "--wait=false"];
    ok(cluster, &all, "");
    let idle = "touch /tmp/done && sleep 1000";
    pod(cluster, "patient", idle, Some("meanwhile"));
    assert_eq!(read(cluster, "writer", "/data/file"), "changed\n");
    ok(cluster, &["delete", "pod/patient", "pvc/meanwhile", "--timeout=90s"], "");
    eventually("only the first volume is left", || {
        ok(cluster, &["get", "pv", "--output", "name"], "").lines().count() == 1
    });
}

fn audited(cluster: &Cluster) -> String {
    fs::read_to_string(cluster.audit_log().unwrap()).unwrap()
}

/// But for one: the chart takes the roles of its accounts away while its pods still end, in the part of the log that
/// `ending` covers, and a provisioner then makes a capacity anew that went with its owner.
fn nothing_was_forbidden(cluster: &Cluster, account: &str, ending: &Range<usize>) {
    let log = audited(cluster);
    let mut at = 0;
    let mut refused: Vec<&str> = Vec::new();
    for line in log.split_inclusive('\n') {
        let made_anew = ending.contains(&at)
            && line.contains("/csistoragecapacities\"")
            && line.contains(r#""verb":"create""#);
        at += line.len();
        if line.contains(account) && line.contains(r#""code":403"#) && !made_anew {
            refused.push(line);
        }
    }
    assert!(refused.is_empty(), "{} refused requests, the first: {}", refused.len(), refused[0]);
}

#[test]
#[ignore = "needs the image: `cargo xtask real-kube suite`, which CI runs"]
fn the_chart_serves_volumes_on_a_real_cluster() {
    if !node::possible() || !tools::need(&TOOLS) || !tools::need(&[Tool::Helm]) {
        return;
    }
    let image = std::env::var_os("LONGSHORE_IMAGE").expect("LONGSHORE_IMAGE names the archive");
    let settings = Options { service_accounts: true, audit: true, ..options(Controllers::All) };
    let cluster = step("the cluster", || Cluster::start(&settings)).unwrap();
    step("the image", || cluster.node().unwrap().import_archive(image.as_ref())).unwrap();
    let helm = Helm::new(&cluster);

    let earlier = helm.packed("0.0.9");
    step("an earlier chart", || helm.install("upgrade", &["--install"], &earlier));
    step("helm test", || helm.ok(&["test", helm::RELEASE, "--namespace", helm::NAMESPACE]));
    step("a volume's life", || life_of_a_volume(&cluster));
    step("block and inline volumes", || other_kinds_of_volumes(&cluster));
    step("the upgrade", || helm.install("upgrade", &[], &helm::checkout()));
    assert_eq!(read(&cluster, "writer", "/data/file"), "changed\n");
    step("restarts of every part", || parts_restart(&cluster, helm::NAMESPACE));

    let begin = audited(&cluster).len();
    step("the end of the chart", || {
        helm.ok(&["uninstall", helm::RELEASE, "--namespace", helm::NAMESPACE, "--wait"]);
        let running = ["get", "pods", "--namespace", helm::NAMESPACE, "--output", "name"];
        let running = [running.as_slice(), &["--field-selector=status.phase=Running"]].concat();
        eventually("its pods have ended", || ok(&cluster, &running, "").is_empty());
    });
    let ending = begin..audited(&cluster).len();
    assert_eq!(read(&cluster, "writer", "/data/file"), "changed\n");
    assert_eq!(value(&cluster, "pvc/first", ".status.phase"), "Bound");
    let kept = value(&cluster, "volumesnapshot/cut", ".status.readyToUse");
    assert_eq!(kept, "true", "CRDs and snapshots stay");
    step("the chart again", || helm.install("install", &[], &helm::checkout()));
    let all = ["delete", "pod/writer", "pvc/first", "volumesnapshot/cut", "--timeout=90s"];
    step("the end of the volume", || ok(&cluster, &all, ""));
    eventually("volumes and contents are deleted", || {
        ok(&cluster, &["get", "pv,volumesnapshotcontents", "--output", "name"], "").is_empty()
    });
    nothing_was_forbidden(&cluster, "system:serviceaccount:longshore-system:", &ending);
    let left = std::path::Path::new("/dev/termination-log");
    assert!(!left.exists(), "the driver's container left {} on the machine", left.display());
    step("the end", || cluster.stop()).unwrap();
}
