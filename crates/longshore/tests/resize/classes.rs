//! Another VolumeAttributesClass changes the volume for real, and back.

use longshore_testing::{Need, need};

use super::{attributes, common::*, volume::Volume};

fn driver(volume: &Volume) -> &'static str {
    if volume.name.starts_with("local") {
        "local.csi.longshore.dev"
    } else {
        "shared.csi.longshore.dev"
    }
}

fn class_of(volume: &Volume, name: &str) -> String {
    format!("{name}-{}", &volume.name[..5].trim_end_matches('-'))
}

/// Asks for a class and waits until the claim says that the volume has it.
fn gets(up: &Instance, volume: &Volume, class: &str) {
    let class = class_of(volume, class);
    up.want(&volume.name, &class);
    has(up, volume, &class);
}

fn has(up: &Instance, volume: &Volume, class: &str) {
    up.wait("pvc", &volume.name, &format!("has {class}"), |claim| {
        let status = &claim["status"];
        status["currentVolumeAttributesClassName"] == *class
            && status["modifyVolumeStatus"].is_null()
    });
    assert_eq!(up.bound(&volume.name)["spec"]["volumeAttributesClassName"], *class);
}

fn sends_discards(volume: &Volume) -> bool {
    volume.mount().options.split(',').any(|one| one == "discard")
}

/// The settings of a mounted ext4: discards are sent, the page cache is passed by, blocks are reserved.
fn settings(volume: &Volume) -> (bool, bool, bool) {
    (sends_discards(volume), volume.sysfs("loop/dio") == "1", volume.reserved() > 7)
}

fn change_under_a_pod(test: &str, args: &[&str], node: Option<&'static str>) {
    if !can_kubectl(test) {
        return;
    }
    let home = Home::new(test);
    let up = Instance::start(&home, "data", args);
    for kind in ["local", "shared"] {
        let mut volume = Volume::new(kind, "ext4", 32).on(node);
        let all = "discard: \"true\", directIO: \"true\", reservedBlocksPercent: \"10\"";
        for (name, parameters) in
            [("gold", all), ("plain", "reservedBlocksPercent: \"0\""), ("odd", "iops: \"1\"")]
        {
            up.apply(&attributes(&class_of(&volume, name), driver(&volume), parameters));
        }
        volume.make(&up);
        volume.start(&up);
        volume.find(&up);
        assert_eq!(settings(&volume), (false, false, false));
        gets(&up, &volume, "gold");
        assert_eq!(settings(&volume), (true, true, true), "under its pod");
        // What the driver does not know is refused, and the volume keeps what it has.
        up.want(&volume.name, &class_of(&volume, "odd"));
        up.event(&volume.name, &["VolumeModifyFailed", "\"iops\" is not known"]);
        up.wait("pvc", &volume.name, "is refused", |claim| {
            claim["status"]["modifyVolumeStatus"]["status"] == "Infeasible"
        });
        assert_eq!(settings(&volume), (true, true, true));
        // What the next class does not name is the driver's default again.
        gets(&up, &volume, "plain");
        assert_eq!(settings(&volume), (false, false, false));
        up.event(&volume.name, &["VolumeModifySuccessful", "plain"]);
        volume.is_whole(&up);
        let events = up.events(&volume.name);
        assert!(!events.iter().any(|event| event.contains("NotServed")), "{events:#?}");
    }
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn class_changes_a_volume_under_its_pod_and_back() {
    change_under_a_pod("classes-one", &["up"], None);
}

#[test]
fn class_changes_a_volume_on_the_second_of_two_nodes() {
    let args = ["up", "--nodes", "2", "--node-name", "vm"];
    change_under_a_pod("classes-two", &args, Some("vm-2"));
}

/// What the kernel takes only with a mount is not called done before: an event says when it will be.
#[test]
fn change_that_waits_for_the_next_start_says_so() {
    let test = "classes-later";
    if !can_kubectl(test) || !need(test, &[Need::Tool("mkfs.xfs")]) {
        return;
    }
    let home = Home::new(test);
    let up = Instance::up(&home, "data");
    let mut volume = Volume::new("local", "xfs", 300);
    up.apply(&attributes(&class_of(&volume, "send"), driver(&volume), "discard: \"true\""));
    volume.make(&up);
    volume.start(&up);
    volume.find(&up);
    up.want(&volume.name, &class_of(&volume, "send"));
    up.event(&volume.name, &["VolumeModifyFailed", "takes effect when the pod starts next"]);
    let claim = up.json("pvc", &volume.name);
    assert!(claim["status"]["currentVolumeAttributesClassName"].is_null(), "{claim:#}");
    assert!(!sends_discards(&volume));
    volume.stop(&up);
    volume.start(&up);
    volume.find(&up);
    has(&up, &volume, &class_of(&volume, "send"));
    assert!(sends_discards(&volume));
    assert_eq!(up.stop(), Some(0));
}
