//! One lease for each controller, under the name that its official counterpart takes.

use std::time::{Duration, Instant};

use longshore_csi::Call;
use longshore_csi::fake::Fault;
use serde_json::json;

use crate::rig::{LEASES, Rig, SHORT, Sidecars, USUAL, until};
use crate::sidecar::Program;

// case: sidecars/A15
#[tokio::test(flavor = "multi_thread")]
async fn every_controller_holds_the_lease_of_its_official_counterpart() {
    let rig = Rig::new("sidecars-names");
    let uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
    let sidecars = Sidecars::of(rig.start(USUAL, &[("POD_UID", uid)])).await;
    sidecars.all_lead().await;
    let holders = rig.holders(&LEASES).await;
    assert!(
        holders.iter().all(|one| one.ends_with("-0a1b2c3d") && one == &holders[0]),
        "{holders:?}"
    );
    rig.bound("a").await;
    // Whoever stops in good order frees all of them.
    assert_eq!(sidecars.program.terminate().await, Some(0));
    for (_, lease) in LEASES {
        let spec = rig.lease(lease);
        assert_eq!(
            (&spec["holderIdentity"], &spec["leaseDurationSeconds"]),
            (&json!(""), &json!(1)),
            "{lease}"
        );
    }
}

/// How often a process began to lead under a lease, and how often it stopped.
fn terms(program: &Program, lease: &str) -> (usize, usize) {
    let text = program.text();
    let count = |words: &str| {
        let lines = text.lines().filter(|line| line.contains(words));
        lines.filter(|line| line.contains(&format!("default/{lease}\""))).count()
    };
    (count("became leader"), count("stopped leading"))
}

// case: sidecars/A20
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_stops_its_controller_and_no_other() {
    let rig = Rig::new("sidecars-lost");
    let sidecars = rig.sidecars(SHORT).await;
    sidecars.all_lead().await;
    let (_, resizer) = LEASES[2];
    let patch = json!({"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3}});
    rig.patch("lease", resizer, &patch.to_string());
    sidecars.is("resizer", "standby").await;
    rig.bound("meanwhile").await;
    sidecars.is("resizer", "leading").await;
    for (name, lease) in LEASES {
        let lost = usize::from(name == "resizer");
        assert_eq!(terms(&sidecars.program, lease), (1 + lost, lost), "{name}");
    }
    let (volume, before) = (rig.bound("after").await, rig.calls(Call::ControllerExpandVolume));
    rig.grow("after", "2Gi");
    until("it grows", || (rig.calls(Call::ControllerExpandVolume) > before).then_some(())).await;
    assert!(!volume.is_empty());
}

fn signal(pid: u32, name: &str) {
    let done = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(done.unwrap().success());
}

// case: sidecars/A21
#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_all_step_down_and_campaign_again() {
    const AWAY: Duration = Duration::from_secs(12);
    let rig = Rig::new("sidecars-away");
    let eager = "--provisioner-retry-interval-start=50ms --provisioner-retry-interval-max=100ms";
    let mut sidecars = rig.sidecars(&format!("{SHORT} {eager}")).await;
    sidecars.all_lead().await;
    // A claim that is tried again and again, and needs no answer of the API server for that.
    rig.served.driver.always(Call::CreateVolume, Fault::before(tonic::Code::Internal));
    rig.claim("refused");
    let tries = || rig.calls(Call::CreateVolume);
    until("it is tried again", || (tries() > 2).then_some(())).await;
    signal(rig.api.pid(), "-STOP");
    let (stopped, before) = (Instant::now(), tries());
    until("work goes on without the API", || (tries() > before).then_some(())).await;
    for (name, _) in LEASES {
        sidecars.is(name, "standby").await;
    }
    let calls = rig.served.driver.calls().len();
    // For as long as it would have tried dozens of times.
    tokio::time::sleep(AWAY.saturating_sub(stopped.elapsed()).max(Duration::from_secs(3))).await;
    assert_eq!(rig.served.driver.calls().len(), calls, "nobody works without a lease");
    assert!(sidecars.program.running(), "{}", sidecars.program.text());
    signal(rig.api.pid(), "-CONT");
    sidecars.all_lead().await;
    for (name, lease) in LEASES {
        let (began, ended) = terms(&sidecars.program, lease);
        assert!(began >= 2 && ended + 1 >= began, "{name}: {began} and {ended}");
    }
    until("it is tried again", || (rig.served.driver.calls().len() > calls).then_some(())).await;
    rig.served.driver.clear_faults();
    rig.volume_of("refused").await;
}

// case: sidecars/A23
#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_flight_is_finished_before_its_lease_is_given_back() {
    let rig = Rig::new("sidecars-term");
    let sidecars = rig.sidecars(USUAL).await;
    sidecars.all_lead().await;
    let five = Fault::Delay(Duration::from_secs(5));
    rig.served.driver.script(Call::CreateVolume, [five]);
    rig.claim("slow");
    until("it is asked for", || (rig.calls(Call::CreateVolume) == 1).then_some(())).await;
    let mut log = sidecars.program.log();
    assert_eq!(sidecars.program.terminate().await, Some(0));
    rig.volume_of("slow").await;
    // The rest of it is read when the program has ended.
    let _ = log.wait_for(|_| false).await;
    let text = log.borrow().clone();
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}\n{text}"));
    let released = format!("lease released lease=\"default/{}\"", LEASES[1].1);
    assert!(at("volume=\"pvc-") < at(released.as_str()), "{text}");
    assert_eq!(rig.holder(LEASES[1].1), "");
}

/// Renewed so seldom that a loss is found by reading alone.
const SELDOM: &str = "--leader-election --leader-election-namespace=default --leader-election-lease-duration=120s \
    --leader-election-renew-deadline=100s --leader-election-retry-period=60s --retry-interval-max=1s";

/// Makes somebody the holder of the first leases.
fn held_by(rig: &Rig, holder: &str) {
    for (_, lease) in &LEASES[..2] {
        rig.patch("lease", lease, &json!({"spec": {"holderIdentity": holder}}).to_string());
    }
}

/// What is logged instead of a call when somebody else holds the lease.
fn refused(lease: &str) -> String {
    format!("not called: somebody-else holds the lease default/{lease}")
}

/// A CreateVolume without a result is repeated, and what it made is not what was asked for: it is deleted, by whoever
/// holds the lease then.
// case: sidecars/A22
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_creation_timed_out_is_not_deleted_under_a_stolen_lease() {
    let rig = Rig::new("sidecars-stolen-create");
    let sidecars = rig.sidecars(&format!("{SELDOM} --provisioner-timeout=1s")).await;
    sidecars.all_lead().await;
    let ours = rig.holder(LEASES[1].1);
    let driver = &rig.served.driver;
    driver.configure(|config| {
        config.alter_created_volume = Some(|volume| volume.capacity_bytes = 1);
    });
    driver.always(Call::CreateVolume, Fault::HangAfter);
    rig.claim("small");
    until("it is made, and nobody hears of it", || (!driver.volumes().is_empty()).then_some(()))
        .await;
    held_by(&rig, "somebody-else");
    driver.clear_faults();
    sidecars.program.says(&refused(LEASES[1].1)).await;
    assert!(rig.calls(Call::CreateVolume) > 1, "it was repeated");
    assert_eq!((rig.calls(Call::DeleteVolume), driver.volumes().len()), (0, 1));
    assert_eq!(sidecars.controller("provisioner").await.1, "provisioner leading");
    held_by(&rig, &ours);
    until("it is deleted", || (rig.calls(Call::DeleteVolume) > 0).then_some(())).await;
}

/// A leader that was paused, say, between a call and the one that takes it back does not know what has happened to its
/// lease meanwhile.
// case: sidecars/A22
#[tokio::test(flavor = "multi_thread")]
async fn who_has_lost_its_lease_unknowingly_takes_nothing_away() {
    let rig = Rig::new("sidecars-stolen");
    let sidecars = rig.sidecars(SELDOM).await;
    sidecars.all_lead().await;
    let volume = rig.bound("a").await;
    rig.attach("va", &volume);
    rig.attached("va").await;
    let ours = rig.holder(LEASES[0].1);
    held_by(&rig, "somebody-else");
    let delete = |kind: &str, name: &str| {
        let done = rig.api.cli(&["delete", kind, name, "--wait=false"]);
        assert!(done.status.success(), "{}", crate::common::text(&done));
    };
    delete("volumeattachment", "va");
    // Nobody here protects claims that are in use.
    rig.patch("pvc", "a", &json!({"metadata": {"finalizers": null}}).to_string());
    delete("pvc", "a");
    rig.patch_status("pv", &volume, &json!({"status": {"phase": "Released"}}).to_string());
    sidecars.program.says(&refused(LEASES[0].1)).await;
    assert_eq!(rig.calls(Call::ControllerUnpublishVolume), 0);
    assert_eq!(sidecars.controller("attacher").await.1, "attacher leading", "it does not know yet");
    held_by(&rig, &ours);
    until("it is detached", || (rig.calls(Call::ControllerUnpublishVolume) > 0).then_some(()))
        .await;
    until("va is gone", || rig.api.json("volumeattachment", "va").is_null().then_some(())).await;
    until("it is deleted", || (rig.calls(Call::DeleteVolume) > 0).then_some(())).await;
}

// case: sidecars/A19
#[tokio::test(flavor = "multi_thread")]
async fn two_on_one_host_never_lead_together() {
    let rig = Rig::new("sidecars-host");
    let pods = [("POD_UID", "aaaaaaaa-1"), ("POD_UID", "bbbbbbbb-1")];
    let first = Sidecars::of(rig.start(SHORT, &pods[..1])).await;
    first.all_lead().await;
    let second = Sidecars::of(rig.start(SHORT, &pods[1..])).await;
    for (name, _) in LEASES {
        second.is(name, "standby").await;
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
    for (name, lease) in LEASES {
        assert_eq!(terms(&second.program, lease).0, 0, "{name}");
        assert_eq!(terms(&first.program, lease), (1, 0), "{name}");
    }
    assert_eq!(first.program.terminate().await, Some(0));
    second.all_lead().await;
}

/// A replica may lead some only: what another process holds under the same name is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_of_its_own_leads_is_waited_for() {
    let rig = Rig::new("sidecars-mixed");
    let mut alone = tokio::process::Command::new(env!("CARGO_BIN_EXE_longshore"));
    alone.args(["attacher", "-v=3", "--feature-gates=ReleaseLeaderElectionOnExit=true"]);
    alone.args(SHORT.split_whitespace());
    alone.arg(format!("--kubeconfig={}", rig.api.kubeconfig.display()));
    alone.arg(format!("--csi-address={}", rig.served.socket().display()));
    let alone = Program::start_command(alone);
    alone.says("became leader").await;
    let sidecars = rig.sidecars(SHORT).await;
    for (name, _) in &LEASES[1..] {
        sidecars.is(name, "leading").await;
    }
    sidecars.is("attacher", "standby").await;
    assert_eq!(alone.terminate().await, Some(0));
    sidecars.is("attacher", "leading").await;
}
