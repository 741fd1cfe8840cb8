//! Pods whose volumes do not let them go.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use longshore_testing::{Need, holds_within, need};
use serde_json::json;

use super::STAY;
use super::rig::{DRIVER, Rig, is_alive, mounts_below};

/// A pod that runs, whose driver is then started anew and knows nothing of the mount at its target.
async fn forgotten(rig: &Rig) -> std::path::PathBuf {
    rig.volume("data").await;
    let uid = rig.pod("p", STAY, json!({"terminationGracePeriodSeconds": 1})).await;
    rig.wait_phase("p", "Running").await;
    rig.driver.configure(|config| config.touch_paths = false);
    let target = rig.publish_dir(&uid, "data").join("mount");
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &target, "tmpfs", none, None).unwrap();
    target
}

/// A process that stands in a directory until it is killed.
struct Squatter(Child);

impl Squatter {
    fn new(dir: &Path) -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("1000").current_dir(dir).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn test_that_panics_leaves_no_mount_and_no_process() {
    if !need("test_that_panics_leaves_no_mount_and_no_process", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let target = forgotten(&rig).await;
    let root = rig.root();
    let uid = target.strip_prefix(root.join("pods")).unwrap().iter().next().unwrap();
    let pids = rig.pids(uid.to_str().unwrap());
    // Dropped, as by a panic, and not stopped.
    drop(rig);
    assert_eq!(mounts_below(&root), 0);
    assert!(!root.exists());
    assert!(!pids.is_empty());
    let gone = || !pids.iter().any(|pid| is_alive(*pid));
    assert!(holds_within(Duration::from_secs(20), gone), "{pids:?}");
}

#[tokio::test]
async fn mount_that_its_driver_forgot_is_unmounted_and_the_pod_ends() {
    if !need("mount_that_its_driver_forgot_is_unmounted_and_the_pod_ends", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    forgotten(&rig).await;
    rig.end("p").await;
    assert_eq!(rig.heard.of("NodeUnpublishVolume").len(), 1);
    assert_eq!(rig.event_count("FailedUnmount", "").await, 0);
    rig.stop(true).await;
}

#[tokio::test]
async fn busy_mount_gets_an_event_that_names_driver_path_and_process() {
    if !need("busy_mount_gets_an_event_that_names_driver_path_and_process", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let target = forgotten(&rig).await;
    let squatter = Squatter::new(&target);
    rig.delete_pod("p").await;
    let text = format!(
        "UnmountVolume.TearDown failed for volume \"pv-data\" of driver {DRIVER} at {} : the driver does not \
         know this mount any more, and it cannot be unmounted",
        target.display()
    );
    let held = format!("It is held by pid {} (sleep): end that", squatter.0.id());
    rig.until("the pod is told", async || {
        rig.has_event("FailedUnmount", &text).await && rig.has_event("FailedUnmount", &held).await
    })
    .await;
    drop(squatter);
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn failed_unstage_is_told_to_the_pod_that_used_the_volume() {
    use longshore_csi::{Call, fake::Fault};
    if !need("failed_unstage_is_told_to_the_pod_that_used_the_volume", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume("data").await;
    rig.pod("p", STAY, json!({"terminationGracePeriodSeconds": 1})).await;
    rig.wait_phase("p", "Running").await;
    rig.driver.always(Call::NodeUnstageVolume, Fault::before(tonic::Code::Internal));
    rig.delete_pod("p").await;
    let text =
        format!("UnmountVolume.UnmountDevice failed for volume \"pv-data\" of driver {DRIVER} at");
    rig.until("the pod is told", async || {
        rig.has_event("FailedUnmount", &text).await
            && rig.has_event("FailedUnmount", "The driver's log says more").await
    })
    .await;
    rig.driver.clear_faults();
    rig.wait_gone("p").await;
    rig.stop(true).await;
}
