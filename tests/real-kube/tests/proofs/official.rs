//! The official controllers and sidecars on the embedded API: a claim is bound, attached, resized
//! and snapshotted by programs that were written for another server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use longshore_real_kube::{
    Lifetime, Program, kubectl_with_input, longshore,
    tools::{self, Tool},
};
use serde_json::Value;

use super::support::{DRIVER, Hostpath, PATIENCE, eventually, text_of};

const CONTROLLERS: &str = "persistentvolume-binder-controller,\
    persistentvolume-attach-detach-controller,persistentvolume-expander-controller,\
    persistentvolumeclaim-protection-controller,persistentvolume-protection-controller";

const SETTING: &str = r#"
apiVersion: v1
kind: Node
metadata:
  name: node-a
  annotations: {volumes.kubernetes.io/controller-managed-attach-detach: "true"}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: hostpath.csi.k8s.io}
spec: {attachRequired: true, volumeLifecycleModes: [Persistent]}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-a}
spec:
  drivers: [{name: hostpath.csi.k8s.io, nodeID: node-a, topologyKeys: []}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: hostpath.csi.k8s.io
allowVolumeExpansion: true
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: proof}
driver: hostpath.csi.k8s.io
deletionPolicy: Delete
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 3Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeName: node-a
  containers: [{name: main, image: none}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"#;

const SNAPSHOT: &str = r#"
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: cut}
spec:
  volumeSnapshotClassName: proof
  source: {persistentVolumeClaimName: data}
"#;

const RESTORED: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: cut}
  resources: {requests: {storage: 8Mi}}
"#;

/// `longshore apiserver` and what was started beside it. All end when dropped.
struct Api {
    dir: PathBuf,
    kubeconfig: PathBuf,
    programs: Vec<Program>,
}

impl Api {
    fn start(dir: &Path) -> Self {
        let mut command = Command::new(longshore());
        command.args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.join("api"));
        let mut api =
            Self { dir: dir.to_owned(), kubeconfig: PathBuf::new(), programs: Vec::new() };
        api.add("apiserver", command);
        let ready = |log: &str| {
            log.lines().find_map(|l| l.strip_prefix("ready kubeconfig=")).map(PathBuf::from)
        };
        let log = dir.join("apiserver.log");
        let find = || ready(&fs::read_to_string(&log).unwrap_or_default());
        api.programs[0].wait_until(PATIENCE, None, || find().is_some()).unwrap();
        api.kubeconfig = find().unwrap();
        api
    }

    fn add(&mut self, name: &str, command: Command) {
        let log = self.dir.join(format!("{name}.log"));
        self.programs.push(Program::start(name, command, &log, Lifetime::Owner).unwrap());
    }

    /// Starts an official program with this API's administrator.
    fn add_official(&mut self, tool: Tool, flags: &[&str]) {
        let mut command = Command::new(tools::path(tool).unwrap());
        command.arg(format!("--kubeconfig={}", self.kubeconfig.display())).args(flags);
        self.add(tool.program(), command);
    }

    fn logs(&self) -> String {
        let mut text = String::new();
        for program in &self.programs {
            text += &format!("---- {}\n{}\n", program.name(), program.tail());
        }
        text
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Output {
        kubectl_with_input(&self.kubeconfig, &self.dir.join("kubectl-cache"), args, stdin).unwrap()
    }

    fn ok(&self, args: &[&str], stdin: &str) -> String {
        let done = self.kubectl(args, stdin);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "kubectl {args:?}: {text}\n{}", self.logs());
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn object(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.ok(&["get", kind, name, "-o", "json"], "")).unwrap()
    }

    /// Waits until an object has a value at a path.
    fn wait(&self, object: &str, path: &str, value: &str) {
        let wish = format!("--for=jsonpath={{{path}}}={value}");
        self.ok(&["wait", &wish, object, "--timeout=120s"], "");
    }
}

/// The attacher is ours where the official one is not at hand.
fn add_attacher(api: &mut Api, socket: &str) {
    let flag = format!("--csi-address={socket}");
    if tools::path(Tool::CsiAttacher).is_ok() {
        return api.add_official(Tool::CsiAttacher, &[&flag]);
    }
    let mut command = Command::new(longshore());
    command.args(["attacher", &flag, "--kubeconfig"]).arg(&api.kubeconfig);
    command.env_remove("KUBECONFIG");
    api.add("attacher", command);
}

fn start_all(dir: &Path) -> (Api, Hostpath) {
    let driver = Hostpath::start(dir, &["--enable-topology=false", "--enable-attach"]);
    let socket = driver.socket.display().to_string();
    let mut api = Api::start(dir);
    let controllers = format!("--controllers={CONTROLLERS}");
    api.add_official(
        Tool::KubeControllerManager,
        &[&controllers, "--secure-port=0", "--leader-elect=false"],
    );
    let address = format!("--csi-address={socket}");
    api.add_official(Tool::CsiProvisioner, &[&address]);
    api.add_official(Tool::CsiResizer, &[&address]);
    api.add_official(Tool::CsiSnapshotter, &[&address]);
    api.add_official(Tool::SnapshotController, &[]);
    add_attacher(&mut api, &socket);
    (api, driver)
}

fn attached_and_resized(api: &Api, volume: &str) {
    api.wait("node/node-a", ".status.volumesAttached[0].name", &attached_name(api, volume));
    let list: Value =
        serde_json::from_str(&api.ok(&["get", "volumeattachments", "-o", "json"], "")).unwrap();
    let one = &list["items"][0];
    assert_eq!(one["spec"]["source"]["persistentVolumeName"], volume);
    assert_eq!(one["status"]["attached"], true);

    let bigger = r#"{"spec":{"resources":{"requests":{"storage":"8Mi"}}}}"#;
    api.ok(&["patch", "pvc", "data", "-p", bigger], "");
    api.wait(&format!("pv/{volume}"), ".spec.capacity.storage", "8Mi");
    // The rest is the node's part, and there is no node here.
    let pending = ".status.conditions[?(@.type==\"FileSystemResizePending\")].status";
    api.wait("pvc/data", pending, "True");
}

fn attached_name(api: &Api, volume: &str) -> String {
    let handle = text_of(&api.object("pv", volume)["spec"]["csi"]["volumeHandle"]);
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

fn everything_goes(api: &Api, driver: &Hostpath) {
    // No kubelet is here to end the pod.
    api.ok(&["delete", "pod", "user", "--force", "--grace-period=0"], "");
    api.ok(&["delete", "volumesnapshot", "cut", "--timeout=120s"], "");
    api.ok(&["delete", "pvc", "data", "restored", "--timeout=120s"], "");
    let kinds = "pv,pvc,pod,volumeattachment,volumesnapshot,volumesnapshotcontent";
    eventually(
        "nothing is left in the API",
        || format!("{}\n{}", api.ok(&["get", kinds, "-A"], ""), api.logs()),
        || api.ok(&["get", kinds, "-A", "-o", "name"], "").is_empty(),
    );
    assert_eq!(driver.volumes(), Vec::<String>::new());
}

#[test]
fn official_programs_bind_attach_resize_and_snapshot_on_the_embedded_api() {
    let needed = [
        Tool::KubeControllerManager,
        Tool::CsiProvisioner,
        Tool::CsiResizer,
        Tool::CsiSnapshotter,
        Tool::SnapshotController,
        Tool::Hostpath,
        Tool::Kubectl,
    ];
    if !tools::need(&needed) {
        return;
    }
    let home = tempfile::Builder::new().prefix("longshore-official-").tempdir().unwrap();
    let (mut api, driver) = start_all(home.path());
    api.ok(&["apply", "-f", "-"], SETTING);
    api.wait("pvc/data", ".status.phase", "Bound");
    let volume = text_of(&api.object("pvc", "data")["spec"]["volumeName"]);
    attached_and_resized(&api, &volume);

    api.ok(&["apply", "-f", "-"], SNAPSHOT);
    api.wait("volumesnapshot/cut", ".status.readyToUse", "true");
    api.ok(&["apply", "-f", "-"], RESTORED);
    api.wait("pvc/restored", ".status.phase", "Bound");
    assert_eq!(driver.volumes().len(), 2);

    everything_goes(&api, &driver);
    for program in &mut api.programs {
        assert!(program.runs(), "{} ended early:\n{}", program.name(), program.tail());
    }
    while let Some(program) = api.programs.pop() {
        program.stop().unwrap();
    }
    driver.stop();
}
