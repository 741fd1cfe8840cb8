//! The node agent and the API are killed, again and again and at every named point, while users go
//! on creating and deleting pods. Every program is a process of its own.
//!
//! CI kills the agent 40 times and takes the API away for seconds; `LONGSHORE_LONG=1` kills 300 times and
//! takes it away for a minute. `LONGSHORE_SEED=N` repeats the order of the moments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../common/mod.rs"]
mod common;
mod load;
mod stack;
mod tables;

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    time::{Duration, Instant},
};

use common::{PATIENCE, can_run, processes_of};
use load::{Load, WRITE_AND_COUNT};
use longshore_node::fault::POINTS;
use stack::{Plot, Stack};
use tables::{Alive, Guard, alive, becomes_exact, data_is_whole, needed};
use tokio::task::{JoinSet, block_in_place};

/// How long to wait for an agent to pass a point before it is killed where it is.
const POINT_PATIENCE: Duration = Duration::from_secs(10);

fn long() -> bool {
    std::env::var("LONGSHORE_LONG").is_ok()
}

fn seed() -> u64 {
    let seed = std::env::var("LONGSHORE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..u64::from(u32::MAX)));
    println!("LONGSHORE_SEED={seed}");
    seed
}

/// Pods that must not notice anything.
struct Residents {
    count: usize,
    before: BTreeMap<String, Alive>,
    mounts: BTreeMap<String, PathBuf>,
}

impl Residents {
    async fn settle(stack: &Stack, load: &Load, count: usize) -> Self {
        for index in 0..count {
            let name = format!("resident-{index}");
            load.make_claim(&name, if index.is_multiple_of(2) { "local" } else { "shared" }).await;
            load.make_pod(&name, &name, WRITE_AND_COUNT).await;
        }
        for index in 0..count {
            load.runs(&format!("resident-{index}")).await.unwrap_or_else(|error| {
                panic!("{error}\n{}", stack.log());
            });
        }
        let seen = load.now().await;
        let mounts = needed(&stack.root(), &seen);
        assert_eq!(mounts.len(), count);
        // Only a pod that has counted has written its file.
        for mount in mounts.values() {
            common::eventually("a pod counts", || mount.join("ticks").exists());
        }
        Self { count, before: alive(&stack.root(), &seen), mounts }
    }

    /// They run as they did, on what they had, and nothing else is there.
    async fn are_well(&self, stack: &Stack, load: &Load) {
        let exact = block_in_place(|| becomes_exact(stack.home.path(), &self.mounts, PATIENCE));
        exact.unwrap_or_else(|error| panic!("{error}\n{}", stack.log()));
        let seen = load.now().await;
        let now = alive(&stack.root(), &seen);
        assert_eq!(now, self.before, "same process, same start, no restart");
        assert!(now.values().all(|one| format!("{one:?}").contains("restarts: 0")));
        for mount in self.mounts.values() {
            data_is_whole(mount);
        }
    }

    /// Everything goes, and nothing of it stays.
    async fn leave(self, stack: &mut Stack, load: &Load) {
        let names: Vec<String> = (0..self.count).map(|index| format!("resident-{index}")).collect();
        let all = names.iter().map(async |name| {
            load.delete_pod(name, 1).await?;
            load.delete_claim(name).await
        });
        futures::future::try_join_all(all).await.unwrap();
        load.volumes_gone().await.unwrap();
        let exact = block_in_place(|| becomes_exact(stack.home.path(), &BTreeMap::new(), PATIENCE));
        exact.unwrap_or_else(|error| panic!("{error}\n{}", stack.log()));
        stack.stop_node();
        let shims = processes_of(&stack.root().join("pods"));
        assert_eq!(shims, Vec::<u32>::new(), "a shim without a pod");
    }
}

/// Everybody finishes; what one could not do is the test's failure.
async fn finished(stack: &Stack, load: &Load, mut work: JoinSet<Result<(), String>>) {
    load.rest();
    while let Some(done) = work.join_next().await {
        if let Err(error) = done.unwrap() {
            panic!("{error}\n{}", stack.log());
        }
    }
}

/// The kills of one run.
struct Kills {
    random: fastrand::Rng,
    at: BTreeMap<&'static str, usize>,
    due: VecDeque<&'static str>,
}

impl Kills {
    fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), at: BTreeMap::new(), due: POINTS.into() }
    }

    fn total(&self) -> usize {
        self.at.values().sum()
    }

    /// Starts the agent and kills it at the next point, or, if that is not passed, where it is.
    fn at_point(&mut self, stack: &mut Stack) {
        let point = self.due.pop_front().unwrap();
        self.due.push_back(point);
        // At the start most steps are done once for each pod that lives; later ones are news.
        let first = point.starts_with("start.") || !self.at.contains_key(point);
        let times = if first { 1 } else { self.random.u32(1..8) };
        stack.start_node(&Plot { fault: Some((point, times)), ..Plot::default() });
        let hit = stack.node_died(POINT_PATIENCE);
        if !hit {
            stack.kill_node();
        }
        *self.at.entry(if hit { point } else { "(any moment)" }).or_default() += 1;
    }

    fn at_any_moment(&mut self, stack: &mut Stack) {
        stack.start_node(&Plot::default());
        std::thread::sleep(Duration::from_millis(self.random.u64(0..600)));
        stack.kill_node();
        *self.at.entry("(any moment)").or_default() += 1;
    }
}

/// Named points first, then any moment, under thirty pods: ten that must not notice, twenty that come and
/// go. At the end the tables hold what the ten need and nothing else, and then nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_all_the_time() {
    if !can_run("kill-agent") {
        return;
    }
    let (seed, wanted) = (seed(), if long() { 300 } else { 40 });
    let mut stack = block_in_place(|| Stack::start("kill"));
    stack.start_node(&Plot::default());
    let load = Load::new(&stack.kubeconfig).await;
    let residents = Residents::settle(&stack, &load, 10).await;
    let guard = Guard::over(stack.home.path(), &residents.mounts);
    let work = load.work(20, seed);
    let (began, mut kills) = (Instant::now(), Kills::new(seed));
    stack.kill_node();
    block_in_place(|| {
        while kills.total() < wanted {
            let done = kills.total();
            if done < POINTS.len() || wanted > 40 && done % 2 == 0 {
                kills.at_point(&mut stack);
            } else {
                kills.at_any_moment(&mut stack);
            }
        }
        // A machine that is slow may not have come to a point in time.
        for _ in 0..3 * POINTS.len() {
            if kills.at.contains_key(kills.due[0]) {
                kills.due.rotate_left(1);
            } else {
                kills.at_point(&mut stack);
            }
        }
    });
    println!("{} kills in {:.0} s", kills.total(), began.elapsed().as_secs_f64());
    for point in POINTS.iter().chain(&["(any moment)"]) {
        println!("kills at {point}: {}", kills.at.get(point).unwrap_or(&0));
    }
    stack.start_node(&Plot::default());
    finished(&stack, &load, work).await;
    println!("claims that had a whole life meanwhile: {}", load.rounds());
    residents.are_well(&stack, &load).await;
    guard.finish();
    residents.leave(&mut stack, &load).await;
    for point in POINTS {
        assert!(kills.at.contains_key(point), "nobody was killed at {point}");
    }
    assert!(kills.total() >= wanted);
}

/// One pod is deleted, the agent is killed at `point`, and goes on with a bug: the comparison of the
/// tables must find what is left. Without the bug the next agent puts it right.
async fn planted(test: &str, point: &'static str, grace: u32, forgets: &'static str) {
    if !can_run(test) {
        return;
    }
    let mut stack = block_in_place(|| Stack::start(test));
    stack.start_node(&Plot { fault: Some((point, 1)), ..Plot::default() });
    let load = Load::new(&stack.kubeconfig).await;
    load.make_claim("data", "local").await;
    load.make_pod("user", "data", WRITE_AND_COUNT).await;
    let runs = load.runs("user").await;
    runs.unwrap_or_else(|error| panic!("{error}\n{}", stack.log()));
    let going = tokio::spawn({
        let load = load.clone();
        async move { load.delete_pod("user", grace).await }
    });
    assert!(block_in_place(|| stack.node_died(PATIENCE)), "not killed at {point}");
    stack.start_node(&Plot { forgets: Some(forgets), ..Plot::default() });
    going.await.unwrap().unwrap();
    // The image stays with its claim; all else must go.
    load.delete_claim("data").await.unwrap();
    let nothing = BTreeMap::new();
    let leaked =
        block_in_place(|| becomes_exact(stack.home.path(), &nothing, Duration::from_secs(5)));
    println!("planted {forgets}, found: {leaked:?}");
    assert!(leaked.is_err(), "nobody noticed that {forgets} was forgotten");
    stack.kill_node();
    stack.start_node(&Plot::default());
    let exact = block_in_place(|| becomes_exact(stack.home.path(), &nothing, PATIENCE));
    exact.unwrap_or_else(|error| panic!("{error}\n{}", stack.log()));
    stack.stop_node();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_forgets_what_is_staged_is_found_out() {
    planted("plant-staged", "unpublish.cleaned", 1, "staged").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_forgets_pods_that_are_gone_is_found_out() {
    planted("plant-orphan", "pod.stopped", 0, "orphans").await;
}

/// The API is away: killed, then standing still. Nothing is taken from a running pod meanwhile, and
/// work goes on afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_away() {
    if !can_run("api-away") {
        return;
    }
    let away = Duration::from_secs(if long() { 60 } else { 6 });
    let mut stack = block_in_place(|| Stack::start("away"));
    stack.start_node(&Plot::default());
    let load = Load::new(&stack.kubeconfig).await;
    let residents = Residents::settle(&stack, &load, 5).await;
    let guard = Guard::over(stack.home.path(), &residents.mounts);
    let work = load.work(5, seed());
    let progress = async |what: &str| {
        let (began, before) = (Instant::now(), load.rounds());
        while load.rounds() < before + 1 {
            assert!(began.elapsed() < PATIENCE * 3, "no work is done {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("work goes on {:.1} s {what}", began.elapsed().as_secs_f64());
    };
    progress("at first").await;
    stack.kill_api();
    tokio::time::sleep(away).await;
    stack.start_api();
    progress("after the API was killed").await;
    stack.signal_api(rustix::process::Signal::STOP);
    tokio::time::sleep(away / 2).await;
    stack.signal_api(rustix::process::Signal::CONT);
    progress("after the API stood still").await;
    // A new agent finds no API either: it must not take its silence for "no pods".
    stack.kill_api();
    stack.kill_node();
    stack.start_node(&Plot::default());
    tokio::time::sleep(away / 5).await;
    stack.start_api();
    progress("after the agent started without an API").await;
    finished(&stack, &load, work).await;
    residents.are_well(&stack, &load).await;
    guard.finish();
    residents.leave(&mut stack, &load).await;
}
