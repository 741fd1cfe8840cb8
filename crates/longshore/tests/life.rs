//! A volume's whole life through the real binary: real mounts, loops, mkfs, processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use common::*;

fn succeeded(pod: &serde_json::Value) -> bool {
    pod["status"]["phase"] == "Succeeded"
}

fn whole_life(test: &str, class: &str) {
    if !can_run(test) {
        return;
    }
    let home = Home::new(test);
    let up = Instance::up(&home, "data");
    up.apply(&claim("data", class));
    up.apply(&pod("writer", "data", "echo kept > /data/file && sync"));
    up.wait("pod", "writer", "succeeded", succeeded);
    let volume = up.json("pvc", "data")["spec"]["volumeName"].as_str().unwrap().to_owned();
    assert!(up.cli(&["delete", "pod", "writer"]).status.success());
    up.wait("pod", "writer", "went", serde_json::Value::is_null);

    up.apply(&pod("reader", "data", "grep -q kept /data/file"));
    up.wait("pod", "reader", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "reader"]).status.success());
    up.wait("pod", "reader", "went", serde_json::Value::is_null);

    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    up.wait("pv", &volume, "went", serde_json::Value::is_null);
    let attachments = up.cli(&["get", "volumeattachments", "-o", "name"]);
    assert_eq!(text(&attachments).trim_matches(['\n', ' ']).replace("No resources found", ""), "");
    eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
    eventually("no mount is left", || mounts_below(&up.data_dir).is_empty());
    eventually("no loop device is left", || loops_below(&up.data_dir).is_empty());

    assert_eq!(up.stop(), Some(0), "SIGTERM ends cleanly");
    assert_eq!(processes_of(home.path()), Vec::<u32>::new());
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}

#[test]
fn without_attach() {
    whole_life("without-attach", "longshore-local");
}

#[test]
fn with_attach() {
    whole_life("with-attach", "longshore-shared");
}

/// One claim's log at `-v=4`: every step is there, under the word of its loop, with the fields of its
/// span and the driver's call.
#[test]
fn every_step_of_a_claim_is_in_the_log_with_its_span() {
    if !can_run("steps-in-log") {
        return;
    }
    let home = Home::new("steps");
    let up = Instance::start(&home, "data", &["up", "-v=4"]);
    up.apply(&claim("data", "longshore-shared"));
    up.apply(&pod("web", "data", "true"));
    up.wait("pod", "web", "succeeded", succeeded);
    let volume = up.json("pvc", "data")["spec"]["volumeName"].as_str().unwrap().to_owned();
    let uid = up.json("pvc", "data")["metadata"]["uid"].as_str().unwrap().to_owned();
    assert!(up.cli(&["delete", "pod", "web"]).status.success());
    up.wait("pod", "web", "went", serde_json::Value::is_null);
    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    up.wait("pv", &volume, "went", serde_json::Value::is_null);
    let log = up.log_text();
    let driver = r#"driver="shared.csi.longshore.dev""#.to_owned();
    let of_volume = format!(r#"volume="{volume}""#);
    let pod = r#"pod="default/web""#.to_owned();
    let of_claim = r#"claim="default/data""#.to_owned();
    let rows: [(&str, &str, &[&String]); 9] = [
        ("bind", "", &[&of_claim]),
        ("provision", "CreateVolume", &[&of_claim, &format!(r#"key="{uid}""#)]),
        ("schedule", "", &[&pod]),
        ("attach", "ControllerPublishVolume", &[&driver]),
        ("stage", "NodeStageVolume", &[&of_volume, &driver, &pod]),
        ("stage", "NodePublishVolume", &[&of_volume, &driver, &pod]),
        ("stage", "NodeUnstageVolume", &[&of_volume, &driver]),
        ("detach", "ControllerUnpublishVolume", &[&driver]),
        ("delete", "DeleteVolume", &[&of_volume]),
    ];
    for (step, call, fields) in rows {
        let call = if call.is_empty() { String::new() } else { format!(r#"call="{call}""#) };
        let fits = |line: &&str| {
            line.contains(&format!(r#"loop="{step}""#))
                && line.contains("attempt=")
                && line.contains(&call)
                && fields.iter().all(|field| line.contains(field.as_str()))
        };
        assert!(log.lines().any(|line| fits(&line)), "no line of {step} {call} {fields:?}");
    }
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn provisioned_at_once() {
    if !can_run("provisioned-at-once") {
        return;
    }
    let home = Home::new("at-once");
    let up = Instance::up(&home, "data");
    up.apply(&claim("now", "longshore-local-immediate"));
    up.wait("pvc", "now", "was bound", |claim| claim["status"]["phase"] == "Bound");
    assert!(up.cli(&["delete", "pvc", "now"]).status.success());
    eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn the_data_dir_is_hidden_from_pods_and_the_host_is_not_written() {
    if !can_run("pods-are-fenced") {
        return;
    }
    let home = Home::outside_tmp("fenced");
    let up = Instance::up(&home, "data");
    up.apply(&claim("data", "longshore-local"));
    let marker = home.path().join("written-by-pod");
    assert!(up.data_dir.join("kubeconfig").exists());
    let script = format!(
        "test ! -e {}/kubeconfig && touch {} && ls / > /data/listing",
        up.data_dir.display(),
        marker.display()
    );
    up.apply(&pod("curious", "data", &script));
    up.wait("pod", "curious", "succeeded", succeeded);
    assert!(!marker.exists(), "a pod wrote to the host's root");
    assert!(up.cli(&["delete", "pod", "curious"]).status.success());
    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn two_instances_side_by_side() {
    if !can_run("side-by-side") {
        return;
    }
    let home = Home::new("side-by-side");
    let (one, two) = (Instance::up(&home, "one"), Instance::up(&home, "two"));
    for (up, word) in [(&one, "first"), (&two, "second")] {
        up.apply(&claim("data", "longshore-local"));
        up.apply(&pod("worker", "data", &format!("echo {word} > /data/file; sleep 1000")));
    }
    for up in [&one, &two] {
        up.wait("pod", "worker", "ran", |pod| pod["status"]["phase"] == "Running");
    }
    assert_eq!(one.stop(), Some(0));
    // The other instance's pod, mounts and loop devices are untouched.
    assert_eq!(two.json("pod", "worker")["status"]["phase"], "Running");
    assert!(!loops_below(&two.data_dir).is_empty());
    assert_eq!(two.stop(), Some(0));
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
}

/// A volume that is written in the pod itself: made for it, kept through a crash of everything
/// around it, and gone with it.
#[test]
fn an_inline_volume_lives_with_its_pod() {
    if !can_run("inline") {
        return;
    }
    let home = Home::new("inline");
    let up = Instance::up(&home, "data");
    let object = up.json("csidriver", "local.csi.longshore.dev");
    assert_eq!(
        object["spec"]["volumeLifecycleModes"],
        serde_json::json!(["Persistent", "Ephemeral"])
    );
    let yaml = pod("scratch", "none", "echo kept > /data/file; sync; sleep 1000").replace(
        "persistentVolumeClaim: {claimName: none}",
        "csi: {driver: local.csi.longshore.dev, fsType: ext4, volumeAttributes: {size: 8Mi}}",
    );
    up.apply(&yaml);
    let running = |pod: &serde_json::Value| pod["status"]["phase"] == "Running";
    up.wait("pod", "scratch", "ran", running);
    let images = images_below(&up.data_dir);
    let sizes: Vec<u64> = images.iter().map(|path| path.metadata().unwrap().len()).collect();
    assert_eq!(sizes, [8 << 20], "{images:?}");

    up.kill();
    let up = Instance::up(&home, "data");
    up.wait("pod", "scratch", "was adopted", running);
    assert_eq!(images_below(&up.data_dir), images);
    assert!(up.cli(&["delete", "pod", "scratch"]).status.success());
    up.wait("pod", "scratch", "went", serde_json::Value::is_null);
    eventually("the image file is gone", || images_below(&up.data_dir).is_empty());
    eventually("no mount is left", || mounts_below(&up.data_dir).is_empty());
    eventually("no loop device is left", || loops_below(&up.data_dir).is_empty());

    // The other driver has none, and says so.
    let refused = yaml.replace("local.csi", "shared.csi").replace("scratch", "refused");
    up.apply(&refused);
    eventually("an event says why", || {
        text(&up.cli(&["get", "events"])).contains("not supported by driver shared.csi")
    });
    assert!(up.cli(&["delete", "pod", "refused"]).status.success());
    up.wait("pod", "refused", "went", serde_json::Value::is_null);
    assert_eq!(images_below(&up.data_dir), Vec::<std::path::PathBuf>::new());
    assert_eq!(up.stop(), Some(0));
}
