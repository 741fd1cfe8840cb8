//! `kill -9` of a real driver process at every named point of every call, and of the child that
//! holds a filesystem frozen. After the next start and the caller's next call nothing is leaked,
//! nothing is lost and nothing is frozen, also across a reboot.
//!
//! CI kills once for each point and a few times more; `LONGSHORE_LONG=1` kills at least three
//! hundred times.

#[path = "../common/mod.rs"]
mod common;
mod life;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use common::process::{Kill, Process, Spec, Whom, serve_if_asked};
use common::*;
use life::{Life, Plot};
use longshore_csi::Client;
use longshore_driver::Mode;
use longshore_driver::fault::{Leak, POINTS};
use longshore_testing::{Need, need};

#[test]
fn driver_process() {
    serve_if_asked();
}

#[test]
fn freeze_holder() {
    hold_freeze();
}

fn able_to_kill(test: &str) -> bool {
    able(test) && need(test, &["fsfreeze", "e2fsck", "debugfs"].map(Need::Tool))
}

/// What the caller wants of the next process.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// The pod is still wanted.
    GoOn,
    /// It is not: whatever there is has to go.
    GiveUp,
    /// The machine went down too, and then the pod is wanted again.
    Reboot,
}

const THENS: [Then; 3] = [Then::GoOn, Then::GiveUp, Then::Reboot];

/// One kill.
#[derive(Debug, Clone, Copy)]
struct Case {
    point: &'static str,
    times: u32,
    then: Then,
    plot: Plot,
    whom: Whom,
    /// The process that the controller asks, and not the controller.
    node: bool,
    leak: Option<Leak>,
}

impl Case {
    fn new(point: &'static str, times: u32, then: Then) -> Self {
        let plot = Plot::of(point);
        let mut case =
            Self { point, times, then, plot, whom: Whom::Driver, node: false, leak: None };
        if point.starts_with("holder.") {
            // Its driver lives on and puts things right by itself, or goes with it. What nobody
            // thaws outlives a simulated reboot, so there is none.
            (case.whom, case.then) = match then {
                Then::GoOn => (Whom::Holder, Then::GoOn),
                Then::GiveUp => (Whom::Both, Then::GiveUp),
                Then::Reboot => (Whom::Both, Then::GoOn),
            };
        }
        case
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, times, then, plot, whom, .. } = self;
        write!(f, "killed {whom:?} at {point} ({times}) in {plot:?}, then {then:?}")
    }
}

/// The processes of a driver: one, or a controller and a node.
struct Crew {
    main: Process,
    node: Option<Process>,
}

impl Crew {
    async fn start(life: &Life, case: &Case, kill: Option<Kill>) -> Self {
        let (of_node, of_main) = if case.node { (kill, None) } else { (None, kill) };
        let spec = |node: &str| Spec::new(&life.world, life.plot.kind(), node).leak(case.leak);
        if life.plot != Plot::Remote {
            return Self { main: Process::start(spec("n1").kill(of_main)).await, node: None };
        }
        let node = Process::start(spec("n1").mode(Mode::Node).kill(of_node)).await;
        let main = spec("controller").mode(Mode::Controller).kill(of_main);
        Self { main: Process::start(main).await, node: Some(node) }
    }

    fn client(&self, step: &str) -> &Client {
        match &self.node {
            Some(node) if ["stage", "unstage"].contains(&step) => &node.client,
            _ => &self.main.client,
        }
    }

    fn victim(&mut self, case: &Case) -> &mut Process {
        match &mut self.node {
            Some(node) if case.node => node,
            _ => &mut self.main,
        }
    }

    /// Whether what was to be killed was.
    async fn was_hit(&mut self, case: &Case) -> bool {
        let victim = self.victim(case);
        match case.whom {
            Whom::Driver => victim.was_killed(Duration::from_secs(30)).await,
            Whom::Both => {
                victim.was_killed(Duration::from_secs(30)).await && victim.spec.holder_was_killed()
            }
            Whom::Holder => {
                victim.spec.holder_was_killed() && !victim.was_killed(Duration::ZERO).await
            }
        }
    }

    /// Starts what was killed again.
    async fn revive(&mut self, case: &Case) {
        if case.whom != Whom::Holder {
            let spec = self.victim(case).spec.clone().kill(None);
            *self.victim(case) = Process::start(spec).await;
        }
    }
}

/// Kills at a point and looks whether everything is put right afterwards. False when the point was
/// not passed that often.
async fn kill_once(case: &Case) -> Result<bool, String> {
    let life = Life::new(case.plot);
    let kill = Kill { point: case.point.to_owned(), times: case.times, whom: case.whom };
    let mut crew = Crew::start(&life, case, Some(kill)).await;
    let mut died_in = None;
    for (index, step) in life.plot.steps().iter().enumerate() {
        if let Err(error) = life.step(crew.client(step), step).await {
            if !crew.was_hit(case).await {
                return Err(format!("not yet {case}: {step}: {error}"));
            }
            died_in = Some(index);
            break;
        }
    }
    let Some(died_in) = died_in else { return Ok(false) };
    let mut faults = Vec::new();
    match case.whom {
        // No process is left to thaw; the next start does.
        Whom::Both if case.point == "holder.frozen" && !life.is_frozen() => {
            faults.push("nothing was frozen".to_owned());
        }
        Whom::Both => {}
        Whom::Driver | Whom::Holder => faults.extend(life.check_thawed().await.err()),
    }
    if case.then == Then::Reboot {
        drop(crew);
        life.world.reboot();
        crew = Crew::start(&life, case, None).await;
    } else {
        crew.revive(case).await;
    }
    faults.extend(life.check_thawed().await.err());
    let go_on = match case.then {
        Then::GiveUp => life.plot.steps().len(),
        Then::GoOn => died_in,
        Then::Reboot => life.plot.after_reboot(died_in),
    };
    for step in &life.plot.steps()[go_on..] {
        if let Err(error) = life.step(crew.client(step), step).await {
            faults.push(format!("{step}: {error}"));
            break;
        }
    }
    for step in life.plot.undo() {
        match life.step(crew.client(step), step).await {
            Ok(()) => {}
            Err(error) if error.is_nothing_there() => {}
            Err(error) => faults.push(format!("{step}: {error}")),
        }
    }
    faults.extend(life.leftovers().into_iter().map(|one| format!("left: {one}")));
    if faults.is_empty() { Ok(true) } else { Err(format!("{case}: {}", faults.join("; "))) }
}

/// What a loop of kills found.
#[derive(Debug, Default)]
struct Report {
    kills: BTreeMap<&'static str, u32>,
    faults: Vec<String>,
}

impl Report {
    fn total(&self) -> u32 {
        self.kills.values().sum()
    }
}

/// Kills at every one of the points, again and again, until there were at least `wanted` kills.
async fn kill_loop(points: &[&'static str], wanted: u32, leak: Option<Leak>) -> Report {
    let mut report = Report::default();
    report.kills.extend(points.iter().map(|point| (*point, 0)));
    let mut round = 0;
    while report.total() < wanted && report.faults.len() < 3 {
        for few in cases(points, round).chunks(4) {
            let runs = few.iter().map(|case| {
                let case = Case { leak, ..*case };
                tokio::spawn(async move {
                    match kill_once(&case).await {
                        // It is passed less often than that.
                        Ok(false) => (case.point, kill_once(&Case { times: 1, ..case }).await),
                        killed => (case.point, killed),
                    }
                })
            });
            for run in runs.collect::<Vec<_>>() {
                let (point, killed) = run.await.expect("a kill and what follows");
                *report.kills.entry(point).or_default() += u32::from(killed != Ok(false));
                report.faults.extend(killed.err());
            }
        }
        round += 1;
    }
    report
}

/// Later rounds kill at later passes, and then go on in another way.
fn cases(points: &[&'static str], round: u32) -> Vec<Case> {
    let then = |n: usize| THENS[(n + round as usize) % 3];
    let mut cases: Vec<_> = points
        .iter()
        .enumerate()
        .map(|(n, point)| Case::new(point, round / 3 + 1, then(n)))
        .collect();
    // A node can also be killed while it holds a volume still for a controller.
    for (n, point) in points.iter().enumerate().filter(|(_, point)| point.starts_with("freeze.")) {
        cases.push(Case { plot: Plot::Remote, node: true, ..Case::new(point, 1, then(n + 1)) });
    }
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_at_every_fault_point_loses_and_leaks_nothing() {
    if !able_to_kill("a_kill_at_every_fault_point_loses_and_leaks_nothing") {
        return;
    }
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let report = kill_loop(&POINTS, if long { 300 } else { 40 }, None).await;
    for (point, count) in &report.kills {
        println!("{count:>4} kills at {point}");
    }
    println!("{:>4} kills", report.total());
    assert!(report.faults.is_empty(), "{}", report.faults.join("\n"));
    let never: Vec<_> = report.kills.iter().filter(|(_, count)| **count == 0).collect();
    assert!(never.is_empty(), "no kill at {never:?}");
}

/// A driver that forgets something turns the loop red, at every kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_planted_leak_is_found() {
    if !able_to_kill("a_planted_leak_is_found") {
        return;
    }
    let points = ["stage.mounted", "cut.copied"];
    let leaks = [
        (Leak::VolumeImage, "left: file vol-"),
        (Leak::SnapshotImage, "left: file snap-"),
        (Leak::Device, "left: device /dev/loop"),
    ];
    for (leak, want) in leaks {
        let report = kill_loop(&points, 1, Some(leak)).await;
        assert_eq!(report.total(), 2, "{leak:?}: {report:?}");
        // Where a life came to what is forgotten: a snapshot is deleted only by who goes on.
        let found = report.faults.iter().filter(|fault| fault.contains(want)).count();
        assert!(found > 0, "{leak:?}: {report:?}");
        assert_eq!(found, report.faults.len(), "{leak:?}: {report:?}");
    }
    let report = kill_loop(&points, 1, None).await;
    assert_eq!((report.total(), report.faults.len()), (2, 0), "{report:?}");
}

/// The net has no holes: what is there is seen.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_are_reported() {
    if !able_to_kill("leftovers_are_reported") {
        return;
    }
    let life = Life::new(Plot::Shared);
    let crew = Crew::start(&life, &Case::new("stage.mounted", 1, Then::GoOn), None).await;
    for step in ["create", "attach", "stage"] {
        life.step(crew.client(step), step).await.expect(step);
    }
    let left = life.leftovers();
    for kind in ["mount ", "device ", "file vol-", "file .stg-"] {
        assert!(left.iter().any(|one| one.starts_with(kind)), "no {kind} in {left:?}");
    }
    for step in life.plot.undo() {
        life.step(crew.client(step), step).await.expect(step);
    }
    assert_eq!(life.leftovers(), Vec::<String>::new());
    life.plant();
    assert_eq!(life.leftovers().len(), 1);
}
