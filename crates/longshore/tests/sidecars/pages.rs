//! The one port, the log, and what the process costs the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use longshore_csi::Call;

use crate::common::PATIENCE;
use crate::rig::{DRIVER, LEASES, Rig, SHORT, Sidecars, USUAL, pause, until};
use crate::sidecar::get;

/// The names of the metrics, and of each its labels.
fn families(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap_or((line, ""));
        let name = name.split(' ').next().unwrap().to_owned();
        let labels = rest.split('}').next().unwrap_or_default().split("\",");
        let labels = labels.filter_map(|label| label.split_once('=').map(|(name, _)| name));
        found.entry(name).or_default().extend(labels.map(str::to_owned));
    }
    found
}

// case: sidecars/A34
#[tokio::test(flavor = "multi_thread")]
async fn one_port_has_the_metrics_of_all() {
    let rig = Rig::new("sidecars-metrics");
    let sidecars = rig.sidecars(USUAL).await;
    sidecars.all_lead().await;
    let volume = rig.bound("a").await;
    rig.attach("va", &volume);
    rig.attached("va").await;
    rig.snapshot("s", &rig.handle(&volume));
    rig.snapshotted("s").await;
    let (status, text) = get(&sidecars.address, "/metrics").await;
    assert_eq!(status, 200);
    let found = families(&text);
    let labels = |name: &str| found.get(name).unwrap_or_else(|| panic!("{name}\n{text}")).clone();
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    // Names and labels of the official programs.
    let calls = "csi_sidecar_operations_seconds_count";
    assert_eq!(labels(calls), set(&["driver_name", "method_name", "grpc_status_code"]));
    let queues = [
        "workqueue_adds_total",
        "workqueue_depth",
        "workqueue_retries_total",
        "workqueue_queue_duration_seconds_count",
        "workqueue_work_duration_seconds_count",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "leader_election_master_status",
    ];
    for name in queues {
        assert_eq!(labels(name), set(&["name"]), "{name}");
    }
    for queue in [
        "csi-attacher-va",
        "csi-attacher-pv",
        "claims",
        "volumes",
        "many.example.com-pvc",
        "csi-snapshotter-content",
    ] {
        let series = format!("workqueue_depth{{name=\"{queue}\"}}");
        assert!(text.contains(&series), "{series}\n{text}");
    }
    for (_, lease) in LEASES {
        assert!(text.contains(&format!("leader_election_master_status{{name=\"{lease}\"}} 1")));
    }
    for call in ["CreateVolume", "ControllerPublishVolume", "CreateSnapshot"] {
        let series =
            format!("{calls}{{driver_name=\"{DRIVER}\",method_name=\"/csi.v1.Controller/{call}\"");
        assert!(text.contains(&series), "{series}\n{text}");
    }
    for line in text.lines().filter(|line| line.starts_with("longshore_controller_")) {
        assert!(line.contains(&format!("driver_name=\"{DRIVER}\"")), "{line}");
    }
    for (path, want) in [
        ("/healthz", 404),
        ("/healthz/leader-election", 200),
        ("/healthz/leader-election/resizer", 200),
        ("/healthz/leader-election/nobody", 404),
        ("/healthz/controllers", 200),
        ("/nonsense", 404),
    ] {
        assert_eq!(get(&sidecars.address, path).await.0, want, "{path}");
    }
    // Busy, and two addresses for one thing.
    let busy = rig.start(&format!("--http-endpoint={}", sidecars.address), &[]);
    assert_eq!(busy.ends().await, Some(1));
    let both = rig.start("--metrics-address=127.0.0.1:0", &[]);
    assert_eq!(both.ends().await, Some(1));
}

/// The health of all leases, and of each.
async fn leases(sidecars: &Sidecars) -> Vec<(&'static str, u16, String)> {
    let mut found = Vec::new();
    for path in ["", "/attacher", "/provisioner", "/resizer", "/snapshotter"] {
        let (status, text) =
            get(&sidecars.address, &format!("/healthz/leader-election{path}")).await;
        found.push((path, status, text));
    }
    found
}

// case: sidecars/A35
#[tokio::test(flavor = "multi_thread")]
async fn only_a_lease_that_is_held_and_stuck_is_unhealthy() {
    let rig = Rig::new("sidecars-health");
    // The resizer holds its lease, and never gets to renew it.
    let stuck = [("LONGSHORE_LEASE_FAULT", "resizer:block:1"), ("POD_UID", "aaaaaaaa")];
    let leader = Sidecars::of(rig.start(SHORT, &stuck)).await;
    leader.all_lead().await;
    let well = |all: &[(&str, u16, String)]| {
        all.iter().all(|(_, status, text)| (*status, text.as_str()) == (200, "ok"))
    };
    let standby = Sidecars::of(rig.start(SHORT, &[("POD_UID", "bbbbbbbb")])).await;
    for name in ["attacher", "provisioner", "snapshotter"] {
        standby.is(name, "standby").await;
    }
    let began = Instant::now();
    while well(&leases(&leader).await) {
        assert!(began.elapsed() < PATIENCE, "never unhealthy\n{}", leader.program.text());
        pause().await;
    }
    let (_, lease) = LEASES[2];
    let words = format!("{lease}: failed election to renew leadership for ");
    for (path, status, text) in leases(&leader).await {
        let sick = path.is_empty() || path == "/resizer";
        assert_eq!(status, if sick { 500 } else { 200 }, "{path}: {text}");
        assert_eq!(text.contains(&words), sick, "{path}: {text}");
    }
    // Who stands by is well, and so is who leads and renews: the lease that ran out is there now.
    standby.is("resizer", "leading").await;
    let found = leases(&standby).await;
    assert!(well(&found), "{found:?}");
}

/// What the API server counts, by resource and verb.
async fn counted(rig: &Rig, metric: &str) -> BTreeMap<(String, String), i64> {
    let config = longshore_cluster::ClientConfig::from_kubeconfig(&rig.api.kubeconfig);
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let text = config.client().await.unwrap().request_text(request).await.unwrap();
    let mut found = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{')) {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            Some(rest.split('"').next()?.to_owned())
        };
        let (Some(resource), Some(verb)) = (label("resource"), label("verb")) else { continue };
        let count: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        *found.entry((resource, verb)).or_default() += count;
    }
    found
}

/// Watches that are open, and lists and watches so far, of one resource.
async fn reads(rig: &Rig, resource: &str) -> [i64; 3] {
    let open = counted(rig, "apiserver_longrunning_requests").await;
    let all = counted(rig, "apiserver_request_total").await;
    let of = |counts: &BTreeMap<(String, String), i64>, verb: &str| {
        *counts.get(&(resource.to_owned(), verb.to_owned())).unwrap_or(&0)
    };
    [of(&open, "WATCH"), of(&all, "LIST"), of(&all, "WATCH")]
}

/// Kinds that several controllers need, and some that one needs.
const WATCHED: [&str; 7] = [
    "persistentvolumes",
    "persistentvolumeclaims",
    "storageclasses",
    "volumeattachments",
    "csinodes",
    "volumesnapshotcontents",
    "volumesnapshotclasses",
];

// case: sidecars/A38
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_is_watched_once() {
    let rig = Rig::new("sidecars-watches");
    let mut before = BTreeMap::new();
    for resource in WATCHED {
        before.insert(resource, reads(&rig, resource).await);
    }
    let since = |resource: &str, now: [i64; 3]| {
        let then = before[resource];
        [now[0] - then[0], now[1] - then[1], now[2] - then[2]]
    };
    let sidecars = rig.sidecars("").await;
    sidecars.all_lead().await;
    let volume = rig.bound("a").await;
    rig.attach("va", &volume);
    rig.attached("va").await;
    rig.snapshot("s", &rig.handle(&volume));
    rig.snapshotted("s").await;
    for resource in WATCHED {
        let [open, lists, _] = since(resource, reads(&rig, resource).await);
        // The first list is a part of the watch.
        assert!(open == 1 && lists <= 1, "{resource}: {open} watches, {lists} lists");
    }
    assert_eq!(sidecars.program.terminate().await, Some(0));
    for resource in WATCHED {
        let began = Instant::now();
        // The server counts a watch at its end.
        let all = loop {
            let [open, _, all] = since(resource, reads(&rig, resource).await);
            if open == 0 && all > 0 {
                break all;
            }
            assert!(began.elapsed() < PATIENCE, "{resource}: {open} open, {all} ended");
            pause().await;
        };
        assert!(all == 1, "{resource}: {all} watches");
    }
}

/// What no controller of the process needs is not read.
// case: sidecars/A38
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_nobody_needs_is_not_watched() {
    let rig = Rig::new("sidecars-unwatched");
    let sidecars = rig.sidecars("--controllers=attacher").await;
    sidecars.is("attacher", "leading").await;
    assert!(reads(&rig, "volumeattachments").await[0] >= 1);
    for resource in ["volumesnapshotcontents", "volumesnapshotclasses", "volumeattributesclasses"] {
        assert_eq!(reads(&rig, resource).await, [0; 3], "{resource}");
    }
}

// case: sidecars/A40
#[tokio::test(flavor = "multi_thread")]
async fn lines_say_which_controller_they_are_from_and_no_secret() {
    const CANARY: &str = "canary-5f1d";
    let rig = Rig::new("sidecars-log");
    rig.api.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: keys, namespace: default}}\nstringData: {{key: {CANARY}}}\n"
    ));
    rig.api.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: keyed}}\nprovisioner: {DRIVER}\n\
         parameters:\n  csi.storage.k8s.io/provisioner-secret-name: keys\n  \
         csi.storage.k8s.io/provisioner-secret-namespace: default\n  \
         csi.storage.k8s.io/controller-publish-secret-name: keys\n  \
         csi.storage.k8s.io/controller-publish-secret-namespace: default\n  \
         csi.storage.k8s.io/controller-expand-secret-name: keys\n  \
         csi.storage.k8s.io/controller-expand-secret-namespace: default\n"
    ));
    let sidecars = rig.sidecars(&format!("{USUAL} -v=8")).await;
    sidecars.all_lead().await;
    rig.claim_of("a", "keyed");
    let volume = rig.volume_of("a").await;
    rig.attach("va", &volume);
    rig.attached("va").await;
    until("the calls are there", || {
        (rig.calls(Call::CreateVolume) + rig.calls(Call::ControllerPublishVolume) >= 2)
            .then_some(())
    })
    .await;
    let text = sidecars.program.text();
    assert!(!text.contains(CANARY), "a secret is in the log");
    for (call, controller) in [
        ("/csi.v1.Controller/CreateVolume", "provisioner"),
        ("/csi.v1.Controller/ControllerPublishVolume", "attacher"),
    ] {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(call)).collect();
        let named = format!("controller=\"{controller}\"");
        assert!(!lines.is_empty(), "{call}");
        assert!(lines.iter().all(|line| line.contains(&named)), "{call}: {lines:#?}");
    }
    for (name, _) in LEASES {
        let named = format!("controller=\"{name}\"");
        let leads =
            text.lines().any(|line| line.contains("became leader") && line.contains(&named));
        assert!(leads, "{name}\n{text}");
    }
}
