//! What a pod can do under `longshore up`, beside the same pod under containerd and runc.
//!
//! The same program answers the same questions in both (`probe.c`). What differs must be in the table
//! of deliberate differences (`differences.rs`), with its reason; a line of the table that does not
//! differ any more fails too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod differences;
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use differences::{Line, Reason};
use longshore_real_kube::{
    Cluster, Controllers, Options, kubectl_with_input, longshore,
    node::{self, IMAGE},
    tools::{self, Tool},
};
use longshore_testing::{Need, need, report};
use serde_json::{Value, json};
use support::{TOOLS, options};

/// Name of a probe to its answer.
type Answers = BTreeMap<String, String>;

/// `longshore up`; ended when dropped.
struct Up {
    child: Child,
    dir: PathBuf,
    kubeconfig: PathBuf,
}

impl Up {
    fn start(dir: &Path) -> Self {
        let log = fs::File::create(dir.join("up.log")).unwrap();
        let mut command = Command::new(longshore());
        // The pods name an image of the other node.
        command.args(["up", "--run-any-image-on-host", "--listen", "127.0.0.1:0", "--data-dir"]);
        command.arg(dir.join("data"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let kubeconfig = line.trim().strip_prefix("ready kubeconfig=").map(PathBuf::from);
        let up = Self { child, dir: dir.to_owned(), kubeconfig: kubeconfig.unwrap_or_default() };
        assert!(up.kubeconfig.is_file(), "not ready: {line:?}\n{}", up.log());
        up
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("up.log")).unwrap_or_default()
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Output {
        kubectl_with_input(&self.kubeconfig, &self.dir.join("cache"), args, stdin).unwrap()
    }

    /// SIGTERM, then the exit code.
    fn stop(mut self) -> Option<i32> {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "does not stop:\n{}", self.log());
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

/// The pods: as root with nothing said, as a user with nothing said, and as Pod Security's
/// restricted level wants it.
fn contexts() -> [(&'static str, Value); 3] {
    let restricted = json!({
        "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": true,
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
    });
    [
        ("root", json!({ "runAsUser": 0, "runAsGroup": 0 })),
        ("user", json!({ "runAsUser": 1000, "runAsGroup": 1000 })),
        ("restricted", restricted),
    ]
}

fn pod(name: &str, context: &Value, program: &Path) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/probe/probe"],
                "workingDir": "/",
                "securityContext": context,
                "volumeMounts": [
                    { "name": "probe", "mountPath": "/probe", "readOnly": true },
                    { "name": "data", "mountPath": "/data" },
                    { "name": "memory", "mountPath": "/memory" },
                    { "name": "secret", "mountPath": "/secret" },
                ],
            }],
            "volumes": [
                { "name": "probe", "hostPath": { "path": program.parent().unwrap() } },
                { "name": "data", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory" } },
                { "name": "secret", "secret": { "secretName": "none", "optional": true } },
            ],
        },
    })
    .to_string()
}

/// Runs the pods to their ends and takes what they said.
fn answers(what: &str, program: &Path, kubectl: impl Fn(&[&str], &str) -> Output) -> Vec<Answers> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ok = |args: &[&str], stdin: &str| {
        let done = kubectl(args, stdin);
        if !done.status.success() {
            let events = text(&kubectl(&["get", "events"], "").stdout);
            panic!("{what}: kubectl {args:?}: {}\n{events}", text(&done.stderr));
        }
        text(&done.stdout)
    };
    for (name, context) in contexts() {
        ok(&["apply", "--filename", "-"], &pod(name, &context, program));
    }
    let answers = contexts().map(|(name, _)| {
        let done = "--for=jsonpath={.status.phase}=Succeeded";
        ok(&["wait", done, &format!("pod/{name}"), "--timeout=60s"], "");
        let log = ok(&["logs", name], "");
        let lines = log.lines().map(|line| line.split_once(" = ").unwrap_or((line, "")));
        let mut all: Answers =
            lines.map(|(name, said)| (name.to_owned(), said.to_owned())).collect();
        assert_eq!(all.len(), log.lines().count(), "{what}: a probe has its name for itself");
        assert!(all.contains_key("the end"), "{what}: {name} made every probe:\n{log}");
        let message = "-o=jsonpath={.status.containerStatuses[0].state.terminated.message}";
        all.insert(
            "termination message in the status".into(),
            ok(&["get", "pod", name, message], ""),
        );
        all
    });
    answers.into()
}

/// Compiles the probes into a program that needs no libraries: the image has none.
fn compile(dir: &Path) -> PathBuf {
    // A user of the pod must get through.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let (source, program) = (dir.join("probe.c"), dir.join("probe"));
    fs::write(&source, include_str!("probe.c")).unwrap();
    let mut command = Command::new("cc");
    command.args(["-static", "-O1", "-w", "-o"]).arg(&program).arg(&source);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// What differs between two pods beyond what is meant to; what is meant to goes to `met`.
fn compare(
    pod: &str,
    ours: &Answers,
    theirs: &Answers,
    met: &mut Vec<(&'static Reason, &'static Line)>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (probe, said) in ours {
        let other = theirs.get(probe).map_or("", String::as_str);
        if said == other {
            continue;
        }
        match differences::find(probe, said, other) {
            Some(known) => met.push(known),
            None => wrong.push(format!("{pod}: {probe}: ours {said:?}, runc {other:?}")),
        }
    }
    wrong
}

#[test]
fn a_pod_can_do_what_it_can_do_under_runc_and_no_more() {
    let name = "a_pod_can_do_what_it_can_do_under_runc_and_no_more";
    let machine = need(name, &[Need::Root, Need::Tool("cc")]) && node::possible();
    let runtime = [Tool::Containerd, Tool::ContainerdShim];
    if !machine || !tools::need(&TOOLS) || !tools::need(&runtime) {
        return;
    }
    let dir = |name: &str| tempfile::Builder::new().prefix(name).tempdir().unwrap();
    let (home, shared) = (dir("longshore-alike-"), dir("longshore-probe-"));
    let program = compile(shared.path());
    let up = Up::start(home.path());
    let ours = answers("ours", &program, |args, stdin| up.kubectl(args, stdin));
    assert_eq!(up.stop(), Some(0));

    let options = Options { pinned_containerd: true, ..options(Controllers::Volumes) };
    let cluster = Cluster::start(&options).unwrap();
    let theirs = answers("runc", &program, |args, stdin| {
        cluster.kubectl_as(cluster.kubeconfig(), args, stdin).unwrap()
    });
    cluster.stop().unwrap();

    let (mut wrong, mut met) = (Vec::new(), Vec::new());
    for (((pod, _), ours), theirs) in contexts().iter().zip(&ours).zip(&theirs) {
        let names = |of: &Answers| of.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(ours), names(theirs), "{pod}: the same probes");
        wrong.extend(compare(pod, ours, theirs, &mut met));
    }
    let probes: usize = ours.iter().map(BTreeMap::len).sum();
    let (alike, deliberate) = (probes - wrong.len() - met.len(), met.len());
    report(&format!(
        "pods beside runc: {probes} probes, {alike} alike, {deliberate} deliberate differences"
    ));
    for reason in differences::ALL {
        let lines = met.iter().filter(|(found, _)| found.why == reason.why).count();
        report(&format!("  {lines} because {}", reason.why));
    }
    assert_eq!(wrong, Vec::<String>::new(), "differences that nobody meant");
    let must = differences::ALL.iter().filter(|reason| !reason.of_the_machine);
    let unmet: Vec<&Line> = must
        .flat_map(|reason| reason.lines)
        .filter(|line| !met.iter().any(|(_, found)| found == line))
        .collect();
    assert!(unmet.is_empty(), "no longer differ, so they must leave the table: {unmet:#?}");
    assert!(probes >= 3 * 40);
}
