//! csi-snapshotter, snapshot-controller and ours on a real API server, in every mixture, and each exchanged for the
//! other in the middle of a snapshot's life. The driver is ours, which takes snapshots without a node.

use std::path::PathBuf;
use std::process::Command;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, Lifetime, Options, Program, longshore};
use serde_json::{Value, json};

use super::support::{eventually, kubectl, kubectl_with, log_of, object, root, text_of};

const OBJECTS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: swap.csi.test
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: proof}
driver: swap.csi.test
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: proof}
driver: swap.csi.test
deletionPolicy: Delete
";

const CLAIM: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: default, labels: {app: db}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 16Mi}}
";

/// Whose program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Go,
    Ours,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Controller,
    Snapshotter,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Go => Self::Ours,
            Self::Ours => Self::Go,
        }
    }
}

/// A cluster with a driver, claims, and at most one program for each role.
struct World {
    cluster: Cluster,
    driver: Program,
    socket: PathBuf,
    pool: PathBuf,
    controller: Option<Program>,
    snapshotter: Option<Program>,
    started: usize,
}

impl World {
    fn start() -> Self {
        let mut cluster = Cluster::start(&Options {
            controllers: Controllers::Volumes,
            etcd_without_fsync: true,
            ..Options::default()
        })
        .unwrap();
        let (socket, pool) = (cluster.dir().join("csi.sock"), cluster.dir().join("pool"));
        let mut command = Command::new(longshore());
        command.args(["driver", "--kind=shared", "--node-id=n1", "--driver-name=swap.csi.test"]);
        command.arg(format!("--endpoint=unix://{}", socket.display()));
        command.arg(format!("--pool={}", pool.display()));
        let log = cluster.dir().join("driver.log");
        let driver = Program::start("driver", command, &log, Lifetime::Owner).unwrap();
        let mut command = Command::new(longshore());
        command.arg("provisioner").arg(format!("--csi-address={}", socket.display()));
        command.arg("--kubeconfig").arg(cluster.kubeconfig()).env_remove("KUBECONFIG");
        cluster.add("provisioner", command).unwrap();
        let crds = root().join("deploy/crds");
        kubectl(&cluster, &["apply", "-f", &crds.display().to_string()]);
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
        kubectl(&cluster, &established);
        kubectl_with(&cluster, &["apply", "-f", "-"], OBJECTS);
        let (controller, snapshotter) = (None, None);
        let world = Self { cluster, driver, socket, pool, controller, snapshotter, started: 0 };
        for name in ["one", "two"] {
            kubectl_with(&world.cluster, &["apply", "-f", "-"], &CLAIM.replace("NAME", name));
            let claim = format!("pvc/{name}");
            let bound = ["wait", "--for=jsonpath={.status.phase}=Bound", &claim, "--timeout=120s"];
            kubectl(&world.cluster, &bound);
        }
        world
    }

    /// Starts a program; `groups` is what its gate says, or its own default.
    fn run(&mut self, role: Role, side: Side, groups: Option<bool>) {
        let program = match (role, side) {
            (Role::Controller, Side::Go) => tools::path(Tool::SnapshotController).unwrap(),
            (Role::Snapshotter, Side::Go) => tools::path(Tool::CsiSnapshotter).unwrap(),
            (_, Side::Ours) => longshore(),
        };
        let mut command = Command::new(program);
        if side == Side::Ours {
            command.arg(match role {
                Role::Controller => "snapshot-controller",
                Role::Snapshotter => "snapshotter",
            });
        }
        if role == Role::Snapshotter {
            command.arg(format!("--csi-address={}", self.socket.display()));
            command.arg("--timeout=120s");
        }
        if let Some(on) = groups {
            command.arg(format!("--feature-gates=CSIVolumeGroupSnapshot={on}"));
        }
        command.arg(format!("--kubeconfig={}", self.cluster.kubeconfig().display()));
        command.args([
            "--retry-interval-start=100ms",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        ]);
        command.env_remove("KUBECONFIG");
        let name = format!("{}-{role:?}-{side:?}", self.started);
        self.started += 1;
        let log = self.cluster.dir().join(format!("{name}.log"));
        let program = Program::start(&name, command, &log, Lifetime::Owner).unwrap();
        *self.slot(role) = Some(program);
    }

    fn slot(&mut self, role: Role) -> &mut Option<Program> {
        match role {
            Role::Controller => &mut self.controller,
            Role::Snapshotter => &mut self.snapshotter,
        }
    }

    fn kill(&mut self, role: Role) {
        self.slot(role).take().unwrap().kill().unwrap();
    }

    fn kill_both(&mut self) {
        self.kill(Role::Controller);
        self.kill(Role::Snapshotter);
    }

    fn signal(&self, name: &str) {
        let pid = self.driver.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn list(&self, kind: &str) -> Vec<Value> {
        let list: Value =
            serde_json::from_str(&kubectl(&self.cluster, &["get", kind, "-A", "-o", "json"]))
                .unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let log = || {
            let mut all = log_of(&self.cluster, "provisioner");
            for program in [&self.controller, &self.snapshotter].into_iter().flatten() {
                all += &format!("\n== {}\n{}", program.log().display(), program.tail());
            }
            for kind in ["volumesnapshots", "volumesnapshotcontents", "volumegroupsnapshots"] {
                all += &format!("\n{:#}", Value::from(self.list(kind)));
            }
            all
        };
        eventually(what, log, done);
    }

    fn snapshot(&self, name: &str) {
        let yaml = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"volumeSnapshotClassName": "proof",
                "source": {"persistentVolumeClaimName": "one"}}});
        kubectl_with(&self.cluster, &["create", "-f", "-"], &yaml.to_string());
    }

    fn group(&self, name: &str) {
        let yaml = json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshot",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"volumeGroupSnapshotClassName": "proof",
                "source": {"selector": {"matchLabels": {"app": "db"}}}}});
        kubectl_with(&self.cluster, &["create", "-f", "-"], &yaml.to_string());
    }

    fn ready(&self, kind: &str, name: &str) -> bool {
        object(&self.cluster, kind, name)["status"]["readyToUse"] == true
    }

    fn delete(&self, kind: &str, name: &str) {
        kubectl(&self.cluster, &["delete", kind, name, "--wait=false"]);
    }

    /// Whether some content of this kind is noted as being created.
    fn being_created(&self, kind: &str) -> bool {
        self.list(kind).iter().any(|content| {
            content["metadata"]["annotations"].to_string().contains("-being-created")
        })
    }

    /// What is left of everything: objects, images, and finalizers on the claims.
    fn nothing_is_left(&self) {
        for kind in [
            "volumesnapshots",
            "volumesnapshotcontents",
            "volumegroupsnapshots",
            "volumegroupsnapshotcontents",
        ] {
            self.wait(&format!("no {kind} are left"), || self.list(kind).is_empty());
        }
        let left = || {
            let names = std::fs::read_dir(&self.pool).unwrap();
            let names = names.map(|one| one.unwrap().file_name().into_string().unwrap());
            names.filter(|name| !name.starts_with("vol-") && !name.starts_with('.')).count()
        };
        self.wait("the driver has no snapshot", || left() == 0);
        for name in ["one", "two"] {
            self.wait(&format!("claim {name} is free"), || {
                let claim = object(&self.cluster, "pvc", name);
                claim["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"])
            });
        }
    }

    /// How a ready snapshot, its content and its claim are marked, names and uids aside.
    fn marks(&self, name: &str) -> Value {
        let snapshot = object(&self.cluster, "volumesnapshot", name);
        let uid = text_of(&snapshot["metadata"]["uid"]);
        let bound = text_of(&snapshot["status"]["boundVolumeSnapshotContentName"]);
        let content = object(&self.cluster, "volumesnapshotcontent", &bound);
        let keys = |value: &Value| -> Vec<String> {
            value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        let marks = |of: &Value| {
            let mut finalizers: Vec<String> = of["metadata"]["finalizers"]
                .as_array()
                .into_iter()
                .flatten()
                .map(text_of)
                .collect();
            finalizers.sort();
            json!({"finalizers": finalizers, "annotations": of["metadata"]["annotations"],
                "status": keys(&of["status"])})
        };
        let all = json!({"snapshot": marks(&snapshot), "content": marks(&content), "bound": bound,
            "spec": {"driver": content["spec"]["driver"], "policy": content["spec"]["deletionPolicy"],
                "mode": content["spec"]["sourceVolumeMode"]}});
        serde_json::from_str(&all.to_string().replace(&uid, "UID")).unwrap()
    }
}

/// A snapshot begun by the first and ended by the second, in each state in which there is something to take over.
fn swap(world: &mut World, role: Role, first: Side, marks: &mut Option<Value>) {
    let second = first.other();
    let (beside, on) = (
        match role {
            Role::Controller => Role::Snapshotter,
            Role::Snapshotter => Role::Controller,
        },
        Some(true),
    );
    // Both sides of the one that stays are seen: with the first of the other role, then with its counterpart.
    world.run(beside, first, on);
    world.run(role, first, on);
    let who = format!("{role:?}: {first:?} then {second:?}");
    // Both are at work: a sidecar that does not reach its driver at the start ends.
    world.snapshot("warm");
    world.wait(&format!("{who}: both work"), || world.ready("volumesnapshot", "warm"));
    world.delete("volumesnapshot", "warm");
    world.nothing_is_left();

    // Being created: the driver was asked and does not answer.
    world.signal("-STOP");
    world.snapshot("created");
    world.wait(&format!("{who}: the driver is asked"), || {
        world.being_created("volumesnapshotcontents")
    });
    world.kill(role);
    world.signal("-CONT");
    world.run(role, second, on);
    world.wait(&format!("{who}: the snapshot is ready"), || {
        world.ready("volumesnapshot", "created")
    });
    world.wait(&format!("{who}: the note goes"), || !world.being_created("volumesnapshotcontents"));
    world.wait(&format!("{who}: the claim is free"), || {
        let claim = object(&world.cluster, "pvc", "one");
        !claim["metadata"]["finalizers"].to_string().contains("as-source")
    });
    let seen = world.marks("created");
    assert_eq!(*marks.get_or_insert_with(|| seen.clone()), seen, "{who}");

    // Unready: what one of the two has to do was not begun.
    world.kill(role);
    world.snapshot("unready");
    if role == Role::Snapshotter {
        world.wait(&format!("{who}: there is a content"), || {
            world.list("volumesnapshotcontents").len() == 2
        });
    }
    world.run(role, first, on);
    world.wait(&format!("{who}: ready, too"), || world.ready("volumesnapshot", "unready"));

    // Deleting: the driver does not answer.
    world.signal("-STOP");
    world.delete("volumesnapshot", "created");
    world.wait(&format!("{who}: the content is being deleted"), || {
        let all = world.list("volumesnapshotcontents");
        all.iter().any(|content| content["metadata"]["deletionTimestamp"].is_string())
    });
    world.kill(role);
    world.signal("-CONT");
    world.run(role, second, on);
    world.wait(&format!("{who}: one is left"), || world.list("volumesnapshots").len() == 1);
    world.delete("volumesnapshot", "unready");
    world.nothing_is_left();

    // A group, half made.
    world.signal("-STOP");
    world.group("group");
    world.wait(&format!("{who}: the driver is asked for a group"), || {
        world.being_created("volumegroupsnapshotcontents")
    });
    world.kill(role);
    world.signal("-CONT");
    world.run(role, first, on);
    world.wait(&format!("{who}: the group is ready"), || {
        let members = world.list("volumesnapshots");
        world.ready("volumegroupsnapshot", "group")
            && members.len() == 2
            && members.iter().all(|member| member["status"]["readyToUse"] == true)
    });
    world.kill(role);
    world.delete("volumegroupsnapshot", "group");
    world.run(role, second, on);
    world.nothing_is_left();
    world.kill_both();
}

fn can_run() -> bool {
    tools::need(&[
        Tool::Etcd,
        Tool::KubeApiserver,
        Tool::KubeControllerManager,
        Tool::Kubectl,
        Tool::CsiSnapshotter,
        Tool::SnapshotController,
    ])
}

/// case: snapshotter/84
#[test]
fn snapshot_programs_are_exchanged_in_the_middle() {
    if !can_run() {
        return;
    }
    let mut world = World::start();
    let mut marks = None;
    for role in [Role::Controller, Role::Snapshotter] {
        for first in [Side::Go, Side::Ours] {
            swap(&mut world, role, first, &mut marks);
        }
    }
    world.driver.stop().unwrap();
    world.cluster.stop().unwrap();
}

/// The gates of the two differ, because their defaults do.
/// case: snapshotter/85
#[test]
fn single_snapshots_do_not_need_the_same_gate_on_both_sides() {
    if !can_run() {
        return;
    }
    let mut world = World::start();
    for (controller, snapshotter) in [(Side::Go, Side::Ours), (Side::Ours, Side::Go)] {
        world.run(Role::Controller, controller, None);
        world.run(Role::Snapshotter, snapshotter, None);
        for name in ["a", "b"] {
            world.snapshot(name);
        }
        for name in ["a", "b"] {
            let what = format!("{name} is ready with {controller:?} and {snapshotter:?}");
            world.wait(&what, || world.ready("volumesnapshot", name));
            world.delete("volumesnapshot", name);
        }
        world.nothing_is_left();
        world.kill_both();
    }
    world.driver.stop().unwrap();
    world.cluster.stop().unwrap();
}
