//! A replica of the official programs and one of ours, one after the other: never two leaders.

use std::process::Command;

use longshore_real_kube::tools::{self, Tool};

use crate::common::Beside;
use crate::rig::{LEASES, Rig, SHORT, until};

/// An official program under its lease.
fn official(rig: &Rig, tool: Tool, name: &str) -> Beside {
    let mut command = Command::new(tools::path(tool).unwrap());
    command.arg(format!("--kubeconfig={}", rig.api.kubeconfig.display()));
    command.arg(format!("--csi-address={}", rig.served.socket().display()));
    command.args(SHORT.split_whitespace());
    Beside::start_command(&rig.home, name, &mut command)
}

// case: sidecars/A16
// case: sidecars/A17
#[tokio::test(flavor = "multi_thread")]
async fn the_official_provisioner_and_ours_take_turns() {
    if !tools::need(&[Tool::CsiProvisioner]) {
        return;
    }
    let rig = Rig::new("sidecars-official");
    let lease = LEASES[1];
    let go = official(&rig, Tool::CsiProvisioner, "official");
    let first = rig.holders(&[lease]).await.remove(0);
    let ours = rig.sidecars(SHORT).await;
    for (name, _) in [LEASES[0], LEASES[2], LEASES[3]] {
        ours.is(name, "leading").await;
    }
    ours.is("provisioner", "standby").await;
    rig.claim("by-go");
    rig.volume_of("by-go").await;
    assert_eq!(rig.holder(lease.1), first);
    // It ends, and does not give its lease back.
    drop(go);
    ours.is("provisioner", "leading").await;
    rig.claim("by-ours");
    rig.volume_of("by-ours").await;
    // And back: it waits for ours.
    let _again = official(&rig, Tool::CsiProvisioner, "official-again");
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    let ours_holds = rig.holder(lease.1);
    assert!(ours_holds != first && !ours_holds.is_empty(), "{ours_holds} {first}");
    assert_eq!(ours.program.terminate().await, Some(0));
    until("the official one leads", || {
        let holder = rig.holder(lease.1);
        // It has another name at each start.
        (!holder.is_empty() && holder != ours_holds).then_some(())
    })
    .await;
    rig.claim("by-go-again");
    rig.volume_of("by-go-again").await;
}
