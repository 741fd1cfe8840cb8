//! The real kubectl against the server.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::process::Stdio;

use common::Running;
use longshore_testing::{Need, find_tool, need};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const CLASS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: demo-fast}
provisioner: demo.example.com
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
"#;
const VOLUME: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: demo-pv, labels: {disk: one}}
spec:
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: demo-fast
  csi: {driver: demo.example.com, volumeHandle: h-1}
"#;
const CLAIM: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: demo-fast
  resources: {requests: {storage: 1Gi}}
"#;
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: main
    image: example.com/web:1
    volumeMounts: [{name: v, mountPath: /data}]
  volumes:
  - name: v
    persistentVolumeClaim: {claimName: data}
"#;
const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
"#;

/// kubectl with a home of its own, so that nothing is left behind and nothing is found.
struct Kubectl {
    running: Running,
    home: tempfile::TempDir,
}

/// What a command printed.
struct Printed {
    ok: bool,
    out: String,
    err: String,
}

impl Kubectl {
    async fn start() -> Self {
        Self { running: Running::start().await, home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(find_tool("kubectl").unwrap());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("KUBECONFIG", &self.running.kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str], input: &str) -> Printed {
        let mut child = self.command(arguments).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        Printed {
            ok: output.status.success(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that must work and returns what it printed.
    async fn ok(&self, arguments: &[&str], input: &str) -> String {
        let printed = self.run(arguments, input).await;
        assert!(printed.ok, "kubectl {arguments:?}: {}", printed.err);
        printed.out
    }

    async fn apply(&self, manifest: &str) -> String {
        self.ok(&["apply", "-f", "-"], manifest).await
    }

    fn follow(&self, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut child = self.command(arguments).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    }
}

/// The cells of each row, however wide the columns are.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_applied_shown_described_and_deleted() {
    if !need("kubectl objects", &[Need::Tool("kubectl")]) {
        return;
    }
    let kubectl = Kubectl::start().await;
    for (manifest, wanted) in [
        (CLASS, "storageclass.storage.k8s.io/demo-fast created"),
        (VOLUME, "persistentvolume/demo-pv created"),
        (CLAIM, "persistentvolumeclaim/data created"),
        (POD, "pod/web created"),
        (NODE, "node/n1 created"),
    ] {
        assert_eq!(kubectl.apply(manifest).await.trim(), wanted);
    }
    assert_eq!(kubectl.apply(CLAIM).await.trim(), "persistentvolumeclaim/data unchanged");
    let labelled = CLAIM.replace("{name: data}", "{name: data, labels: {app: web}}");
    assert_eq!(kubectl.apply(&labelled).await.trim(), "persistentvolumeclaim/data configured");

    let rows = [
        ("sc", vec!["demo-fast", "demo.example.com", "Delete", "WaitForFirstConsumer", "true"]),
        ("pv", vec!["demo-pv", "2Gi", "RWO", "Retain", "Pending", "demo-fast", "<unset>"]),
        ("pvc", vec!["data", "Pending", "demo-fast", "<unset>"]),
        ("pod", vec!["web", "0/1", "Pending", "0"]),
        ("node", vec!["n1", "Unknown", "<none>"]),
    ];
    for (kind, wanted) in rows {
        let table = kubectl.ok(&["get", kind], "").await;
        let row = &cells(&table)[1];
        assert_eq!(row[..wanted.len()], wanted, "{table}");
    }
    let described = kubectl.ok(&["describe", "pvc", "data"], "").await;
    assert!(described.contains("Used By:       web"), "{described}");
    for (kind, name) in [("sc", "demo-fast"), ("pv", "demo-pv"), ("pod", "web"), ("node", "n1")] {
        let described = kubectl.ok(&["describe", kind, name], "").await;
        assert!(described.contains(name), "{described}");
    }

    for (kind, name) in [("pod", "web"), ("node", "n1"), ("sc", "demo-fast")] {
        let deleted = kubectl.ok(&["delete", kind, name], "").await;
        assert!(deleted.contains(&format!("\"{name}\" deleted")), "{deleted}");
    }
    // Nobody takes the protection finalizers off here.
    for (kind, name) in [("pvc", "data"), ("pv", "demo-pv")] {
        kubectl.ok(&["delete", kind, name, "--wait=false"], "").await;
        let table = kubectl.ok(&["get", kind, name], "").await;
        assert!(table.contains("Terminating"), "{table}");
        let free = r#"{"metadata":{"finalizers":null}}"#;
        kubectl.ok(&["patch", kind, name, "--type=merge", "-p", free], "").await;
        let gone = kubectl.run(&["get", kind, name], "").await;
        assert!(gone.err.contains("NotFound"), "{}", gone.err);
    }
    kubectl.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_watch_prints_changes() {
    if !need("kubectl get -w", &[Need::Tool("kubectl")]) {
        return;
    }
    let kubectl = Kubectl::start().await;
    kubectl.apply(CLAIM).await;
    let (mut child, mut lines) = kubectl.follow(&["get", "pvc", "-w", "--no-headers"]);
    let first = lines.next_line().await.unwrap().unwrap();
    assert_eq!(cells(&first)[0][..2], ["data", "Pending"]);
    let bound = r#"{"status":{"phase":"Bound"}}"#;
    let patch = ["patch", "pvc", "data", "--subresource=status", "--type=merge", "-p", bound];
    kubectl.ok(&patch, "").await;
    let second = lines.next_line().await.unwrap().unwrap();
    assert_eq!(cells(&second)[0][..2], ["data", "Bound"]);
    child.kill().await.unwrap();
    kubectl.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_explains_refused_requests() {
    if !need("kubectl mistakes", &[Need::Tool("kubectl")]) {
        return;
    }
    let kubectl = Kubectl::start().await;
    let rows = [
        (CLAIM.replace("spec:", "spec:\n  nonsense: 1"), "unknown field \"spec.nonsense\""),
        (CLAIM.replace("ReadWriteOnce", "Nope"), "spec.accessModes: Unsupported value: \"Nope\""),
    ];
    for (manifest, wanted) in rows {
        let printed = kubectl.run(&["create", "-f", "-"], &manifest).await;
        assert!(!printed.ok && printed.err.contains(wanted), "{}", printed.err);
    }
    let missing = kubectl.run(&["get", "pvc", "missing"], "").await;
    let text = "Error from server (NotFound): persistentvolumeclaims \"missing\" not found";
    assert_eq!(missing.err.trim(), text);
    kubectl.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_takes_over_what_it_applied_the_old_way() {
    if !need("kubectl apply --server-side", &[Need::Tool("kubectl")]) {
        return;
    }
    let kubectl = Kubectl::start().await;
    let config = |value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{r: {value}}}\n")
    };
    kubectl.apply(&config("one")).await;
    let server_side = ["apply", "--server-side", "-f", "-"];
    let applied = kubectl.ok(&server_side, &config("two")).await;
    assert_eq!(applied.trim(), "configmap/c serverside-applied");
    // What somebody else changed meanwhile is a conflict.
    let patch = ["patch", "configmap", "c", "-p", r#"{"data":{"r":"three"}}"#];
    kubectl.ok(&patch, "").await;
    let refused = kubectl.run(&server_side, &config("four")).await;
    assert!(
        !refused.ok && refused.err.contains("conflict with \"kubectl-patch\""),
        "{}",
        refused.err
    );
    let unknown = "apiVersion: nope.example.com/v1\nkind: Nope\nmetadata: {name: x}\n";
    let printed = kubectl.run(&["apply", "-f", "-"], unknown).await;
    let wanted = "no matches for kind \"Nope\" in version \"nope.example.com/v1\"";
    assert!(!printed.ok && printed.err.contains(wanted), "{}", printed.err);
    kubectl.running.stop().await;
}
