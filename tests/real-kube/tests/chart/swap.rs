//! Sidecars of another driver are exchanged for ours and back, in manifests of the shapes in which public drivers
//! have them: only the image changes. With `LONGSHORE_LONG=1` also one by one, all in one by the patches of
//! `docs/on-a-cluster.md`, and in all shapes: each exchange waits for the leases of the last one.

use std::fs;
use std::path::Path;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, Options, drivers, node};
use serde_json::{Value, json};

use crate::support::{TOOLS, eventually, ok, options, pod, step};
use crate::value;

const DRIVER: &str = "hostpath.csi.k8s.io";
const DEPLOYMENT: &str = "deployment/csi-controller";

/// A sidecar: its container, the official program and its version.
const SIDECARS: [(&str, Tool, &str); 3] = [
    ("csi-provisioner", Tool::CsiProvisioner, "v5.3.0"),
    ("csi-resizer", Tool::CsiResizer, "v1.14.0"),
    ("csi-snapshotter", Tool::CsiSnapshotter, "v8.6.0"),
];

/// Arguments of the sidecars in the manifests of public drivers, in the order of [`SIDECARS`].
const SHAPES: [(&str, [&[&str]; 3]); 3] = [
    (
        "EBS",
        [
            &[
                "--timeout=60s",
                "--csi-address=$(ADDRESS)",
                "--v=2",
                "--feature-gates=Topology=true",
                "--extra-create-metadata",
                "--leader-election=true",
                "--default-fstype=ext4",
                "--kube-api-qps=20",
                "--kube-api-burst=100",
                "--worker-threads=100",
                "--retry-interval-max=30m",
            ],
            &[
                "--timeout=60s",
                "--csi-address=$(ADDRESS)",
                "--v=2",
                "--handle-volume-inuse-error=false",
                "--leader-election=true",
                "--kube-api-qps=20",
                "--kube-api-burst=100",
                "--workers=100",
                "--retry-interval-max=30m",
            ],
            &[
                "--csi-address=$(ADDRESS)",
                "--leader-election=true",
                "--v=2",
                "--extra-create-metadata",
                "--kube-api-qps=20",
                "--kube-api-burst=100",
                "--worker-threads=100",
                "--retry-interval-max=30m",
            ],
        ],
    ),
    (
        "ceph-csi",
        [
            &[
                "--csi-address=$(ADDRESS)",
                "--v=1",
                "--timeout=150s",
                "--retry-interval-start=500ms",
                "--leader-election=true",
                "--leader-election-namespace=$(NAMESPACE)",
                "--feature-gates=Topology=true",
                "--extra-create-metadata=true",
                "--prevent-volume-mode-conversion=true",
                "--default-fstype=ext4",
                "--http-endpoint=$(POD_IP):8090",
            ],
            &[
                "--csi-address=$(ADDRESS)",
                "--v=1",
                "--timeout=150s",
                "--leader-election",
                "--leader-election-namespace=$(NAMESPACE)",
                "--retry-interval-start=500ms",
                "--handle-volume-inuse-error=false",
                "--http-endpoint=$(POD_IP):8091",
            ],
            &[
                "--csi-address=$(ADDRESS)",
                "--v=1",
                "--timeout=150s",
                "--leader-election=true",
                "--leader-election-namespace=$(NAMESPACE)",
                "--extra-create-metadata=true",
                "--http-endpoint=$(POD_IP):8092",
            ],
        ],
    ),
    (
        "NFS",
        [
            &[
                "-v=2",
                "--csi-address=$(ADDRESS)",
                "--leader-election",
                "--leader-election-namespace=default",
                "--extra-create-metadata=true",
                "--feature-gates=Topology=true",
                "--timeout=1200s",
                "--retry-interval-max=30m",
            ],
            &[
                "-csi-address=$(ADDRESS)",
                "-v=2",
                "-leader-election",
                "--leader-election-namespace=default",
                "-handle-volume-inuse-error=false",
            ],
            &[
                "--v=2",
                "--csi-address=$(ADDRESS)",
                "--leader-election-namespace=default",
                "--leader-election",
                "--timeout=1200s",
                "--retry-interval-max=30m",
            ],
        ],
    ),
];

fn official(name: &str, version: &str) -> String {
    format!("registry.test/sig-storage/{name}:{version}")
}

fn ours(name: &str) -> String {
    format!("longshore.test/longshore/{name}:test")
}

/// The driver's controller Deployment, with the official images.
fn deployment(cluster: &Cluster, socket: &Path, args: &[&[&str]; 3]) -> Value {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let env = json!([
        {"name": "ADDRESS", "value": "/csi/csi.sock"},
        field("NAMESPACE", "metadata.namespace"),
        field("POD_IP", "status.podIP"),
        {"name": "KUBERNETES_SERVICE_HOST", "value": node::API_ADDRESS},
        {"name": "KUBERNETES_SERVICE_PORT", "value": cluster.port()},
    ]);
    let container = |(name, version, args): (&str, &str, &&[&str])| {
        json!({"name": name, "image": official(name, version), "imagePullPolicy": "Never",
            "args": args, "env": env, "volumeMounts": [{"name": "socket", "mountPath": "/csi"}]})
    };
    let containers = SIDECARS.iter().zip(args);
    let containers: Vec<Value> =
        containers.map(|((name, _, version), args)| container((name, version, args))).collect();
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "csi-controller"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "csi-controller"}},
            "template": {"metadata": {"labels": {"app": "csi-controller"}}, "spec": {
                "serviceAccountName": "csi-controller", "terminationGracePeriodSeconds": 2,
                "tolerations": [{"operator": "Exists"}], "containers": containers,
                "volumes": [{"name": "socket", "hostPath": {"path": socket.parent().unwrap()}}]}}}})
}

/// The patch of `docs/on-a-cluster.md` that puts all sidecars of a driver of this shape into one container.
fn documented_patch(shape: &str) -> Value {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/on-a-cluster.md");
    let text = fs::read_to_string(page).unwrap();
    let begin = format!("```yaml needs-cluster\n# {shape}: ");
    let (_, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no patch for {shape}"));
    let (_, rest) = rest.split_once('\n').unwrap();
    serde_saphyr::from_str(rest.split_once("```").unwrap().0).unwrap()
}

/// The container of a documented patch.
fn one_container(patch: &mut Value) -> &mut Value {
    let containers = patch["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
    containers.iter_mut().find(|one| one["name"] == "csi-sidecars").unwrap()
}

/// Puts all sidecars into one container, as documented, with our image and the socket of our Deployment.
fn all_in_one(cluster: &Cluster, shape: &str) {
    let mut patch = documented_patch(shape);
    let one = one_container(&mut patch);
    let like = ok(cluster, &["get", DEPLOYMENT, "--output", "json"], "");
    let like: Value = serde_json::from_str(&like).unwrap();
    let like = &like["spec"]["template"]["spec"]["containers"][0];
    one["image"] = json!(ours("csi-sidecars"));
    one["imagePullPolicy"] = json!("Never");
    one["volumeMounts"] = like["volumeMounts"].clone();
    let uid = json!({"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}});
    let env = like["env"].as_array().unwrap().iter().cloned().chain([uid]);
    one["env"] = env.collect();
    ok(cluster, &["patch", DEPLOYMENT, "--patch", &patch.to_string()], "");
    ok(cluster, &["rollout", "status", DEPLOYMENT, "--timeout=120s"], "");
    let names = ".spec.template.spec.containers[*].name";
    assert_eq!(value(cluster, DEPLOYMENT, names), "csi-sidecars", "nothing else is left");
}

#[test]
fn documented_patches_name_all_that_a_shape_has() {
    for (shape, args) in SHAPES {
        let mut patch = documented_patch(shape);
        let one = one_container(&mut patch).clone();
        let have: Vec<&str> =
            one["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
        let flag = |arg: &str| arg.trim_start_matches('-').split('=').next().unwrap().to_owned();
        for ((name, ..), args) in SIDECARS.iter().zip(args) {
            let own = name.trim_start_matches("csi-");
            for arg in args {
                let (wanted, value) = (flag(arg), arg.split_once('=').map(|(_, value)| value));
                let process = wanted == "http-endpoint" || wanted.starts_with("leader-election");
                let of = |name: &str| have.iter().copied().find(|arg| flag(arg) == name);
                let found = of(&format!("{own}-{wanted}")).or_else(|| of(&wanted));
                let found = found.unwrap_or_else(|| panic!("{shape}: {name}: no {arg}"));
                let alike = found.split_once('=').map(|(_, value)| value) == value;
                assert!(process || alike, "{shape}: {name} has {arg}, the patch {found}");
            }
            let gone = json!({"name": name, "$patch": "delete"});
            let containers = &patch["spec"]["template"]["spec"]["containers"];
            assert!(containers.as_array().unwrap().contains(&gone), "{shape}: {name} stays");
        }
        let mut command = std::process::Command::new(longshore_real_kube::longshore());
        let args = have.iter().map(|arg| arg.replace("$(POD_IP)", "127.0.0.1"));
        let output = command.arg("sidecars").args(args).arg("--version").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shape}: {said}");
    }
}

/// The account with the rules that the official programs document.
const ACCOUNT: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-controller, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: csi-controller}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [list, watch, create, update, patch]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [secrets], verbs: [get, list]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses, csinodes, volumeattributesclasses], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get, list, watch, update]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get, list, watch, update, patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents/status], verbs: [update, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents], verbs: [get, list, watch, update, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents/status], verbs: [update, patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, list, delete, update, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-controller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-controller}
subjects: [{kind: ServiceAccount, name: csi-controller, namespace: default}]
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: csi}
driver: hostpath.csi.k8s.io
deletionPolicy: Delete
"#;

/// What the sidecars said last, when the test fails.
struct Logs<'a>(&'a Cluster);

impl Drop for Logs<'_> {
    fn drop(&mut self) {
        let line = ["logs", DEPLOYMENT, "--all-containers", "--prefix", "--tail=15"];
        if std::thread::panicking()
            && let Ok(output) = self.0.kubectl(&line)
        {
            eprintln!("{}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

/// A claim is bound and, when all of it is asked for, grows, and its snapshot is ready; then everything goes.
fn works(cluster: &Cluster, name: &str, all: bool) {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"storageClassName": DRIVER, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "8Mi"}}}});
    ok(cluster, &["apply", "--filename", "-"], &claim.to_string());
    step("  a pod with its claim", || {
        pod(cluster, name, "touch /tmp/done && sleep 1000", Some(name));
    });
    let mut parts = vec![format!("pod/{name}"), format!("pvc/{name}")];
    if all {
        snapshot_and_grow(cluster, name);
        parts.insert(1, format!("volumesnapshot/{name}"));
    }
    let mut line = vec!["delete", "--timeout=100s"];
    line.extend(parts.iter().map(String::as_str));
    ok(cluster, &line, "");
    eventually(&format!("the volume of {name} is deleted"), || {
        ok(cluster, &["get", "pv,volumesnapshotcontents", "--output", "name"], "").is_empty()
    });
}

fn snapshot_and_grow(cluster: &Cluster, name: &str) {
    // Not before the claim is bound: the official controller backs off for a minute then.
    let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name}, "spec": {"volumeSnapshotClassName": "csi",
            "source": {"persistentVolumeClaimName": name}}});
    ok(cluster, &["apply", "--filename", "-"], &snapshot.to_string());
    step("  its snapshot", || {
        eventually(&format!("the snapshot {name} is ready"), || {
            value(cluster, &format!("volumesnapshot/{name}"), ".status.readyToUse") == "true"
        });
    });
    let grow = r#"{"spec":{"resources":{"requests":{"storage":"16Mi"}}}}"#;
    ok(cluster, &["patch", "pvc", name, "--patch", grow], "");
    step("  its growth", || {
        eventually(&format!("the claim {name} grows"), || {
            value(cluster, &format!("pvc/{name}"), ".status.capacity.storage") == "16Mi"
        });
    });
}

fn set_images(cluster: &Cluster, images: &[String]) {
    let mut line = vec!["set", "image", DEPLOYMENT];
    line.extend(images.iter().map(String::as_str));
    ok(cluster, &line, "");
    ok(cluster, &["rollout", "status", DEPLOYMENT, "--timeout=120s"], "");
}

#[test]
#[ignore = "needs the image: `cargo xtask real-kube suite`, which CI runs"]
fn sidecars_of_another_driver_are_swapped_by_their_image_alone() {
    let official_tools = SIDECARS.map(|(_, tool, _)| tool);
    if !node::possible() || !tools::need(&TOOLS) || !tools::need(&official_tools) {
        return;
    }
    if !tools::need(&[Tool::Hostpath, Tool::SnapshotController]) {
        return;
    }
    let image = std::env::var_os("LONGSHORE_IMAGE").expect("LONGSHORE_IMAGE names the archive");
    let settings = Options { service_accounts: true, ..options(Controllers::All) };
    let mut cluster = step("the cluster", || Cluster::start(&settings)).unwrap();
    let images = SIDECARS.map(|(name, tool, version)| {
        let file = tools::path(tool).unwrap();
        node::Image::program(&[&official(name, version)], name, &file, &[])
    });
    cluster.node().unwrap().import_archive(image.as_ref()).unwrap();
    cluster.node().unwrap().import(&images).unwrap();
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for file in fs::read_dir(crds).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(file).unwrap();
            ok(&cluster, &["apply", "--server-side", "--filename", "-"], &text);
        }
    }
    ok(&cluster, &["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], "");
    let mut command = std::process::Command::new(tools::path(Tool::SnapshotController).unwrap());
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.add("snapshot-controller", command).unwrap();
    let socket = drivers::hostpath_alone(&mut cluster, DRIVER, false).unwrap();
    ok(&cluster, &["apply", "--filename", "-"], ACCOUNT);
    let logs = Logs(&cluster);
    let long = std::env::var_os("LONGSHORE_LONG").is_some();
    for (shape, args) in SHAPES.iter().take(if long { SHAPES.len() } else { 1 }) {
        let text = deployment(&cluster, &socket, args).to_string();
        ok(&cluster, &["apply", "--filename", "-"], &text);
        ok(&cluster, &["rollout", "status", DEPLOYMENT, "--timeout=120s"], "");
        let at = |what: &str| format!("{}-{what}", shape.to_lowercase());
        step(&format!("{shape}: official"), || works(&cluster, &at("official"), long));
        let swapped = SIDECARS.map(|(name, ..)| format!("{name}={}", ours(name)));
        if long {
            for (number, image) in swapped.iter().enumerate() {
                set_images(&cluster, std::slice::from_ref(image));
                step(&format!("{shape}: {image}"), || {
                    works(&cluster, &at(&format!("one-{number}")), true)
                });
            }
        }
        set_images(&cluster, &swapped);
        step(&format!("{shape}: ours"), || works(&cluster, &at("ours"), true));
        if long {
            all_in_one(&cluster, shape);
            step(&format!("{shape}: ours in one"), || works(&cluster, &at("all"), true));
            ok(&cluster, &["rollout", "undo", DEPLOYMENT], "");
            ok(&cluster, &["rollout", "status", DEPLOYMENT, "--timeout=120s"], "");
        }
        let back = SIDECARS.map(|(name, _, version)| format!("{name}={}", official(name, version)));
        set_images(&cluster, &back);
        step(&format!("{shape}: official again"), || works(&cluster, &at("again"), long));
    }
    drop(logs);
    step("the end", || cluster.stop()).unwrap();
}
