//! The sidecars of a node's side: registrar and liveness probe, alone and beside controllers.

use longshore_csi::{Call, fake::Fault};
use tokio::process::Command;

use crate::rig::{DRIVER, LEASES, Rig, USUAL};
use crate::sidecar::{Program, Served, appears, get};

// case: sidecars/A39
#[tokio::test(flavor = "multi_thread")]
async fn registrar_probe_and_controllers_share_a_process() {
    let rig = Rig::new("sidecars-node");
    let registry = rig.served.registry();
    let node = format!(
        "--controllers=*,registrar,livenessprobe --kubelet-registration-path=/plugins/csi.sock \
         --plugin-registration-path={} {USUAL}",
        registry.display()
    );
    let sidecars = rig.sidecars(&node).await;
    appears(&registry.join(format!("{DRIVER}-reg.sock"))).await;
    sidecars.all_lead().await;
    rig.bound("a").await;
    for name in ["node-driver-registrar", "livenessprobe"] {
        sidecars.is(name, "leading").await;
    }
    assert_eq!(get(&sidecars.address, "/healthz").await, (200, "ok".to_owned()));
    // What the driver says of itself is nothing to the leases.
    rig.served.driver.always(Call::Probe, Fault::before(tonic::Code::Internal));
    assert_eq!(get(&sidecars.address, "/healthz").await.0, 500);
    assert_eq!(get(&sidecars.address, "/healthz/leader-election").await.0, 200);
    for (name, _) in LEASES {
        assert_eq!(sidecars.controller(name).await.1, format!("{name} leading"));
    }
    rig.served.driver.clear_faults();
    assert_eq!(get(&sidecars.address, "/healthz").await.0, 200);
    std::fs::remove_file(registry.join(format!("{DRIVER}-reg.sock"))).unwrap();
    assert_eq!(get(&sidecars.address, "/healthz").await.0, 404);
    assert_eq!(sidecars.program.terminate().await, Some(0));
}

/// A registrar alone has no cluster to talk to.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_needs_no_api_server() {
    let served = Served::new(DRIVER);
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(["sidecars", "-v=3", "--controllers=node-driver-registrar,livenessprobe"]);
    command.args(["--kubelet-registration-path=/plugins/csi.sock", "--http-endpoint=127.0.0.1:0"]);
    command.arg(format!("--plugin-registration-path={}", served.registry().display()));
    command.arg(format!("--csi-address={}", served.socket().display()));
    command.env_remove("KUBECONFIG");
    let program = Program::start_command(command);
    let address = program.address("serving metrics and health").await;
    appears(&served.registry().join(format!("{DRIVER}-reg.sock"))).await;
    assert_eq!(get(&address, "/healthz").await, (200, "ok".to_owned()));
    assert_eq!(get(&address, "/healthz/leader-election").await.0, 200);
    assert_eq!(program.terminate().await, Some(0));
}
