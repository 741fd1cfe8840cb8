//! Slow detaches and quick attaches.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Cache, Change, Scope};
use longshore_core::{
    attach::AttachState::{Attached, Detached},
    model::{
        ObjectKey,
        kinds::{Node, Pod, VolumeAttachment},
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::rig::{Fate, Rig, is_detach};
use super::{attachment, one_pod, unique};
use crate::{
    attach::Config,
    testing::{Bench, DRIVER},
};

const SECOND: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(10);
const MANY: usize = 1000;
const FEWER: usize = 200;

/// A driver that attaches at once and needs [`SLOW`] for each detach, one after the other.
/// It notes what it is asked, in order.
struct Scripted {
    asked: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
}

impl Scripted {
    fn start(bench: &Bench) -> Self {
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let (cache, _) = Cache::<VolumeAttachment>::start(&bench.api, Scope::all(), &stop);
        let (attaches, mut to_attach) = mpsc::unbounded_channel::<String>();
        let (detaches, mut to_detach) = mpsc::unbounded_channel::<String>();
        let noted = asked.clone();
        let kept = cache.subscribe(move |change| {
            let Change::Applied { old, new } = change else { return };
            let (name, deleting) = (new.metadata.name.clone(), new.metadata.deleting());
            if deleting && !old.as_ref().is_some_and(|old| old.metadata.deleting()) {
                noted.lock().push(format!("detach {}", new.spec.node_name));
                let _ = detaches.send(name);
            } else if old.is_none() && new.metadata.finalizers.is_empty() {
                noted.lock().push(format!("attach {}", new.spec.node_name));
                let _ = attaches.send(name);
            }
        });
        let api = bench.api.clone();
        tokio::spawn(async move {
            while let Some(name) = to_attach.recv().await {
                let attached = json!({"status": {"attached": true}});
                let patch = longshore_cluster::Patch::Merge(&attached);
                let _ =
                    api.patch_status::<VolumeAttachment>(&ObjectKey::cluster(name), patch).await;
            }
        });
        let (api, cache) = (bench.api.clone(), cache.clone());
        tokio::spawn(async move {
            // The cache lives as long as its reader.
            let _cache = (cache, kept);
            while let Some(name) = to_detach.recv().await {
                tokio::time::sleep(SLOW).await;
                let done = json!({"metadata": {"finalizers": null}});
                let patch = longshore_cluster::Patch::Merge(&done);
                let _ = api.patch::<VolumeAttachment>(&ObjectKey::cluster(name), patch).await;
            }
        });
        Self { asked, stop }
    }

    fn asked(&self, part: &str) -> Vec<String> {
        self.asked.lock().iter().filter(|line| line.starts_with(part)).cloned().collect()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A node that was left with volumes which nobody wants.
async fn abandoned(bench: &Bench, node: &str, volumes: usize) {
    bench.node(node).await;
    let mut listed: Vec<Value> = Vec::new();
    for at in 0..volumes {
        let handle = format!("{node}-{at}");
        let name = attachment(&handle, node).name;
        let spec = json!({"attacher": DRIVER, "nodeName": node,
            "source": {"persistentVolumeName": handle}});
        let finalizers = ["external-attacher/test"];
        let meta = json!({"name": name, "finalizers": finalizers});
        bench.create::<VolumeAttachment>(json!({"metadata": meta, "spec": spec})).await;
        listed.push(json!({"name": unique(&handle), "devicePath": ""}));
    }
    let status = json!({"status": {"volumesAttached": listed}});
    bench.merge_status::<Node>(&ObjectKey::cluster(node), status).await;
}

fn gauge(rig: &Rig, name: &str, lane: &str) -> f64 {
    rig.metric(&format!("{name}{{name=\"attachdetach-{lane}\"}}")).expect("exported")
}

#[tokio::test(start_paused = true)]
async fn a_thousand_slow_detaches_do_not_delay_an_attach() {
    let bench = Bench::start().await;
    for node in 0..20 {
        abandoned(&bench, &format!("old-{node}"), MANY / 20).await;
    }
    let driver = Scripted::start(&bench);
    let rig = Rig::on(bench, Config::default());
    rig.bench.pass(SECOND).await;
    assert_eq!(driver.asked("detach").len(), MANY, "the driver has them all");
    assert_eq!(gauge(&rig, "workqueue_depth", "detach"), 0.0, "waiting takes no place");
    let before = Instant::now();
    one_pod(&rig.bench).await;
    rig.until_state("h1", "n1", Attached).await;
    assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
    assert_eq!(driver.asked("attach"), ["attach n1"]);
    let left = rig.controller.state.lock().actual.all().len();
    assert_eq!(left, MANY + 1, "not one of the detaches had come to its end");
    let order = driver.asked.lock().iter().position(|asked| asked == "attach n1");
    assert_eq!(order, Some(MANY), "asked last, done first");
    rig.bench.pass(SLOW * 3).await;
    let oldest = gauge(&rig, "workqueue_longest_running_processor_seconds", "detach");
    assert!(oldest >= 30.0, "{oldest}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_keeps_detaches_in_their_lane() {
    let bench = Bench::start().await;
    abandoned(&bench, "old", FEWER).await;
    abandoned(&bench, "other", 1).await;
    let driver = Scripted::start(&bench);
    let rig = Rig::on(bench, Config { concurrent_requests: 4, ..Config::default() });
    rig.wire.script(|method, path| match is_detach(method, path) {
        true => Fate::Slow(SLOW),
        false => Fate::Pass,
    });
    rig.bench.pass(SECOND).await;
    assert_eq!(rig.wire.sent("DELETE").len(), 4);
    assert_eq!(gauge(&rig, "workqueue_depth", "detach"), (FEWER - 3) as f64);
    let before = Instant::now();
    one_pod(&rig.bench).await;
    rig.until_state("h1", "n1", Attached).await;
    assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
    // In order: four detaches, then the attach, and only then the others.
    let sent = rig.wire.sent("/volumeattachments");
    let order: Vec<&str> = sent.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(order, ["DELETE", "DELETE", "DELETE", "DELETE", "POST"]);
    assert_eq!(gauge(&rig, "workqueue_depth", "attach"), 0.0);
    let age = gauge(&rig, "longshore_workqueue_oldest_age_seconds", "detach");
    assert!((1.0..SLOW.as_secs_f64()).contains(&age), "{age}");
    // The node with one volume is not behind the node with hundreds.
    let only = attachment("other-0", "other").name;
    assert!(rig.wire.sent("DELETE").iter().any(|line| line.ends_with(&only)), "{sent:?}");
    rig.bench.pass(SLOW * 2).await;
    assert!(driver.asked("detach").contains(&"detach other".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn many_detaches_from_one_node_share_its_report() {
    let bench = Bench::start().await;
    abandoned(&bench, "old", FEWER).await;
    let driver = Scripted::start(&bench);
    let rig = Rig::on(bench, Config { concurrent_requests: 2, ..Config::default() });
    rig.bench.pass(SECOND).await;
    assert_eq!(driver.asked("detach").len(), FEWER);
    let sent = rig.wire.sent("");
    let first = sent.iter().position(|line| line.starts_with("DELETE"));
    let reports = |line: &&String| line.starts_with("PATCH /api/v1/nodes/old");
    let before = sent[..first.expect("detached")].iter().filter(reports).count();
    assert_eq!((before, sent.iter().filter(reports).count()), (1, 1), "one for all, and first");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_wanted_again_is_reported_again() {
    let rig = Rig::with(Config { concurrent_requests: 1, ..Config::default() }).await;
    rig.attached().await;
    rig.bench.claim("more", "").await;
    rig.bench.bind("more", "pv2", "h2").await;
    rig.bench.pod("batch", Some("n1"), &["more"]).await;
    super::say_attached(&rig.bench, &attachment("h2", "n1")).await;
    rig.until_state("h2", "n1", Attached).await;
    rig.bench.in_use("n1", &[unique("h1"), unique("h2")]).await;
    rig.wire.script(|method, path| match is_detach(method, path) {
        true => Fate::Slow(SLOW),
        false => Fate::Pass,
    });
    rig.bench.delete::<Pod>(&crate::testing::key("batch")).await;
    rig.bench.delete::<Pod>(&crate::testing::key("web")).await;
    rig.bench.pass(SECOND).await;
    rig.bench.in_use("n1", &[]).await;
    rig.bench.pass(SECOND).await;
    assert_eq!(rig.wire.sent("DELETE").len(), 1, "one place");
    let waiting = if rig.wire.sent("DELETE")[0].ends_with(&attachment("h1", "n1").name) {
        ("h2", "more")
    } else {
        ("h1", "data")
    };
    assert!(!rig.reported(waiting.0, "n1"), "off the report with the other");
    rig.bench.pod("again", Some("n1"), &[waiting.1]).await;
    super::until_reported(&rig.bench, "n1", waiting.0, true).await;
    rig.bench.pass(SLOW * 3).await;
    assert_eq!(rig.wire.sent("DELETE").len(), 1, "it stays");
    assert_eq!(rig.state(waiting.0, "n1"), Attached);
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_a_pod_waits_for_goes_first() {
    let rig = Rig::with(Config { concurrent_requests: 1, ..Config::default() }).await;
    rig.attached().await;
    let web = crate::testing::key("web");
    for name in ["a", "b", "c"] {
        rig.bench.claim(name, "").await;
        rig.bench.bind(name, &format!("pv-{name}"), name).await;
    }
    rig.bench.pod("batch", Some("n1"), &["a", "b", "c"]).await;
    for name in ["a", "b", "c"] {
        super::say_attached(&rig.bench, &attachment(name, "n1")).await;
        rig.until_state(name, "n1", Attached).await;
    }
    rig.bench.in_use("n1", &[]).await;
    rig.bench.node("n2").await;
    rig.wire.script(|method, path| match is_detach(method, path) {
        true => Fate::Slow(SLOW),
        false => Fate::Pass,
    });
    rig.bench.delete::<Pod>(&crate::testing::key("batch")).await;
    rig.bench.pass(SECOND).await;
    rig.bench.delete::<Pod>(&web).await;
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    rig.until_state("h1", "n1", Detached).await;
    let sent = rig.wire.sent("DELETE");
    assert_eq!(sent.len(), 3, "the one under way, the one that is waited for, the next");
    assert!(sent[1].ends_with(&attachment("h1", "n1").name), "{sent:?}");
}
