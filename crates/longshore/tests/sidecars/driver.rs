//! One connection to the driver for all: lost, found again, and what the driver can do then.

use std::time::{Duration, Instant};

use longshore_csi::capabilities::{ControllerCapability as Can, PluginService};
use longshore_csi::{Call, fake::Fault};
use longshore_testing::{Need, need};
use serde_json::json;
use tokio::process::Command;

use crate::rig::{DRIVER, LEASES, Rig, SHORT, Sidecars, USUAL, until};
use crate::sidecar::{Program, Served};

fn leases(rig: &Rig) -> Vec<(serde_json::Value, serde_json::Value)> {
    let spec = LEASES.map(|(_, name)| rig.lease(name));
    spec.map(|mut spec| (spec["holderIdentity"].take(), spec["leaseTransitions"].take())).to_vec()
}

// case: sidecars/A25
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_back_soon_finds_the_same_leaders() {
    let mut rig = Rig::new("sidecars-soon");
    let sidecars = rig.sidecars(USUAL).await;
    sidecars.all_lead().await;
    let before = leases(&rig);
    rig.served.stop().await;
    for (name, _) in LEASES {
        sidecars.is(name, "leading: waiting for the driver").await;
    }
    rig.claim("meanwhile");
    tokio::time::sleep(Duration::from_secs(3)).await;
    rig.served.start();
    rig.volume_of("meanwhile").await;
    sidecars.all_lead().await;
    assert_eq!(leases(&rig), before, "no lease has changed hands");
    let (status, text) = crate::sidecar::get(&sidecars.address, "/healthz/controllers").await;
    assert_eq!((status, text.contains("waiting")), (200, false), "{text}");
}

// case: sidecars/A26
#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_no_driver_for_long_leaves_the_lease_to_a_replica_that_has() {
    let mut rig = Rig::new("sidecars-long");
    let first = rig.sidecars(SHORT).await;
    first.all_lead().await;
    let alive = Served::new(DRIVER);
    let second = Sidecars::of(rig.start_at(&alive, SHORT, &[("POD_UID", "bbbbbbbb")])).await;
    rig.served.stop().await;
    second.all_lead().await;
    rig.claim("there");
    rig.volume_of("there").await;
    assert_eq!(alive.driver.calls_of(Call::CreateVolume).len(), 1);
    for (name, _) in LEASES {
        first.is(name, "standby").await;
    }
    // Back, but behind the other now.
    rig.served.start();
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (name, _) in LEASES {
        first.is(name, "standby").await;
    }
    assert_eq!(second.program.terminate().await, Some(0));
    first.all_lead().await;
}

// case: sidecars/A27
#[tokio::test(flavor = "multi_thread")]
async fn another_driver_on_the_socket_ends_the_process() {
    let mut rig = Rig::new("sidecars-renamed");
    let sidecars = rig.sidecars(USUAL).await;
    sidecars.all_lead().await;
    rig.served.stop().await;
    rig.claim("meanwhile");
    rig.served.driver.configure(|config| config.name = "other.example.com".into());
    rig.served.driver.clear_calls();
    rig.served.start();
    let log = sidecars.program.log();
    assert_eq!(sidecars.program.ends().await, Some(1));
    let text = log.borrow().clone();
    assert!(text.contains(&renamed()), "{text}");
    // It asks who the driver is and what it can do. Nothing is done to what the other driver has.
    let work = rig.served.driver.calls().into_iter().filter(|record| {
        record.call.service() != "Identity" && record.call != Call::ControllerGetCapabilities
    });
    let work: Vec<_> = work.collect();
    assert!(work.is_empty(), "{work:#?}");
}

/// Why the process ends when another driver is behind the socket.
fn renamed() -> String {
    format!("the CSI driver was {DRIVER} and is other.example.com")
}

/// The kubelet shows a pod's owner what the container left in its termination log.
// case: sidecars/A27
#[tokio::test(flavor = "multi_thread")]
async fn the_reason_of_the_end_is_in_the_termination_log() {
    if !need("sidecars-last-words", &[Need::Root, Need::Tool("unshare")]) {
        return;
    }
    let mut rig = Rig::new("sidecars-last-words");
    // As in a container, /dev has the file. It is another /dev than the machine's.
    let dev = rig.home.path().join("dev");
    std::fs::create_dir(&dev).unwrap();
    let termination_log = dev.join("termination-log");
    std::fs::write(&termination_log, "").unwrap();
    let program = rig.command_at(&rig.served, USUAL);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c"]);
    command.arg(r#"mount --bind "$0" /dev && exec "$@""#).arg(&dev);
    command.arg(program.as_std().get_program()).args(program.as_std().get_args());
    let sidecars = Sidecars::of(Program::start_command(command)).await;
    sidecars.all_lead().await;
    rig.served.stop().await;
    rig.served.driver.configure(|config| config.name = "other.example.com".into());
    rig.served.start();
    assert_eq!(sidecars.program.ends().await, Some(1));
    let left = std::fs::read_to_string(&termination_log).unwrap();
    assert!(left.starts_with(&renamed()), "{left:?}");
}

/// Takes capabilities from the driver, or gives them back, while it is away for a moment.
async fn restarted(rig: &mut Rig, change: impl FnOnce(&mut longshore_csi::fake::Config)) {
    rig.served.stop().await;
    rig.served.driver.configure(change);
    rig.served.start();
}

// case: sidecars/A28
#[tokio::test(flavor = "multi_thread")]
async fn what_the_driver_can_do_is_asked_anew_on_every_connection() {
    let mut rig = Rig::new("sidecars-modify");
    let sidecars = rig.sidecars(USUAL).await;
    sidecars.all_lead().await;
    rig.bound("a").await;
    rig.api.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {{name: gold}}\ndriverName: {DRIVER}\n\
         parameters: {{iops: \"100\"}}\n"
    ));
    restarted(&mut rig, |config| config.controller.remove(Can::ModifyVolume)).await;
    let back = "the driver is back";
    sidecars.program.says(back).await;
    let wanted = json!({"spec": {"volumeAttributesClassName": "gold"}});
    rig.patch("pvc", "a", &wanted.to_string());
    // Another claim's growth shows that the resizer works.
    rig.bound("b").await;
    rig.grow("b", "2Gi");
    until("b grows", || (rig.calls(Call::ControllerExpandVolume) == 1).then_some(())).await;
    assert_eq!(rig.calls(Call::ControllerModifyVolume), 0);
    restarted(&mut rig, |config| config.controller.insert(Can::ModifyVolume)).await;
    until("a is modified", || (rig.calls(Call::ControllerModifyVolume) > 0).then_some(())).await;
}

// case: sidecars/A29
#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_to_do_beside_a_driver_is_idle_and_the_others_work() {
    let mut rig = Rig::new("sidecars-idle");
    rig.served.driver.configure(|config| config.controller.remove(Can::CreateDeleteSnapshot));
    let sidecars = rig.sidecars(USUAL).await;
    let (status, line) = sidecars.is("snapshotter", "idle").await;
    assert_eq!(
        (status, line.as_str()),
        (200, "snapshotter idle: the driver has no CREATE_DELETE_SNAPSHOT")
    );
    let volume = rig.bound("a").await;
    let series = format!(
        "longshore_controller_state{{driver_name=\"{DRIVER}\",controller=\"snapshotter\",state=\"idle\"}}"
    );
    assert_eq!(sidecars.metric(&series).await, Some(1.0));
    assert_eq!(rig.holder(LEASES[3].1), "", "who is idle does not lead");
    // The driver learns it.
    restarted(&mut rig, |config| config.controller.insert(Can::CreateDeleteSnapshot)).await;
    sidecars.is("snapshotter", "leading").await;
    rig.snapshot("s", &rig.handle(&volume));
    rig.snapshotted("s").await;
    // With nothing left for any of them the process ends.
    drop(sidecars);
    rig.served
        .driver
        .configure(|config| config.plugin.services.remove(PluginService::ControllerService));
    let program = rig.start("--controllers=*,-attacher", &[]);
    let log = program.log();
    assert_eq!(program.ends().await, Some(1));
    let text = log.borrow().clone();
    assert!(text.contains("no controller has anything to do beside CSI driver"), "{text}");
}

/// How long an attached volume takes to be detached.
async fn detach_time(rig: &Rig, name: &str, volume: &str) -> Duration {
    rig.attach(name, volume);
    rig.attached(name).await;
    let began = Instant::now();
    let done = rig.api.cli(&["delete", "volumeattachment", name, "--wait=false"]);
    assert!(done.status.success(), "{}", crate::common::text(&done));
    until("it is gone", || rig.api.json("volumeattachment", name).is_null().then_some(())).await;
    began.elapsed()
}

// case: sidecars/A30
#[tokio::test(flavor = "multi_thread")]
async fn hung_snapshots_do_not_hold_up_the_attacher() {
    const WORKERS: usize = 3;
    let rig = Rig::new("sidecars-hung");
    // The calls hang for as long as the test lasts.
    let flags = format!(
        "{USUAL} --snapshotter-worker-threads={WORKERS} --snapshotter-timeout=10m --attacher-timeout=10m"
    );
    let sidecars = rig.sidecars(&flags).await;
    sidecars.all_lead().await;
    let volume = rig.bound("a").await;
    let handle = rig.handle(&volume);
    let mut calm = Duration::ZERO;
    for number in 0..3 {
        calm = calm.max(detach_time(&rig, &format!("calm-{number}"), &volume).await);
    }
    rig.served.driver.always(Call::CreateSnapshot, Fault::Hang);
    for number in 0..WORKERS + 2 {
        rig.snapshot(&format!("s-{number}"), &handle);
    }
    let all_hang = || (rig.calls(Call::CreateSnapshot) == WORKERS).then_some(());
    until("all workers hang", all_hang).await;
    // A busy machine can slow one down, and then the next one counts. Whoever waits for snapshots is never quick.
    let began = Instant::now();
    for number in 0.. {
        let hung = detach_time(&rig, &format!("hung-{number}"), &volume).await;
        assert_eq!(rig.calls(Call::CreateSnapshot), WORKERS, "they hang still");
        if hung < calm * 2 {
            return;
        }
        let within = began.elapsed() < crate::common::PATIENCE;
        assert!(within, "detaching takes {calm:?}, and {hung:?} beside hung snapshots");
    }
}
