//! The official controllers and sidecars where they were not written for: on the embedded API, and
//! with our driver on a real API server. A claim is bound, attached, resized, snapshotted, restored
//! and deleted by them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{
    Cluster, Controllers, Lifetime, Options, Program, kubectl_with_input, longshore,
};
use longshore_testing::{Need, need};
use serde_json::Value;

use super::support::{DRIVER, Hostpath, TIMEOUT, eventually, kubectl, root, text_of};

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
metadata: {name: DRIVER_NAME}
spec: {attachRequired: true, volumeLifecycleModes: [Persistent]}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-a}
spec:
  drivers: [{name: DRIVER_NAME, nodeID: node-a, topologyKeys: []}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: DRIVER_NAME
allowVolumeExpansion: true
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: proof}
driver: DRIVER_NAME
deletionPolicy: Delete
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 32Mi}}
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
  resources: {requests: {storage: 64Mi}}
"#;

/// An API server and what was started beside it. All end when dropped.
struct Stack {
    driver: &'static str,
    dir: PathBuf,
    kubeconfig: PathBuf,
    programs: Vec<Program>,
}

impl Stack {
    /// The embedded API.
    fn embedded(driver: &'static str, dir: &Path) -> Self {
        let mut command = Command::new(longshore());
        command.args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.join("api"));
        let mut stack = Self::on(driver, dir, Path::new(""));
        stack.add("apiserver", command);
        let log = dir.join("apiserver.log");
        let ready = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.lines().find_map(|line| line.strip_prefix("ready kubeconfig=").map(PathBuf::from))
        };
        stack.programs[0].wait_until(TIMEOUT, None, || ready().is_some()).unwrap();
        stack.kubeconfig = ready().unwrap();
        let controllers = format!("--controllers={CONTROLLERS}");
        let flags = [&controllers, "--secure-port=0", "--leader-elect=false"];
        stack.add_official(Tool::KubeControllerManager, &flags);
        stack
    }

    /// Any API that runs already, with its controllers.
    fn on(driver: &'static str, dir: &Path, kubeconfig: &Path) -> Self {
        let (dir, kubeconfig) = (dir.to_owned(), kubeconfig.to_owned());
        Self { driver, dir, kubeconfig, programs: Vec::new() }
    }

    /// The sidecars of a driver, and the controller for snapshots.
    fn add_sidecars(&mut self, socket: &Path) {
        let address = format!("--csi-address={}", socket.display());
        self.add_official(Tool::CsiProvisioner, &[&address]);
        self.add_official(Tool::CsiResizer, &[&address]);
        self.add_official(Tool::CsiSnapshotter, &[&address]);
        self.add_official(Tool::SnapshotController, &[]);
        // The attacher is ours where the official one is not at hand.
        if tools::path(Tool::CsiAttacher).is_ok() {
            return self.add_official(Tool::CsiAttacher, &[&address]);
        }
        let mut command = Command::new(longshore());
        command.args(["attacher", &address, "--kubeconfig"]).arg(&self.kubeconfig);
        command.env_remove("KUBECONFIG");
        self.add("attacher", command);
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

/// A claim's life, with the official programs.
fn whole_life(stack: &mut Stack, volumes: &dyn Fn() -> usize) {
    let objects = |text: &str| text.replace("DRIVER_NAME", stack.driver);
    // Pods are refused until their namespace has its account.
    let account = ["get", "serviceaccount", "default", "--ignore-not-found", "-o", "name"];
    eventually("there is an account", || stack.logs(), || !stack.ok(&account, "").is_empty());
    stack.ok(&["apply", "-f", "-"], &objects(SETTING));
    stack.wait("pvc/data", ".status.phase", "Bound");
    let volume = text_of(&stack.object("pvc", "data")["spec"]["volumeName"]);
    attached(stack, &volume);
    resized(stack, &volume);

    stack.ok(&["apply", "-f", "-"], SNAPSHOT);
    stack.wait("volumesnapshot/cut", ".status.readyToUse", "true");
    stack.ok(&["apply", "-f", "-"], RESTORED);
    stack.wait("pvc/restored", ".status.phase", "Bound");
    assert_eq!(volumes(), 2);

    everything_goes(stack);
    assert_eq!(volumes(), 0);
    for program in &mut stack.programs {
        assert!(program.runs(), "{} ended early:\n{}", program.name(), program.tail());
    }
    while let Some(program) = stack.programs.pop() {
        program.stop().unwrap();
    }
}

fn attached(stack: &Stack, volume: &str) {
    let handle = text_of(&stack.object("pv", volume)["spec"]["csi"]["volumeHandle"]);
    let name = format!("kubernetes.io/csi/{}^{handle}", stack.driver);
    stack.wait("node/node-a", ".status.volumesAttached[0].name", &name);
    let text = stack.ok(&["get", "volumeattachments", "-o", "json"], "");
    let one = &serde_json::from_str::<Value>(&text).unwrap()["items"][0];
    assert_eq!(one["spec"]["source"]["persistentVolumeName"], volume);
    assert_eq!(one["status"]["attached"], true);
}

fn resized(stack: &Stack, volume: &str) {
    let bigger = r#"{"spec":{"resources":{"requests":{"storage":"64Mi"}}}}"#;
    stack.ok(&["patch", "pvc", "data", "-p", bigger], "");
    stack.wait(&format!("pv/{volume}"), ".spec.capacity.storage", "64Mi");
    // The rest is the node's part, and there is no node here.
    let pending = ".status.conditions[?(@.type==\"FileSystemResizePending\")].status";
    stack.wait("pvc/data", pending, "True");
}

fn everything_goes(stack: &Stack) {
    // No kubelet is here to end the pod.
    stack.ok(&["delete", "pod", "user", "--force", "--grace-period=0"], "");
    stack.ok(&["delete", "volumesnapshot", "cut", "--timeout=120s"], "");
    stack.ok(&["delete", "pvc", "data", "restored", "--timeout=120s"], "");
    let kinds = "pv,pvc,pod,volumeattachment,volumesnapshot,volumesnapshotcontent";
    eventually(
        "nothing is left in the API",
        || format!("{}\n{}", stack.ok(&["get", kinds, "-A"], ""), stack.logs()),
        || stack.ok(&["get", kinds, "-A", "-o", "name"], "").is_empty(),
    );
}

const SIDECARS: [Tool; 7] = [
    Tool::KubeControllerManager,
    Tool::CsiProvisioner,
    Tool::CsiResizer,
    Tool::CsiSnapshotter,
    Tool::SnapshotController,
    Tool::Hostpath,
    Tool::Kubectl,
];

#[test]
fn official_programs_bind_attach_resize_and_snapshot_on_the_embedded_api() {
    if !tools::need(&SIDECARS) {
        return;
    }
    let home = tempfile::Builder::new().prefix("longshore-official-").tempdir().unwrap();
    let driver = Hostpath::start(home.path(), &["--enable-topology=false", "--enable-attach"]);
    let mut stack = Stack::embedded(DRIVER, home.path());
    stack.add_sidecars(&driver.socket);
    whole_life(&mut stack, &|| driver.volumes().len());
    driver.stop();
}

#[test]
fn official_sidecars_drive_our_driver_on_a_real_api_server() {
    let machine = [Need::Root, Need::LoopDevices, Need::Tool("mkfs.ext4")];
    if !need("official-ours", &machine)
        || !tools::need(&SIDECARS)
        || !tools::need(&[Tool::Etcd, Tool::KubeApiserver])
    {
        return;
    }
    let options = Options {
        controllers: Controllers::Volumes,
        etcd_without_fsync: true,
        ..Options::default()
    };
    let cluster = Cluster::start(&options).unwrap();
    kubectl(&cluster, &["apply", "-f", &root().join("deploy/crds").display().to_string()]);
    let (pool, socket) = (cluster.dir().join("pool"), cluster.dir().join("csi.sock"));
    fs::create_dir(&pool).unwrap();
    let driver = "shared.csi.longshore.dev";
    let mut stack = Stack::on(driver, cluster.dir(), cluster.kubeconfig());
    let mut command = Command::new(longshore());
    command.args(["driver", "--kind", "shared", "--node-id", "node-a", "--pool"]).arg(&pool);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    stack.add("driver", command);
    stack.programs[0].wait_until(TIMEOUT, None, || socket.exists()).unwrap();
    stack.add_sidecars(&socket);
    let images = || {
        let names = fs::read_dir(&pool).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("vol-") && name.ends_with(".json")).count()
    };
    whole_life(&mut stack, &images);
    let left = fs::read_dir(&pool).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".img")).collect();
    assert!(left.is_empty(), "{left:?}");
    cluster.stop().unwrap();
}
