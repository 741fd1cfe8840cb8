//! The official hostpath driver under `longshore up --csi-endpoint`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use longshore_core::testing::{Need, need};
use longshore_real_kube::{
    kubectl_with_input, longshore,
    tools::{self, Tool},
};

use super::support::{DRIVER, Hostpath, eventually, mounts_below};

/// `longshore up` with a foreign driver; ended when dropped.
struct Up {
    child: Child,
    dir: PathBuf,
    kubeconfig: PathBuf,
}

impl Up {
    fn start(dir: &Path, socket: &Path) -> Self {
        let log = fs::File::create(dir.join("up.log")).unwrap();
        let mut child = Command::new(longshore())
            .args(["up", "--listen", "127.0.0.1:0", "--node-name", "node-a", "--data-dir"])
            .arg(dir.join("data"))
            .arg("--csi-endpoint")
            .arg(format!("unix://{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let kubeconfig = line.trim().strip_prefix("ready kubeconfig=").map(PathBuf::from);
        let mut up = Self { child, dir: dir.to_owned(), kubeconfig: PathBuf::new() };
        match kubeconfig {
            Some(file) => up.kubeconfig = file,
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
            let _ = Command::new("umount").args(["-l", &mount]).stderr(Stdio::null()).status();
        }
        if let Some(dir) = self.0.take() {
            let _ = dir.close();
        }
    }
}

fn with_driver_flags(test: &str, flags: &[&str], attaches: bool) {
    let machine = [Need::Root, Need::LoopDevices, Need::Tool("mkfs.ext4")];
    if !need(test, &machine) || !tools::need(&[Tool::Hostpath, Tool::Kubectl]) {
        return;
    }
    let dir = tempfile::Builder::new().prefix(&format!("longshore-{test}-")).tempdir().unwrap();
    let home = Home(Some(dir));
    let driver = Hostpath::start(home.path(), flags);
    let up = Up::start(home.path(), &driver.socket);
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: {DRIVER}\n  \
         resources: {{requests: {{storage: 16Mi}}}}\n"
    );
    up.ok(&["apply", "-f", "-"], &claim);
    up.pod("writer", "echo kept > /data/file && sync && grep -q kept /data/file");
    assert_eq!(driver.volumes().len(), 1);
    up.ok(&["delete", "pod", "writer", "--timeout=120s"], "");
    up.pod("reader", "grep -q kept /data/file");
    let publishes = if attaches { 2 } else { 0 };
    assert_eq!(driver.calls("ControllerPublishVolume"), publishes);
    assert_eq!(driver.calls("NodePublishVolume"), 2);
    assert_eq!(driver.calls("CreateVolume"), 1);

    up.ok(&["delete", "pod", "reader", "--timeout=120s"], "");
    up.ok(&["delete", "pvc", "data", "--timeout=120s"], "");
    eventually("the volume is gone at the driver", || up.log(), || driver.volumes().is_empty());
    eventually(
        "nothing is left in the API",
        || up.log(),
        || up.ok(&["get", "pv,pvc,pod,volumeattachment", "-A", "-o", "name"], "").is_empty(),
    );
    assert_eq!(driver.directories(), Vec::<String>::new());
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert_eq!(up.stop(), Some(0), "SIGTERM ends cleanly");
    driver.stop();
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}

#[test]
fn a_pod_uses_the_official_hostpath_driver_under_longshore_up() {
    with_driver_flags("hostpath", &[], false);
}

#[test]
fn a_pod_uses_the_official_hostpath_driver_with_attach() {
    with_driver_flags("hostpath-attach", &["--enable-attach"], true);
}
