//! `kill -9` of a real driver process at every named point of every call. After the next start and
//! the caller's next call nothing is leaked and nothing is lost, also across a reboot.
//!
//! CI kills forty times; `LONGSHORE_LONG=1` kills at least three hundred times.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use longshore_csi::v1::*;
use longshore_csi::{Client, CsiError};
use longshore_driver::DriverKind;
use longshore_driver::fault::{Faults, POINTS};
use longshore_driver::id::{SnapshotId, VolumeId};
use tokio_util::sync::CancellationToken;
use tonic::Code;

const POOL: &str = "LONGSHORE_TEST_FAULT_POOL";
const SOCKET: &str = "LONGSHORE_TEST_FAULT_SOCKET";
const KIND: &str = "LONGSHORE_TEST_FAULT_KIND";
/// `POINT N`: end the process when it passes the point for the Nth time.
const KILL_AT: &str = "LONGSHORE_TEST_FAULT_KILL_AT";

/// Not a test by itself: the process that gets killed. It ends with its parent, whose end of
/// standard input closes.
#[test]
fn driver_process() {
    let (Ok(pool), Ok(socket)) = (std::env::var(POOL), std::env::var(SOCKET)) else { return };
    let kind = std::env::var(KIND).expect("a kind").parse().expect("a kind");
    let mut config = longshore_driver::DriverConfig::new(kind, "n1");
    config.pools.push(longshore_driver::PoolConfig::new("default", pool));
    if let Ok(text) = std::env::var(KILL_AT) {
        let (point, times) = text.split_once(' ').expect("a point and a number");
        config.faults = kill_at(point.to_owned(), times.parse().expect("a number"));
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let served = runtime.block_on(longshore_driver::run(config, &socket, CancellationToken::new()));
    served.expect("served");
}

fn kill_at(point: String, times: u32) -> Faults {
    let passed = AtomicU32::new(0);
    Faults::new(move |at| {
        assert!(POINTS.contains(&at), "{at} is not on the list");
        if at == point && passed.fetch_add(1, Ordering::SeqCst) + 1 == times {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("killed");
        }
    })
}

struct Process {
    child: Child,
    client: Client,
}

impl Process {
    async fn start(world: &World, kind: DriverKind, kill_at: Option<(&str, u32)>) -> Self {
        let socket = world.at("csi.sock");
        // A child that the killed process had just forked holds the socket until its own exec.
        for _ in 0..10_000 {
            if std::os::unix::net::UnixStream::connect(&socket).is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "driver_process", "--nocapture"]);
        command.env(POOL, world.pool()).env(SOCKET, format!("unix://{socket}"));
        command.env(KIND, kind.to_string()).stdin(Stdio::piped()).stdout(Stdio::null());
        if let Some((point, times)) = kill_at {
            command.env(KILL_AT, format!("{point} {times}"));
        }
        let child = command.spawn().expect("started");
        let client = Client::connect(socket.into()).await.expect("connected");
        Self { child, client }
    }

    fn was_killed(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let ended = self.child.try_wait().expect("waited");
        ended.is_some_and(|status| status.signal() == Some(9))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A volume's life with a `shared` driver, and that of an inline volume with a `local` one.
const SHARED: [&str; 15] = [
    "create",
    "modify",
    "attach",
    "stage",
    "publish",
    "grow",
    "grow on node",
    "unpublish",
    "unstage",
    "detach",
    "snapshot",
    "clone",
    "delete clone",
    "delete snapshot",
    "delete",
];
const INLINE: [&str; 2] = ["inline", "end inline"];

/// How to take away whatever there is.
const UNDO: [&str; 6] =
    ["unpublish", "unstage", "detach", "delete clone", "delete snapshot", "delete"];

struct Life {
    world: World,
    kind: DriverKind,
    staging: String,
    target: String,
    id: String,
    clone: String,
    snapshot: String,
}

impl Life {
    fn new(kind: DriverKind) -> Self {
        let world = World::new();
        let (staging, target) = (world.dir("staging"), world.at("target"));
        let text = |id: VolumeId| id.to_string();
        Self {
            kind,
            staging,
            target,
            id: text(VolumeId::for_name("", "a")),
            clone: text(VolumeId::for_name("", "clone")),
            snapshot: SnapshotId::for_name("", "s").to_string(),
            world,
        }
    }

    fn steps(&self) -> &'static [&'static str] {
        if self.kind == DriverKind::Shared { &SHARED } else { &INLINE }
    }

    fn undo(&self) -> &'static [&'static str] {
        if self.kind == DriverKind::Shared { &UNDO } else { &INLINE[1..] }
    }

    fn data(&self) -> std::path::PathBuf {
        Path::new(&self.target).join("data")
    }

    /// Does one step; ids follow from names, so they are known even when an answer is lost.
    async fn step(&self, client: &Client, step: &str) -> Result<(), CsiError> {
        let Self { staging, target, id, .. } = self;
        let range = Some(CapacityRange { required_bytes: 8 * MIB, limit_bytes: 0 });
        match step {
            "create" => client.create_volume(create("a", 4 * MIB, writer())).await.map(drop),
            "modify" => {
                let request = ControllerModifyVolumeRequest {
                    volume_id: id.clone(),
                    mutable_parameters: [("directIO".to_owned(), "false".to_owned())].into(),
                    ..Default::default()
                };
                client.controller_modify_volume(request).await.map(drop)
            }
            "attach" => {
                client.controller_publish_volume(attach(id, "n1", writer())).await.map(drop)
            }
            "stage" => client.node_stage_volume(stage(id, staging, writer())).await.map(drop),
            "publish" => {
                client.node_publish_volume(publish(id, staging, target, writer())).await?;
                if !self.data().exists() {
                    std::fs::write(self.data(), "precious").expect("written");
                    let file = std::fs::File::open(self.data()).expect("open");
                    file.sync_all().expect("flushed");
                }
                Ok(())
            }
            "grow" => {
                let request = ControllerExpandVolumeRequest {
                    volume_id: id.clone(),
                    capacity_range: range,
                    ..Default::default()
                };
                client.controller_expand_volume(request).await.map(drop)
            }
            "grow on node" => {
                let request = NodeExpandVolumeRequest {
                    volume_id: id.clone(),
                    volume_path: staging.clone(),
                    capacity_range: range,
                    ..Default::default()
                };
                match client.node_expand_volume(request).await {
                    // Where the kernel does not let a mounted ext4 grow.
                    Err(error) if error.code() == Code::FailedPrecondition => Ok(()),
                    grown => grown.map(drop),
                }
            }
            "unpublish" => client.node_unpublish_volume(unpublish(id, target)).await.map(drop),
            "unstage" => client.node_unstage_volume(unstage(id, staging)).await.map(drop),
            "detach" => client.controller_unpublish_volume(detach(id, "n1")).await.map(drop),
            "snapshot" => client.create_snapshot(snapshot("s", id)).await.map(drop),
            "clone" => {
                let mut request = create("clone", 8 * MIB, writer());
                request.volume_content_source = Some(from_snapshot(&self.snapshot));
                client.create_volume(request).await.map(drop)
            }
            "delete clone" => client.delete_volume(delete(&self.clone)).await.map(drop),
            "delete snapshot" => {
                client.delete_snapshot(delete_snapshot(&self.snapshot)).await.map(drop)
            }
            "delete" => client.delete_volume(delete(id)).await.map(drop),
            "inline" => {
                let mut request = publish(&inline_id(), "", target, writer());
                let context = [("csi.storage.k8s.io/ephemeral", "true"), ("size", "4Mi")];
                for (key, value) in context {
                    request.volume_context.insert(key.to_owned(), value.to_owned());
                }
                client.node_publish_volume(request).await.map(drop)
            }
            "end inline" => {
                client.node_unpublish_volume(unpublish(&inline_id(), target)).await.map(drop)
            }
            other => panic!("no step {other}"),
        }
    }

    /// Whatever is left that should not be.
    fn leftovers(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.world.mounts().iter().map(|path| format!("mount {}", path.display())).collect();
        all.extend(self.world.loops().iter().map(|path| format!("device {}", path.display())));
        all.extend(self.world.files().into_iter().map(|name| format!("file {name}")));
        if Path::new(&self.target).exists() {
            all.push("the target".to_owned());
        }
        all
    }
}

fn inline_id() -> String {
    format!("csi-{}", "0a".repeat(32))
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

/// Kills at a point and sees to it that the next process puts everything right. False when the
/// point was not passed that often.
async fn kill_once(point: &str, times: u32, then: Then) -> bool {
    let case = format!("killed at {point} ({times}), then {then:?}");
    let inline = point.starts_with("ephemeral.");
    let life = Life::new(if inline { DriverKind::Local } else { DriverKind::Shared });
    let mut process = Process::start(&life.world, life.kind, Some((point, times))).await;
    let mut died_in = None;
    for (index, step) in life.steps().iter().enumerate() {
        if let Err(error) = life.step(&process.client, step).await {
            // The end of the process may be seen a moment after the end of its socket.
            for _ in 0..3000 {
                if process.was_killed() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(process.was_killed(), "{case}: {step}: {error}");
            died_in = Some(index);
            break;
        }
    }
    let Some(died_in) = died_in else { return false };
    drop(process);
    // Written and flushed only while it was published.
    let has_data = !inline && died_in > 4 && died_in < 14;

    if then == Then::Reboot {
        life.world.reboot();
    }
    let process = Process::start(&life.world, life.kind, None).await;
    let go_on = match then {
        Then::GiveUp => life.steps().len(),
        Then::GoOn => died_in,
        // After a reboot nothing is staged, so the node begins anew.
        Then::Reboot if (3..8).contains(&died_in) => 3,
        Then::Reboot => died_in,
    };
    for step in &life.steps()[go_on..] {
        if let Err(error) = life.step(&process.client, step).await {
            panic!("{case}: {step}: {error}");
        }
        if *step == "publish" && has_data {
            assert_eq!(std::fs::read_to_string(life.data()).expect(&case), "precious", "{case}");
        }
    }
    for step in life.undo() {
        match life.step(&process.client, step).await {
            Ok(()) => {}
            // Never made, or already gone: then there is nothing to take away.
            Err(error) if error.code() == Code::NotFound => {}
            Err(error) => panic!("{case}: {step}: {error}"),
        }
    }
    assert_eq!(life.leftovers(), Vec::<String>::new(), "{case}");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_at_every_point() {
    if !able("killed_at_every_point") {
        return;
    }
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let wanted = if long { 300 } else { 40 };
    let mut kills: BTreeMap<&str, u32> = POINTS.iter().map(|point| (*point, 0)).collect();
    let mut round = 0;
    while kills.values().sum::<u32>() < wanted {
        // Later rounds kill at later passes; a point that is passed less often starts again.
        let cases: Vec<_> = POINTS
            .iter()
            .enumerate()
            .map(|(n, point)| (*point, round / 3 + 1, THENS[(n + round as usize) % 3]))
            .collect();
        for few in cases.chunks(4) {
            let left = wanted - kills.values().sum::<u32>();
            let runs = few.iter().take(left as usize).map(|(point, times, then)| {
                let (point, times, then) = (*point, *times, *then);
                tokio::spawn(async move {
                    let killed =
                        kill_once(point, times, then).await || kill_once(point, 1, then).await;
                    (point, killed)
                })
            });
            for run in runs.collect::<Vec<_>>() {
                let (point, killed) = run.await.expect("a kill and what follows");
                *kills.entry(point).or_default() += u32::from(killed);
            }
        }
        round += 1;
    }
    for (point, count) in &kills {
        println!("{count:>4} kills at {point}");
    }
    println!("{:>4} kills", kills.values().sum::<u32>());
    let never: Vec<_> = kills.iter().filter(|(_, count)| **count == 0).collect();
    assert!(never.is_empty(), "no kill at {never:?}");
}

/// The net holds: what a forgetful driver would leave is seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_planted_leak_is_seen() {
    if !able("a_planted_leak_is_seen") {
        return;
    }
    let life = Life::new(DriverKind::Shared);
    let process = Process::start(&life.world, life.kind, None).await;
    for step in ["create", "attach", "stage"] {
        life.step(&process.client, step).await.expect(step);
    }
    let left = life.leftovers();
    for kind in ["mount ", "device ", "file vol-", "file .stg-"] {
        assert!(left.iter().any(|one| one.starts_with(kind)), "no {kind} in {left:?}");
    }
    for step in UNDO {
        life.step(&process.client, step).await.expect(step);
    }
    assert_eq!(life.leftovers(), Vec::<String>::new());
    std::fs::write(life.world.pool().join(format!(".new-{}.img", life.id)), "").expect("planted");
    assert_eq!(life.leftovers().len(), 1);
}
