//! Who leads: two sidecars, of which the leader is killed; controllers beside a kube-controller-manager.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;
mod sidecar;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use longshore_csi::{
    Call,
    fake::{self, Fault},
};
use sidecar::{Program, Served};

/// Ends the process when the test is over, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(home: &Home, name: &str, args: &[&str]) -> Ended {
    let log = std::fs::File::create(home.path().join(format!("{name}.log"))).unwrap();
    let child = Command::new(binary())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    Ended(child)
}

fn holder(api: &Instance) -> String {
    let done = api.cli(&["get", "leases", "-n", "default", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let leases = list["items"].as_array().cloned().unwrap_or_default();
    let ours = leases.iter().find(|lease| {
        lease["metadata"]["name"]
            .as_str()
            .is_some_and(|name| name.contains("local-csi-longshore-dev"))
    });
    ours.and_then(|lease| lease["spec"]["holderIdentity"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn the_other_provisioner_takes_over() {
    if !can_run("leaders") {
        return;
    }
    let home = Home::new("leaders");
    let api = Instance::start(&home, "api", &["apiserver"]);
    let kubeconfig = api.kubeconfig.display().to_string();
    let socket = format!("unix://{}/csi.sock", home.path().display());
    let pool = format!("default={}/pool", home.path().display());
    let _driver = start(
        &home,
        "driver",
        &[
            "driver",
            "--endpoint",
            &socket,
            "--node-id",
            "n1",
            "--kind",
            "shared",
            "--driver-name",
            "local.csi.longshore.dev",
            "--pool",
            &pool,
        ],
    );
    let _binder = start(
        &home,
        "controllers",
        &["controllers", "--kubeconfig", &kubeconfig, "--leader-elect=false"],
    );
    let flags = [
        "provisioner",
        "--kubeconfig",
        &kubeconfig,
        "--csi-address",
        &socket,
        "--leader-election",
        "--leader-election-namespace=default",
        "--leader-election-lease-duration=3s",
        "--leader-election-renew-deadline=2s",
        "--leader-election-retry-period=500ms",
    ];
    api.apply("apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: local.csi.longshore.dev\nreclaimPolicy: Delete\n");
    let first = start(&home, "first", &flags);
    eventually("the first provisioner leads", || !holder(&api).is_empty());
    let leader = holder(&api);
    let _second = start(&home, "second", &flags);
    api.apply(&claim("before", "fast"));
    api.wait("pvc", "before", "was bound", |claim| claim["status"]["phase"] == "Bound");

    drop(first); // SIGKILL: the lease is not released
    api.apply(&claim("after", "fast"));
    api.wait("pvc", "after", "was bound by the other", |claim| claim["status"]["phase"] == "Bound");
    // Both campaign under the host's name, as the official program does.
    assert_eq!(holder(&api), leader);
}

/// Longer than upstream's deadline for the calls that ask a driver who it is.
const SLOW: Duration = Duration::from_millis(1500);

const ATTACHMENT: &str = "apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n1}
spec: {drivers: [{name: slow.csi.test, nodeID: node-1}]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv1}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  csi: {driver: slow.csi.test, volumeHandle: HANDLE}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: va1}
spec: {attacher: slow.csi.test, nodeName: n1, source: {persistentVolumeName: pv1}}
";

/// The calls that ask a driver who it is and what it can do.
const IDENTITY: [Call; 3] =
    [Call::GetPluginInfo, Call::GetPluginCapabilities, Call::ControllerGetCapabilities];

fn attacher(served: &Served, api: &Instance) -> Program {
    let flags = [
        "attacher".to_owned(),
        format!("--csi-address={}", served.socket().display()),
        format!("--kubeconfig={}", api.kubeconfig.display()),
        "--leader-election".to_owned(),
        "--leader-election-namespace=default".to_owned(),
        "--leader-election-lease-duration=3s".to_owned(),
        "--leader-election-renew-deadline=2s".to_owned(),
        "--leader-election-retry-period=500ms".to_owned(),
        "-v=3".to_owned(),
    ];
    Program::start(&flags)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_attacher_takes_over_while_the_driver_is_slow() {
    let home = Home::new("attacher-takeover");
    let api = Instance::start(&home, "api", &["apiserver"]);
    let served = Served::new("slow.csi.test");
    let client = served.driver.client();
    let made = client.create_volume(fake::create_request("v1", 1 << 30)).await.unwrap();
    let leader = attacher(&served, &api);
    leader.says("became leader").await;
    let standby = attacher(&served, &api);
    standby.says("campaigning").await;
    for call in IDENTITY {
        served.driver.always(call, Fault::Delay(SLOW));
    }
    drop(leader); // SIGKILL: the lease is not released
    standby.says("became leader").await;
    let handle = made.volume.unwrap().volume_id;
    api.apply(&ATTACHMENT.replace("HANDLE", &handle));
    api.wait("volumeattachment", "va1", "was attached", |va| va["status"]["attached"] == true);
    assert_eq!(standby.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attacher_that_cannot_ask_its_driver_exits_with_1_before_it_campaigns() {
    let home = Home::new("attacher-refused");
    let api = Instance::start(&home, "api", &["apiserver"]);
    let served = Served::new("slow.csi.test");
    let refusal = Fault::before(tonic::Code::Internal);
    served.driver.always(Call::ControllerGetCapabilities, refusal);
    let program = attacher(&served, &api);
    let log = program.log();
    assert_eq!(program.ends().await, Some(1));
    let text = log.borrow().clone();
    assert!(text.contains("failed to check what the CSI driver supports"), "{text}");
    assert!(!text.contains("became leader"), "{text}");
}

fn manager_lease(renewed: u32) -> String {
    format!(
        "apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {{name: kube-controller-manager, namespace: kube-system}}
spec:
  holderIdentity: control-plane-1_8c1f
  leaseDurationSeconds: 15
  renewTime: \"2026-01-01T00:00:{renewed:02}.000000Z\"
"
    )
}

fn controllers(api: &Instance, more: &[&str]) -> Program {
    let kubeconfig = api.kubeconfig.display().to_string();
    let line = ["controllers", "--kubeconfig", &kubeconfig, "-v=3"];
    Program::start(&[&line[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_refuse_to_start_beside_a_kube_controller_manager() {
    let home = Home::new("beside");
    let api = Instance::start(&home, "api", &["apiserver"]);
    api.apply(&manager_lease(0));

    // Nobody renews it: whoever held it is gone.
    let alone = controllers(&api, &[]);
    alone.says("its holder is gone").await;
    alone.says("became leader").await;
    assert_eq!(alone.terminate().await, Some(0));

    // Renewed by hand until the program has seen it.
    let program = controllers(&api, &["--leader-elect=false"]);
    let log = program.log();
    let renewed = async {
        for second in 1.. {
            api.apply(&manager_lease(second % 60));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let code = tokio::select! {
        code = program.ends() => code,
        () = renewed => unreachable!("it goes on for ever"),
    };
    assert_eq!(code, Some(1));
    let text = log.borrow().clone();
    for part in [
        "\"control-plane-1_8c1f\" renews the lease kube-system/kube-controller-manager",
        "--controllers=*,-persistentvolume-binder-controller,",
        "--allow-beside-kube-controller-manager",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let allowed = controllers(&api, &["--allow-beside-kube-controller-manager"]);
    allowed.says("became leader").await;
    assert!(!allowed.text().contains("its holder is gone"), "{}", allowed.text());
    assert_eq!(allowed.terminate().await, Some(0));
}

#[tokio::test]
async fn controllers_under_the_lease_of_a_kube_controller_manager_take_turns_with_it() {
    let home = Home::new("turns");
    let api = Instance::start(&home, "api", &["apiserver"]);
    api.apply(&manager_lease(0));
    let program = controllers(
        &api,
        &[
            "--leader-elect-resource-name=kube-controller-manager",
            "--leader-elect-lease-duration=4s",
            "--leader-elect-renew-deadline=3s",
            "--leader-elect-retry-period=1s",
        ],
    );
    for second in 1..=15 {
        api.apply(&manager_lease(second));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(!program.text().contains("became leader"), "{}", program.text());
    // It is renewed no more.
    program.says("became leader").await;
    assert_eq!(program.terminate().await, Some(0));
}
