//! The official hostpath driver under `longshore up`: named with `--csi-endpoint`, and introduced by a
//! registrar through the plugin directory. A pod writes, restarts, its volume grows, and all goes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Lifetime, Program, kubectl_with_input, longshore};
use longshore_testing::{Need, need};

use super::support::{DRIVER, Hostpath, eventually, mounts_below};

/// A class of the driver whose claims may grow; the one that `up` makes says nothing about it.
const CLASS: &str = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: grows}\n\
    provisioner: hostpath.csi.k8s.io\nallowVolumeExpansion: true\n\
    volumeBindingMode: WaitForFirstConsumer\n";

/// `longshore up` with a foreign driver; ended when dropped.
struct Up {
    child: Child,
    dir: PathBuf,
    kubeconfig: PathBuf,
}

impl Up {
    /// `socket` is that of a driver to be served from the start.
    fn start(dir: &Path, socket: Option<&Path>) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("up.log"));
        let log = log.unwrap();
        // The port must be the same after a restart: the sidecars know no other.
        let port = dir.join("port");
        let address = fs::read_to_string(&port).unwrap_or_else(|_| "127.0.0.1:0".to_owned());
        let mut command = Command::new(longshore());
        command.args(["up", "--node-name", "node-a", "--listen", &address, "--data-dir"]);
        command.arg(dir.join("data"));
        if let Some(socket) = socket {
            command.arg("--csi-endpoint").arg(format!("unix://{}", socket.display()));
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let kubeconfig = line.trim().strip_prefix("ready kubeconfig=").map(PathBuf::from);
        let mut up = Self { child, dir: dir.to_owned(), kubeconfig: PathBuf::new() };
        match kubeconfig {
            Some(file) => {
                let text = fs::read_to_string(&file).unwrap();
                let (_, address) = text.split_once("https://").unwrap();
                let end = address.find(['"', '\n', '/']).unwrap_or(address.len());
                fs::write(&port, address[..end].trim()).unwrap();
                up.kubeconfig = file;
            }
            None => panic!("not ready: {line:?}\n{}", up.log()),
        }
        up
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("up.log")).unwrap_or_default()
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Output {
        let cache = self.dir.join("kubectl-cache");
        kubectl_with_input(&self.kubeconfig, &cache, args, stdin).unwrap()
    }

    fn ok(&self, args: &[&str], stdin: &str) -> String {
        let done = self.kubectl(args, stdin);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "kubectl {args:?}: {text}\n{}", self.log());
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Runs a pod to its end.
    fn pod(&self, name: &str, script: &str) {
        self.ok(&["apply", "-f", "-"], &pod(name, script));
        let done = "--for=jsonpath={.status.phase}=Succeeded";
        self.ok(&["wait", done, &format!("pod/{name}"), "--timeout=120s"], "");
    }

    /// SIGTERM, then the exit code.
    fn stop(mut self) -> Option<i32> {
        let done = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(done.success());
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "does not stop:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pod(name: &str, script: &str) -> String {
    let script = serde_json::Value::from(script);
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: host\n    \
         command: [/bin/sh, -c, {script}]\n    volumeMounts: [{{name: data, mountPath: /data}}]\n  \
         volumes:\n  - name: data\n    persistentVolumeClaim: {{claimName: data}}\n"
    )
}

/// Unmounts what a failed test leaves, then removes the directory.
struct Home(Option<tempfile::TempDir>);

impl Home {
    fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for mount in mounts_below(self.path()).into_iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(&mount).stderr(Stdio::null()).status();
        }
        if let Some(dir) = self.0.take() {
            let _ = dir.close();
        }
    }
}

fn able(test: &str) -> bool {
    let machine = [Need::Root, Need::LoopDevices, Need::Tool("mkfs.ext4")];
    let programs = [Tool::Hostpath, Tool::Kubectl, Tool::CsiProvisioner, Tool::CsiResizer];
    need(test, &machine) && tools::need(&programs)
}

fn home(test: &str) -> Home {
    let dir = tempfile::Builder::new().prefix(&format!("longshore-{test}-")).tempdir().unwrap();
    Home(Some(dir))
}

/// An official sidecar of the driver, on the API of `up`.
fn sidecar(up: &Up, tool: Tool, name: &str, driver: &Hostpath) -> Program {
    let mut command = Command::new(tools::path(tool).unwrap());
    command.arg(format!("--kubeconfig={}", up.kubeconfig.display()));
    command.arg(format!("--csi-address={}", driver.socket.display()));
    let log = up.dir.join(format!("{name}.log"));
    Program::start(name, command, &log, Lifetime::Owner).unwrap()
}

/// Introduces the driver to the node of `up`: the official registrar where there is one, else ours.
fn registrar(dir: &Path, driver: &Hostpath) -> Program {
    let registry = dir.join("data/nodes/node-a/plugins_registry");
    let mut command = match tools::path(Tool::NodeDriverRegistrar) {
        Ok(official) => Command::new(official),
        Err(_) => {
            let mut ours = Command::new(longshore());
            ours.arg("node-registrar");
            ours
        }
    };
    command.arg(format!("--csi-address={}", driver.socket.display()));
    command.arg(format!("--kubelet-registration-path={}", driver.socket.display()));
    command.arg(format!("--plugin-registration-path={}", registry.display()));
    Program::start("registrar", command, &dir.join("registrar.log"), Lifetime::Owner).unwrap()
}

/// Written once by each run of the pod, so that its restarts can be counted.
const SCRIPT: &str = "trap exit TERM; echo kept > /data/file; echo run >> /data/runs; sync; \
    while :; do sleep 0.1; done";

fn running(up: &Up) {
    let running = "--for=jsonpath={.status.phase}=Running";
    up.ok(&["wait", running, "pod/user", "--timeout=120s"], "");
}

fn claim_of(class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: {class}\n  \
         resources: {{requests: {{storage: 16Mi}}}}\n"
    )
}

/// A pod writes to a new volume.
fn writes(up: &Up, driver: &Hostpath) {
    up.ok(&["apply", "-f", "-"], CLASS);
    up.ok(&["apply", "-f", "-"], &claim_of("grows"));
    up.ok(&["apply", "-f", "-"], &pod("user", SCRIPT));
    running(up);
    assert_eq!(driver.volumes().len(), 1);
    assert_eq!(driver.calls("CreateVolume"), 1);
}

/// How often the pod has begun, by its own word.
fn runs(driver: &Hostpath) -> usize {
    let dirs = driver.directories();
    let texts = dirs.iter().map(|dir| fs::read_to_string(driver.state().join(dir).join("runs")));
    texts.flatten().map(|text| text.lines().count()).sum()
}

/// The claim asks for more, a resizer asks the driver, and the node tells it.
fn grows(up: &Up, driver: &Hostpath) {
    let patch = r#"{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}"#;
    up.ok(&["patch", "pvc", "data", "--type=merge", "-p", patch], "");
    let grown = "--for=jsonpath={.status.capacity.storage}=32Mi";
    up.ok(&["wait", grown, "pvc/data", "--timeout=120s"], "");
    assert!(driver.calls("ControllerExpandVolume") > 0 && driver.calls("NodeExpandVolume") > 0);
}

/// Everything goes, and nothing of it stays.
fn goes(home: &Home, up: Up, driver: Hostpath, others: Vec<Program>) {
    up.ok(&["delete", "pod", "user", "--timeout=120s"], "");
    up.pod("reader", "grep -q kept /data/file");
    up.ok(&["delete", "pod", "reader", "--timeout=120s"], "");
    up.ok(&["delete", "pvc", "data", "--timeout=120s"], "");
    eventually("the volume is gone at the driver", || up.log(), || driver.volumes().is_empty());
    eventually(
        "nothing is left in the API",
        || up.log(),
        || up.ok(&["get", "pv,pvc,pod,volumeattachment", "-A", "-o", "name"], "").is_empty(),
    );
    assert_eq!(driver.calls("CreateVolume"), 1, "one volume for the whole life");
    assert_eq!(driver.directories(), Vec::<PathBuf>::new());
    assert_eq!(mounts_below(home.path()), Vec::<PathBuf>::new());
    for program in others {
        program.stop().unwrap();
    }
    assert_eq!(up.stop(), Some(0), "SIGTERM ends cleanly");
    driver.stop();
    assert_eq!(mounts_below(home.path()), Vec::<PathBuf>::new());
}

fn named_with_a_flag(test: &str, flags: &[&str], attaches: bool) {
    if !able(test) {
        return;
    }
    let home = home(test);
    let driver = Hostpath::start(home.path(), flags);
    let up = Up::start(home.path(), Some(&driver.socket));
    writes(&up, &driver);
    assert_eq!(driver.calls("ControllerPublishVolume"), usize::from(attaches));
    // A stopped instance takes its pods along, and starts them again on what they had.
    assert_eq!(up.stop(), Some(0), "SIGTERM ends cleanly");
    assert_eq!(mounts_below(home.path()), Vec::<PathBuf>::new());
    let up = Up::start(home.path(), Some(&driver.socket));
    eventually("the pod begins again", || up.log(), || runs(&driver) == 2);
    running(&up);
    // The instance's own resizer serves a driver that is named with the flag.
    grows(&up, &driver);
    goes(&home, up, driver, Vec::new());
}

#[test]
fn a_pod_uses_the_official_hostpath_driver_under_longshore_up() {
    named_with_a_flag("hostpath", &[], false);
}

#[test]
fn a_pod_uses_the_official_hostpath_driver_with_attach() {
    named_with_a_flag("hostpath-attach", &["--enable-attach"], true);
}

/// `up` knows nothing of the driver: a registrar introduces it to the node, and the official
/// provisioner and resizer serve it. The agent is killed under the running pod.
#[test]
fn a_driver_that_a_registrar_introduces() {
    if !able("reg") {
        return;
    }
    let home = home("reg");
    let driver = Hostpath::start(home.path(), &[]);
    let mut up = Up::start(home.path(), None);
    let object = format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\n\
         spec: {{attachRequired: false, podInfoOnMount: true}}\n"
    );
    up.ok(&["apply", "-f", "-"], &object);
    let introduces = registrar(home.path(), &driver);
    eventually(
        "the node lists the driver",
        || up.log(),
        || up.ok(&["get", "csinode", "node-a", "-o", "yaml"], "").contains(DRIVER),
    );
    let provisioner = sidecar(&up, Tool::CsiProvisioner, "provisioner", &driver);
    let resizer = sidecar(&up, Tool::CsiResizer, "resizer", &driver);
    writes(&up, &driver);
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    let up = Up::start(home.path(), None);
    grows(&up, &driver);
    running(&up);
    assert_eq!(runs(&driver), 1, "the pod outlived the kill");
    goes(&home, up, driver, vec![introduces, provisioner, resizer]);
}
