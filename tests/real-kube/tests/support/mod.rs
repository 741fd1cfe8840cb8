//! What the tests of the node share.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longshore_files::mounts::{Mount, MountTable};
use longshore_real_kube::node::{IMAGE, Namespace};
use longshore_real_kube::tools::Tool;
use longshore_real_kube::{Cluster, Controllers, Options};
use longshore_testing::holds_within;

/// The programs of a cluster with a node.
pub const TOOLS: [Tool; 6] = [
    Tool::Etcd,
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::KubeScheduler,
    Tool::Kubelet,
    Tool::Kubectl,
];

/// A cluster with a node in which rights are checked.
pub fn options(controllers: Controllers) -> Options {
    Options {
        rbac: true,
        controllers,
        scheduler: true,
        node: true,
        etcd_without_fsync: true,
        ..Options::default()
    }
}

/// Long, because machines can be busy. Nothing waits that long when all is well.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs kubectl and gives what it printed; a failure fails the test with what kubectl said.
pub fn ok(cluster: &Cluster, args: &[&str], stdin: &str) -> String {
    let output = cluster.kubectl_as(cluster.kubeconfig(), args, stdin).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stderr);
    assert!(output.status.success(), "kubectl {}: {said}", args.join(" "));
    text(&output.stdout)
}

/// Waits until `probe` says yes.
pub fn eventually(what: &str, probe: impl FnMut() -> bool) {
    assert!(holds_within(TIMEOUT, probe), "not within {} s: {what}", TIMEOUT.as_secs());
}

/// Says how long a step took.
pub fn step<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    eprintln!("{what}: {:.1} s", begin.elapsed().as_secs_f64());
    result
}

/// Starts a pod, with a claim at `/data` if there is one, and waits until its script has made
/// `/tmp/done`.
pub fn pod(cluster: &Cluster, name: &str, script: &str, claim: Option<&str>) {
    let mut object = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "readinessProbe": {
                    "exec": { "command": ["test", "-e", "/tmp/done"] },
                    "periodSeconds": 1,
                },
            }],
        },
    });
    if let Some(claim) = claim {
        let mount = serde_json::json!([{ "name": "data", "mountPath": "/data" }]);
        object["spec"]["containers"][0]["volumeMounts"] = mount;
        object["spec"]["volumes"] = serde_json::json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    }
    ok(cluster, &["apply", "--filename", "-"], &object.to_string());
    let wait = ["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=90s"];
    let output = cluster.kubectl(&wait).unwrap();
    if !output.status.success() {
        let events = ok(cluster, &["get", "events", "--sort-by=.lastTimestamp"], "");
        panic!("pod {name} is not ready:\n{events}");
    }
}

/// What a cluster with a node has in the kernel while it runs.
#[derive(Debug)]
pub struct Traces {
    dir: PathBuf,
    name: String,
    links: BTreeSet<String>,
    namespace: Namespace,
}

impl Traces {
    /// Of the cluster in `dir`, once its node has an interface.
    pub fn of(dir: &Path) -> Option<Self> {
        let name = dir.file_name()?.to_string_lossy().into_owned();
        let record = fs::read_to_string(dir.join("node/machine.json")).ok()?;
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let own = record["link"].as_str()?.to_owned();
        // Held, because the number of one that is gone is soon that of another.
        let init = record["processes"].as_array()?.last()?["pid"].as_u64()?;
        let namespace = Namespace::of(u32::try_from(init).ok()?).ok()?;
        if record["namespace"] != namespace.number() {
            return None;
        }
        let links = links_of_pods(dir).into_iter().chain([own]).collect();
        Some(Self { dir: dir.to_owned(), name, links, namespace })
    }

    /// So that a test that finds nothing afterwards has looked in the right places.
    pub fn assert_there(&self, kinds: &[&str]) {
        let found = self.found();
        for kind in kinds {
            let some = found.iter().any(|one| one.starts_with(&format!("{kind} ")));
            assert!(some, "no {kind} of the running cluster: {found:#?}");
        }
    }

    /// Waits a moment: after a kill the kernel may still be at it.
    pub fn wait_for_processes_to_end(&self) {
        eventually("the processes end", || {
            !self.found().iter().any(|one| one.contains("process "))
        });
    }

    pub fn assert_gone(&self) {
        let found = self.found();
        assert!(found.is_empty(), "left behind: {found:#?}");
        assert!(!self.dir.exists(), "{} is still there", self.dir.display());
    }

    fn found(&self) -> Vec<String> {
        let mut found = Vec::new();
        for pid in self.namespace.processes() {
            found.push(format!("process {pid} {}", line_of(pid)));
        }
        for pid in pids() {
            if line_of(pid).contains(&*self.dir.to_string_lossy()) && pid != std::process::id() {
                found.push(format!("process {pid} {}", line_of(pid)));
            }
            // A container has a namespace of its own and no path of ours, but a cgroup.
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            if cgroup.contains(&self.name) {
                found.push(format!("pod process {pid} {}", line_of(pid)));
            }
        }
        for hierarchy in read("/sys/fs/cgroup") {
            for path in
                [hierarchy.join(&self.name), PathBuf::from("/sys/fs/cgroup").join(&self.name)]
            {
                if path.exists() {
                    found.push(format!("cgroup {}", path.display()));
                }
            }
        }
        for link in &self.links {
            if Path::new("/sys/class/net").join(link).exists() {
                let kind = if link.starts_with("veth") { "pod link" } else { "link" };
                found.push(format!("{kind} {link}"));
            }
        }
        for device in read("/sys/block") {
            let file = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
            if file.contains(&self.name) {
                found.push(format!("loop {} on {}", device.display(), file.trim()));
            }
        }
        let table = MountTable::read().unwrap();
        let text = |mount: &Mount| format!("mount {mount:?}");
        found.extend(table.mounts.iter().map(text).filter(|mount| mount.contains(&self.name)));
        found
    }
}

fn read(dir: &str) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect()
}

fn pids() -> Vec<u32> {
    let names =
        read("/proc").into_iter().filter_map(|path| path.file_name().map(ToOwned::to_owned));
    names.filter_map(|name| name.to_string_lossy().parse().ok()).collect()
}

fn line_of(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// The interfaces of a node's pods: those of the routes to the addresses given out.
fn links_of_pods(dir: &Path) -> BTreeSet<String> {
    let given = fs::read_dir(dir.join("node/addresses/longshore")).into_iter().flatten().flatten();
    let given: BTreeSet<String> =
        given.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let routes = fs::read_to_string("/proc/net/route").unwrap();
    let mut found = BTreeSet::new();
    for line in routes.lines().skip(1) {
        let mut fields = line.split_whitespace();
        let (Some(link), Some(to)) = (fields.next(), fields.next()) else { continue };
        let to = u32::from_str_radix(to, 16).unwrap().to_le_bytes();
        if given.contains(&std::net::Ipv4Addr::from(to).to_string()) {
            found.insert(link.to_owned());
        }
    }
    found
}
