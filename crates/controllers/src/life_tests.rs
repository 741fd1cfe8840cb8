//! All loops of this crate together: a volume's whole life, with tests playing only the node.

use std::{collections::BTreeMap, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use longshore_cluster::{Context, ListParams};
use longshore_core::{
    model::{
        ClaimPhase, ObjectKey,
        kinds::{
            Claim, CsiDriver, CsiNode, Node, Pod, StorageClass, Volume, VolumeAttachment,
            VolumeAttributesClass,
        },
    },
    names::UniqueName,
};
use longshore_csi::fake::Driver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    attach, attacher, bind, expand, protect, provision, schedule,
    testing::{Bench, DRIVER, Process, key},
};

/// One process with every loop in it.
fn start(bench: &Bench, driver: &Driver) -> Process {
    let mut process = bench.process();
    let shutdown = process.shutdown.clone();
    for work in all_loops(&process.context, driver, &shutdown) {
        process.spawn(work);
    }
    process
}

fn all_loops(
    context: &Context,
    driver: &Driver,
    stop: &CancellationToken,
) -> Vec<BoxFuture<'static, ()>> {
    let stop = || stop.clone();
    let csi = || driver.client();
    let parts = provision::Parts::new(context, csi(), "provisioner");
    let guarded =
        provision::Config { leak_guard: Some("default".into()), ..provision::Config::default() };
    let attacher = attacher::Attacher::new(context, csi(), attacher::Config::default());
    vec![
        bind::Binder::new(context, bind::Config::default(), None).run(stop()).boxed(),
        provision::run(guarded, parts, stop()).boxed(),
        schedule::Scheduler::new(context, schedule::Config::default()).run(stop()).boxed(),
        attach::AttachDetach::new(context, attach::Config::default()).run(stop()).boxed(),
        attacher.run_with_retries(stop()).boxed(),
        protect::ClaimProtection::new(context, true).run(stop()).boxed(),
        protect::VolumeProtection::new(context).run(stop()).boxed(),
        protect::ClassProtection::new(context).run(stop()).boxed(),
        protect::EphemeralClaims::new(context, 5).run(stop()).boxed(),
        expand::Expander::new(context).run(stop()).boxed(),
    ]
}

/// A scraper refuses the whole text when a family stands there twice.
#[tokio::test(start_paused = true)]
async fn a_process_with_every_loop_shows_each_metric_family_once() {
    let bench = Bench::start().await;
    let process = start(&bench, &Driver::new(DRIVER));
    bench.pass(Duration::from_secs(1)).await;
    let text = process.context.metrics.render();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        assert!(seen.insert(line), "twice: {line}");
    }
    assert!(seen.contains("# TYPE workqueue_adds_total counter"), "{text}");
}

/// How many subscribers the caches of the process have, by kind.
fn subscribers(context: &Context) -> Vec<(&'static str, usize)> {
    vec![
        ("claims", context.cache::<Claim>().subscribers()),
        ("volumes", context.cache::<Volume>().subscribers()),
        ("classes", context.cache::<StorageClass>().subscribers()),
        ("pods", context.cache::<Pod>().subscribers()),
        ("nodes", context.cache::<Node>().subscribers()),
        ("csi nodes", context.cache::<CsiNode>().subscribers()),
        ("drivers", context.cache::<CsiDriver>().subscribers()),
        ("attachments", context.cache::<VolumeAttachment>().subscribers()),
        ("attributes classes", context.cache::<VolumeAttributesClass>().subscribers()),
    ]
}

#[tokio::test(start_paused = true)]
async fn ten_lost_leases_leave_no_subscriber_of_any_loop() {
    let (bench, driver) = cluster().await;
    let process = bench.process();
    let mut first = None;
    for round in 0..10 {
        let lease = CancellationToken::new();
        let mut loops = JoinSet::new();
        for work in all_loops(&process.context, &driver, &lease) {
            loops.spawn(work);
        }
        bench.pass(Duration::from_secs(2)).await;
        let counts = subscribers(&process.context);
        assert!(counts.iter().all(|(_, count)| *count > 0), "round {round}: {counts:?}");
        assert_eq!(*first.get_or_insert(counts.clone()), counts, "round {round}");
        // A lost lease ends a loop gently; a lost process, or a panic beside it, does not.
        match round % 2 {
            0 => lease.cancel(),
            _ => loops.abort_all(),
        }
        while loops.join_next().await.is_some() {}
        // Workers that are aborted with their loop are dropped when they are next scheduled.
        bench.pass(Duration::from_millis(1)).await;
        let left = subscribers(&process.context);
        assert!(left.iter().all(|(_, count)| *count == 0), "round {round}: {left:?}");
    }
}

async fn cluster() -> (Bench, Driver) {
    let (bench, driver) = (Bench::start().await, Driver::new(DRIVER));
    driver.on_node("id-of-n1", BTreeMap::new());
    bench.driver().await;
    bench.node("n1").await;
    bench.class("wait", "WaitForFirstConsumer").await;
    (bench, driver)
}

/// Plays the node while the pod runs: waits for the volume, and says that it uses it.
async fn use_volume(bench: &Bench, claim: &str) -> String {
    let claim =
        bench.until::<Claim>(&key(claim), |claim| claim.status.phase == ClaimPhase::Bound).await;
    let volume = ObjectKey::cluster(&claim.spec.volume_name);
    let volume = bench.get::<Volume>(&volume).await.expect("bound");
    let handle = volume.spec.csi.expect("a CSI volume").volume_handle;
    let unique = UniqueName::new(&DRIVER.into(), &handle).to_string();
    let told = |node: &Node| node.status.volumes_attached.iter().any(|one| one.name == unique);
    bench.until::<Node>(&ObjectKey::cluster("n1"), told).await;
    bench.in_use("n1", std::slice::from_ref(&unique)).await;
    unique
}

async fn assert_nothing_left(bench: &Bench, driver: &Driver) {
    for _ in 0..600 {
        let all = ListParams::default();
        let volumes = bench.api.list::<Volume>(None, &all).await.expect("listed");
        let attachments = bench.api.list::<VolumeAttachment>(None, &all).await.expect("listed");
        if volumes.is_empty() && attachments.is_empty() && driver.volumes().is_empty() {
            return;
        }
        bench.pass(Duration::from_secs(1)).await;
    }
    panic!("left behind: {:?}", driver.volumes());
}

#[tokio::test(start_paused = true)]
async fn from_claim_to_pod_and_back() {
    let (bench, driver) = cluster().await;
    let _process = start(&bench, &driver);
    bench.pass(Duration::from_millis(50)).await;
    let begun = tokio::time::Instant::now();
    bench.claim("data", "wait").await;
    bench.pod("web", None, &["data"]).await;
    use_volume(&bench, "data").await;
    let pod = bench.get::<Pod>(&key("web")).await.expect("there");
    assert_eq!(pod.spec.node_name, "n1");
    // The clock is virtual: only timers make it move, and no step may wait for one.
    assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());

    bench.delete::<Pod>(&key("web")).await;
    bench.delete::<Claim>(&key("data")).await;
    bench.in_use("n1", &[]).await;
    bench.until_gone::<Claim>(&key("data")).await;
    assert_nothing_left(&bench, &driver).await;
    assert!(driver.violations().is_empty(), "{:?}", driver.violations());
}

#[tokio::test(start_paused = true)]
async fn data_waits_for_the_next_pod() {
    let (bench, driver) = cluster().await;
    let _process = start(&bench, &driver);
    bench.claim("data", "wait").await;
    bench.pod("first", None, &["data"]).await;
    let used = use_volume(&bench, "data").await;
    bench.delete::<Pod>(&key("first")).await;
    bench.in_use("n1", &[]).await;
    let gone = |node: &Node| node.status.volumes_attached.iter().all(|one| one.name != used);
    bench.until::<Node>(&ObjectKey::cluster("n1"), gone).await;
    bench.pod("second", None, &["data"]).await;
    assert_eq!(use_volume(&bench, "data").await, used, "the same volume comes back");
    assert_eq!(driver.volumes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn killed_at_any_moment_the_life_goes_on() {
    for steps in (0..240).step_by(12) {
        let (bench, driver) = cluster().await;
        bench.claim("data", "wait").await;
        bench.pod("web", None, &["data"]).await;
        let first = start(&bench, &driver);
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        first.kill();
        let second = start(&bench, &driver);
        use_volume(&bench, "data").await;
        bench.delete::<Pod>(&key("web")).await;
        bench.delete::<Claim>(&key("data")).await;
        bench.in_use("n1", &[]).await;
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        second.kill();
        let _third = start(&bench, &driver);
        bench.until_gone::<Claim>(&key("data")).await;
        assert_nothing_left(&bench, &driver).await;
        assert!(driver.violations().is_empty(), "{steps}: {:?}", driver.violations());
    }
}
