//! Whatever happens to one controller, the others do not notice.

use longshore_csi::Call;
use serde_json::json;

use crate::rig::{DRIVER, LEASES, Rig, SHORT, Sidecars, USUAL, until};
use crate::rights::{account, set_rules};
use crate::sidecar::get;

fn panics(controller: &str) -> String {
    format!(
        "longshore_controller_panics_total{{driver_name=\"{DRIVER}\",controller=\"{controller}\"}}"
    )
}

// case: sidecars/A31
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_costs_its_claim_one_try() {
    let rig = Rig::new("sidecars-panic");
    let once = [("LONGSHORE_RESIZER_FAULT", "expand.marked:panic:1")];
    let sidecars = Sidecars::of(rig.start(USUAL, &once)).await;
    sidecars.all_lead().await;
    rig.bound("a").await;
    rig.grow("a", "1Gi");
    until("it grows all the same", || (rig.calls(Call::ControllerExpandVolume) == 1).then_some(()))
        .await;
    assert_eq!(sidecars.metric(&panics("resizer")).await, Some(1.0));
    assert_eq!(sidecars.metric(&panics("attacher")).await, Some(0.0));
    assert_eq!(sidecars.controller("resizer").await, (200, "resizer leading".to_owned()));
}

// case: sidecars/A31
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_poison_takes_its_controller_down_and_no_other() {
    let rig = Rig::new("sidecars-poison");
    let always = [("LONGSHORE_RESIZER_FAULT", "expand.marked:panic:1000000")];
    let fast =
        format!("{USUAL} --resizer-retry-interval-start=50ms --resizer-retry-interval-max=100ms");
    let sidecars = Sidecars::of(rig.start(&fast, &always)).await;
    sidecars.all_lead().await;
    let volume = rig.bound("poison").await;
    rig.grow("poison", "1Gi");
    let (status, line) = sidecars.is("resizer", "down").await;
    assert_eq!(status, 500);
    assert_eq!(line, "resizer down: too many panics, after 5 restarts within 10m");
    // Five panics for each of six lives.
    assert_eq!(sidecars.metric(&panics("resizer")).await, Some(30.0));
    assert_eq!(rig.calls(Call::ControllerExpandVolume), 0);
    until("its lease is given back", || rig.holder(LEASES[2].1).is_empty().then_some(())).await;
    rig.attach("va", &volume);
    rig.attached("va").await;
    let text = sidecars.program.text();
    assert_eq!(text.matches("the controller starts again").count(), 5, "{text}");
    assert_eq!(text.matches("stopped leading").count(), 1, "the lease is kept meanwhile: {text}");
}

// case: sidecars/A32
#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_controller_lets_its_lease_run_out_and_a_replica_takes_it() {
    let rig = Rig::new("sidecars-stuck");
    let block = [("LONGSHORE_RESIZER_FAULT", "expand.marked:block:1"), ("POD_UID", "aaaaaaaa")];
    // A pass is stuck after ten times as long as a call may take.
    let first = Sidecars::of(rig.start(&format!("{SHORT} --resizer-timeout=300ms"), &block)).await;
    first.all_lead().await;
    let second = Sidecars::of(rig.start(SHORT, &[("POD_UID", "bbbbbbbb")])).await;
    let volume = rig.bound("a").await;
    rig.grow("a", "1Gi");
    second.is("resizer", "leading").await;
    until("it grows there", || (rig.calls(Call::ControllerExpandVolume) == 1).then_some(())).await;
    let (status, line) = first.controller("resizer").await;
    assert!(status == 500 && line.contains("stuck: one pass has been running for"), "{line}");
    for name in ["attacher", "provisioner", "snapshotter"] {
        assert_eq!(first.controller(name).await.1, format!("{name} leading"));
    }
    rig.attach("va", &volume);
    rig.attached("va").await;
}

// case: sidecars/A33
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_takes_down_only_who_needs_it() {
    let rig = Rig::new("sidecars-rights");
    let account = account(&rig).await;
    set_rules(&rig, |rules| {
        rules.retain(|rule| rule["resources"] != json!(["volumesnapshotcontents"]));
    });
    let flags = format!(
        "--leader-election --leader-election-namespace=longshore-system --kubeconfig={account}"
    );
    let sidecars = rig.sidecars(&flags).await;
    let (status, line) = sidecars.is("snapshotter", "down").await;
    assert_eq!(status, 500);
    let words = "the snapshotter needs the verbs list and watch on VolumeSnapshotContent";
    assert!(line.contains(words), "{line}");
    for name in ["attacher", "provisioner", "resizer"] {
        sidecars.is(name, "leading").await;
    }
    let volume = rig.bound("a").await;
    set_rules(&rig, |rules| {
        rules.push(json!({"apiGroups": ["snapshot.storage.k8s.io"],
            "resources": ["volumesnapshotcontents"], "verbs": ["get", "list", "watch", "patch"]}));
    });
    sidecars.is("snapshotter", "leading").await;
    rig.snapshot("s", &rig.handle(&volume));
    rig.snapshotted("s").await;
    assert_eq!(get(&sidecars.address, "/healthz/controllers").await.0, 200);
}
