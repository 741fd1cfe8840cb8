//! Resizer, driver and node are killed at named points while volumes grow under pods that write.
//!
//! In each round one point of each of the three is armed. CI kills at least five times at each point;
//! `LONGSHORE_LONG=1` plays 50 rounds.

use std::{
    collections::BTreeMap,
    os::unix::{fs::FileExt as _, process::ExitStatusExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use longshore_testing::{Need, holds_within, need};
use serde_json::Value;

use super::{common::*, volume::conditions};

const NODE: &str = "n";
const MIB: u64 = 1 << 20;
/// How much a claim grows in a round.
const STEP_MIB: u64 = 8;

const RESIZER: [&str; 4] =
    ["expand.marked", "expand.answered", "expand.volume-written", "expand.claim-written"];
const DRIVER: [&str; 4] =
    ["expand.reserved", "expand.recorded", "expand.stretched", "expand.device-grown"];
const AGENT: [&str; 3] = longshore_node::fault::EXPAND_POINTS;

const OBJECTS: &str = "
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: shared.csi.longshore.dev}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared}
provisioner: shared.csi.longshore.dev
allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: xfs}
";

/// Numbers, each on the disk before it is printed.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i >> /data/numbers; \
                       sync /data/numbers && echo $i; sleep 0.02; done";
/// Whole blocks at a place that is there from the start, each on the disk before it is printed.
const RAW_COUNTER: &str = "i=0; while :; do i=$((i+1)); printf '%08d' $i | \
    dd of=/dev/raw bs=8 count=1 seek=$i conv=notrunc,fsync 2>/dev/null && echo $i; sleep 0.02; done";

/// A program that is started again whenever it has ended, as a kubelet would.
struct Program {
    name: &'static str,
    args: Vec<String>,
    /// Where it is to end itself, by the name of its variable.
    armed: Option<(&'static str, &'static str)>,
    child: Option<Child>,
    kills: BTreeMap<&'static str, usize>,
}

impl Program {
    fn new(name: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { name, args, armed: None, child: None, kills: BTreeMap::new() }
    }

    /// Whether it runs. One that has ended itself at its point is counted.
    fn runs(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        let Some(status) = child.try_wait().unwrap() else { return true };
        if status.signal() == Some(9)
            && let Some((_, point)) = self.armed.take()
        {
            *self.kills.entry(point).or_default() += 1;
        }
        self.child = None;
        false
    }

    /// Starts it if it does not run.
    fn keep(&mut self, home: &Home) {
        if self.runs() {
            return;
        }
        let log = home.path().join(format!("{}.log", self.name));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(binary());
        command.args(&self.args).env_remove("KUBECONFIG");
        if let Some((variable, point)) = self.armed {
            command.env(variable, format!("{point}:1"));
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Starts it anew with a point at which it will end.
    fn arm(&mut self, home: &Home, variable: &'static str, point: &'static str) {
        self.end();
        self.armed = Some((variable, point));
        self.keep(home);
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// The programs of one node and one driver.
struct Cluster {
    resizer: Program,
    driver: Program,
    agent: Program,
    others: Vec<Program>,
    api: Instance,
    home: Home,
}

impl Cluster {
    fn start() -> Self {
        let home = Home::new("resize-killed");
        let api = Instance::start(&home, "api", &["apiserver"]);
        api.apply(OBJECTS);
        let registry = home.path().join("n/plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        let at = |name: &str| home.path().join(name).display().to_string();
        let config = api.kubeconfig.display().to_string();
        let (socket, pool, root) = (at("csi.sock"), at("pool"), at("n"));
        let endpoint = format!("unix://{socket}");
        let address = format!("--csi-address={socket}");
        let driver = ["driver", "--kind", "shared", "--node-id", NODE, "--pool", &pool];
        let driver = Program::new("driver", &[&driver[..], &["--endpoint", &endpoint]].concat());
        let short = ["--retry-interval-start=50ms", "--retry-interval-max=1s"];
        let line = ["resizer", &address, "--kubeconfig", &config];
        let resizer = Program::new("resizer", &[&line[..], &short].concat());
        let line = ["node", "--node-name", NODE, "--root-dir", &root, "--kubeconfig", &config];
        let agent = Program::new("node", &line);
        let path = format!("--kubelet-registration-path={socket}");
        let plugins = format!("--plugin-registration-path={}", registry.display());
        let all = ["controllers", "--controllers=*,scheduler", "--leader-elect=false"];
        let others = vec![
            Program::new("registrar", &["node-registrar", &address, &path, &plugins]),
            Program::new("provisioner", &["provisioner", &address, "--kubeconfig", &config]),
            Program::new("attacher", &["attacher", &address, "--kubeconfig", &config]),
            Program::new("controllers", &[&all[..], &["--kubeconfig", &config]].concat()),
        ];
        let mut cluster = Self { resizer, driver, agent, others, api, home };
        cluster.keep();
        cluster
    }

    fn keep(&mut self) {
        let Self { resizer, driver, agent, others, home, .. } = self;
        driver.keep(home);
        for program in [resizer, agent].into_iter().chain(others) {
            program.keep(home);
        }
    }

    /// Waits, and keeps all programs running meanwhile.
    fn until(&mut self, what: &str, done: impl Fn(&Instance) -> bool) {
        let began = Instant::now();
        while !done(&self.api) {
            assert!(began.elapsed() < PATIENCE, "never happened: {what}\n{}", self.log());
            self.keep();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        let mut all = String::new();
        for name in ["resizer", "driver", "node"] {
            let file = self.home.path().join(format!("{name}.log"));
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            all += &format!("{name}:\n{}\n", lines[lines.len().saturating_sub(15)..].join("\n"));
        }
        let claims = self.api.cli(&["get", "pvc", "-o", "json"]);
        all + &text(&claims)
    }

    fn round(&mut self, number: usize) {
        let (home, size) = (&self.home, 304 + STEP_MIB * (number as u64 + 1));
        self.driver.arm(home, "LONGSHORE_DRIVER_FAULT", DRIVER[number % DRIVER.len()]);
        self.resizer.arm(home, "LONGSHORE_RESIZER_FAULT", RESIZER[number % RESIZER.len()]);
        self.agent.arm(home, "LONGSHORE_NODE_FAULT", AGENT[number % AGENT.len()]);
        for claim in ["files", "raw"] {
            let patch = format!(
                "{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"{size}Mi\"}}}}}}}}"
            );
            let done = self.api.kubectl(&["patch", "pvc", claim, "-p", &patch]);
            assert!(done.status.success(), "{}", text(&done));
        }
        let grown = |claim: &Value| {
            let status = &claim["status"];
            status["capacity"]["storage"] == *format!("{size}Mi")
                && status["allocatedResourceStatuses"].is_null()
                && conditions(claim).is_empty()
        };
        self.until(&format!("both have grown in round {number}"), |api| {
            ["files", "raw"].iter().all(|claim| grown(&api.json("pvc", claim)))
        });
        for claim in ["files", "raw"] {
            self.sizes_agree(claim, size * MIB);
        }
        // One that ends itself after the last step does so about now.
        for program in [&mut self.resizer, &mut self.driver, &mut self.agent] {
            let ended = || program.armed.is_none() || !program.runs();
            let _ = holds_within(Duration::from_millis(300), ended);
        }
    }

    /// Claim, volume, image, device and filesystem have one size.
    fn sizes_agree(&self, claim: &str, bytes: u64) {
        let volume = self.api.bound(claim);
        assert_eq!(volume["spec"]["capacity"]["storage"], *format!("{}Mi", bytes / MIB));
        assert_eq!(self.image_of(claim).metadata().unwrap().len(), bytes, "image of {claim}");
        let device = self.device_of(claim);
        let name = device.trim_start_matches("/dev/");
        let sectors = std::fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
        assert_eq!(sectors.trim().parse::<u64>().unwrap() * 512, bytes, "device of {claim}");
        if claim == "files" {
            let stat = rustix::fs::statvfs(self.mount_of(claim)).unwrap();
            let seen = stat.f_blocks * stat.f_frsize;
            assert!(seen > bytes * 75 / 100 && seen <= bytes, "{seen} of {bytes} are seen");
        }
    }

    fn handle_of(&self, claim: &str) -> String {
        self.api.bound(claim)["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned()
    }

    fn image_of(&self, claim: &str) -> PathBuf {
        self.home.path().join(format!("pool/{}.img", self.handle_of(claim)))
    }

    fn device_of(&self, claim: &str) -> String {
        let handle = self.handle_of(claim);
        let (device, _) = loops().into_iter().find(|(_, file)| file.contains(&handle)).unwrap();
        device
    }

    /// Where the pod's node has it.
    fn mount_of(&self, claim: &str) -> PathBuf {
        let volume = self.api.bound(claim);
        let name = volume["metadata"]["name"].as_str().unwrap();
        let mounts = mounts_below(self.home.path());
        let point = mounts.iter().find(|at| at.contains(name) && at.ends_with("/mount")).unwrap();
        PathBuf::from(point)
    }

    /// The last number that a pod has printed, which must be on the disk. No API shows logs of this node.
    fn last(&self, pod: &str) -> u64 {
        let uid = self.api.json("pod", pod)["metadata"]["uid"].as_str().unwrap().to_owned();
        let log = self.home.path().join(format!("n/pods/{uid}/logs/main.log"));
        let log = std::fs::read_to_string(log).unwrap();
        log.lines().last().and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }
}

fn claim_of(name: &str, mode: &str) -> String {
    let claim = claim(name, "shared").replace("16Mi", "304Mi");
    format!("{claim}  volumeMode: {mode}\n")
}

#[test]
fn growth_under_writers_outlives_kills_at_every_point() {
    let test = "resize-killed";
    if !can_kubectl(test) || !need(test, &[Need::Tool("mkfs.xfs")]) {
        return;
    }
    let rounds = if std::env::var("LONGSHORE_LONG").is_ok() { 50 } else { 20 };
    let mut cluster = Cluster::start();
    cluster.api.apply(&claim_of("files", "Filesystem"));
    cluster.api.apply(&claim_of("raw", "Block"));
    cluster.api.apply(&pod("files", "files", COUNTER));
    cluster.api.apply(&pod("raw", "raw", RAW_COUNTER).replace(
        "volumeMounts: [{name: data, mountPath: /data}]",
        "volumeDevices: [{name: data, devicePath: /dev/raw}]",
    ));
    cluster.until("both pods run", |api| {
        let runs = |pod: &str| api.json("pod", pod)["status"]["phase"] == "Running";
        runs("files") && runs("raw")
    });
    for number in 0..rounds {
        cluster.round(number);
    }
    let programs = [&cluster.resizer, &cluster.driver, &cluster.agent];
    for (program, points) in programs.into_iter().zip([&RESIZER[..], &DRIVER, &AGENT]) {
        for point in points {
            let kills = program.kills.get(point).copied().unwrap_or(0);
            println!("fault point: {} at {point}: {kills} kills", program.name);
            assert!(kills >= 5, "{} was killed {kills} times at {point}", program.name);
        }
    }
    // What was printed is there, without a gap.
    let (files, raw) = (cluster.last("files"), cluster.last("raw"));
    assert!(files > 100 && raw > 50, "{files} and {raw}: the pods hardly wrote");
    let numbers = std::fs::read_to_string(cluster.mount_of("files").join("numbers")).unwrap();
    let numbers: Vec<u64> = numbers.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.len() as u64 >= files && numbers.iter().zip(1..).all(|(a, b)| *a == b));
    let mut numbers = vec![0; 8 * usize::try_from(raw).unwrap()];
    let device = std::fs::File::open(cluster.device_of("raw")).unwrap();
    device.read_exact_at(&mut numbers, 8).unwrap();
    drop(device);
    let numbers = String::from_utf8_lossy(&numbers);
    let wanted: String = (1..=raw).map(|number| format!("{number:08}")).collect();
    assert_eq!(numbers, wanted, "a number is lost");
    println!("{rounds} rounds; {files} and {raw} numbers, none lost");
    for pod in ["files", "raw"] {
        let done = cluster.api.cli(&["delete", "pod", pod, "--wait=false"]);
        assert!(done.status.success(), "{}", text(&done));
    }
    let home = cluster.home.path().to_owned();
    cluster.until("all is unmounted", |_| loops_below(&home).is_empty());
    let image = cluster.image_of("files").display().to_string();
    let checked = Command::new("xfs_repair").args(["-n", &image]).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
}
