//! `longshore attacher` beside a driver that took over from an in-tree plugin.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;
mod sidecar;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use common::{Home, Instance};
use longshore_csi::fake;
use sidecar::{Program, Served, get, soon};
use tokio::net::{UnixListener, UnixStream};

const DRIVER: &str = "ebs.csi.aws.com";

/// How many connections there were, and how many of them have ended.
#[derive(Default)]
struct Counts {
    opened: AtomicUsize,
    closed: AtomicUsize,
}

/// Passes connections on to a driver and counts them.
fn count(listener: UnixListener, driver: std::path::PathBuf) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    let shared = counts.clone();
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            let (counts, driver) = (shared.clone(), driver.clone());
            counts.opened.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut callee = UnixStream::connect(driver).await.unwrap();
                // However it ends, it has ended.
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut callee).await;
                counts.closed.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    counts
}

const OBJECTS: &str = "apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n1}
spec: {drivers: [{name: ebs.csi.aws.com, nodeID: node-1}]}
---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: pv1
  annotations: {pv.kubernetes.io/migrated-to: ebs.csi.aws.com}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  awsElasticBlockStore: {volumeID: HANDLE, fsType: ext4, partition: 1}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: va1}
spec: {attacher: ebs.csi.aws.com, nodeName: n1, source: {persistentVolumeName: pv1}}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_took_over_is_met_twice_and_its_calls_say_so() {
    // case: attacher/49
    let home = Home::new("migrated");
    let api = Instance::start(&home, "api", &["apiserver"]);
    let served = Served::new(DRIVER);
    // What the translation makes of the partition has to be what the driver expects.
    served.driver.configure(|config| {
        config.volume_context = [("partition".to_owned(), "1".to_owned())].into();
    });
    let client = served.driver.client();
    let made = client.create_volume(fake::create_request("v1", 1 << 30)).await.unwrap();
    let handle = made.volume.unwrap().volume_id;
    let socket = home.path().join("counted.sock");
    let counts = count(UnixListener::bind(&socket).unwrap(), served.socket());
    let program = Program::start(&[
        "attacher".to_owned(),
        format!("--csi-address={}", socket.display()),
        format!("--kubeconfig={}", api.kubeconfig.display()),
        "--http-endpoint=127.0.0.1:0".to_owned(),
    ]);
    let address = program.address("serving metrics and health").await;
    program.says("connected to the driver").await;
    soon("the first connection ends", async {
        while counts.closed.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(counts.opened.load(Ordering::SeqCst), 2);
    assert_eq!(counts.closed.load(Ordering::SeqCst), 1);

    api.apply(&OBJECTS.replace("HANDLE", &handle));
    api.wait("volumeattachment", "va1", "was attached", |va| va["status"]["attached"] == true);
    let (status, numbers) = get(&address, "/metrics").await;
    assert_eq!(status, 200);
    let line = |method: &str, migrated: &str| {
        let count = |line: &&str| {
            line.starts_with("csi_sidecar_operations_seconds_count{")
                && line.contains(&format!("/csi.v1.{method}\""))
                && line.contains(&format!("migrated=\"{migrated}\""))
                && line.contains("driver_name=\"ebs.csi.aws.com\"")
        };
        numbers.lines().any(|line| count(&line))
    };
    assert!(line("Controller/ControllerPublishVolume", "true"), "{numbers}");
    assert!(line("Identity/Probe", "false"), "{numbers}");
    assert_eq!(counts.opened.load(Ordering::SeqCst), 2, "the second one is kept");
    assert_eq!(program.terminate().await, Some(0));
}
