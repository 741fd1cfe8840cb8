//! Growth under running pods, on one node and on two.

use longshore_testing::{Need, need};

use super::{common::*, volume::Volume, volume::conditions, witness::Witness};

const MORE_MIB: u64 = 64;

/// Whether the kernel lets this process grow a mounted ext4.
pub fn grows_ext4_online() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() & (1 << 24) != 0
}

fn can_grow(test: &str) -> bool {
    can_kubectl(test) && need(test, &[Need::Tool("mkfs.xfs"), Need::Tool("mkfs.btrfs")])
}

fn size(volume: &Volume) -> String {
    format!("{}Mi", volume.size_mib + MORE_MIB)
}

/// Volumes of both drivers grow while their pods write.
fn grows_under_its_pods(test: &str, args: &[&str], node: Option<&'static str>) {
    if !can_grow(test) {
        return;
    }
    let home = Home::new(test);
    let up = Instance::start(&home, "data", args);
    let drivers = ["local", "shared"];
    let kinds = [("xfs", 300), ("btrfs", 224), ("", 16), ("ext4", 32)];
    let all = drivers.iter().flat_map(|driver| kinds.map(|(kind, size)| (*driver, kind, size)));
    let mut all: Vec<Volume> =
        all.map(|(driver, kind, size)| Volume::new(driver, kind, size).on(node)).collect();
    for volume in &all {
        volume.make(&up);
        volume.start_unwaited(&up);
    }
    let mut before = Vec::new();
    for volume in &mut all {
        volume.start(&up);
        volume.find(&up);
        before.push(volume.seen());
    }
    let online = |volume: &&Volume| volume.fstype != "ext4" || grows_ext4_online();
    let watched: Vec<Volume> = all.iter().filter(online).cloned().collect();
    let witness = Witness::start(&up, &watched, MORE_MIB);
    for volume in &all {
        up.grow(&volume.name, &size(volume));
    }
    for (volume, before) in all.iter().zip(before) {
        if !online(&volume) {
            grows_at_the_next_start(&up, volume, before);
        } else {
            volume.grows(&up, before, MORE_MIB);
            let (saw, enough) = (witness.saw(volume), volume.enough(before, MORE_MIB));
            assert!(saw >= enough, "{} says it too early: {saw} of {enough}", volume.name);
            up.event(&volume.name, &["FileSystemResizeSuccessful"]);
        }
        volume.is_whole(&up);
        let events = up.events(&volume.name);
        assert!(!events.iter().any(|event| event.contains("NotServed")), "{events:#?}");
    }
    for volume in &all {
        volume.stop(&up);
    }
    eventually("nothing is mounted", || loops_below(&up.data_dir).is_empty());
    all.iter().for_each(Volume::is_clean);
    up.stop_without_a_trace(&home);
}

/// A mounted ext4 that the kernel does not let grow: claim and events say so, and the next pod has it.
fn grows_at_the_next_start(up: &Instance, volume: &Volume, before: u64) {
    let name = &volume.name;
    up.event(name, &["FileSystemResizeFailed", "grows when the pod restarts"]);
    let claim = up.json("pvc", name);
    let told = claim["status"]["conditions"].as_array().unwrap();
    let told = told.iter().find(|one| one["type"] == "NodeResizeError").unwrap();
    let text = told["message"].as_str().unwrap();
    assert!(text.contains("grows when the pod restarts"), "{text}");
    assert_eq!(claim["status"]["capacity"]["storage"], *format!("{}Mi", volume.size_mib));
    assert_eq!(volume.seen(), before);
    volume.stop(up);
    volume.start(up);
    let mut volume = volume.clone();
    volume.find(up);
    volume.grows(up, before, MORE_MIB);
}

#[test]
fn volumes_grow_under_their_pods_on_one_node() {
    grows_under_its_pods("grow-one", &["up"], None);
}

#[test]
fn volumes_grow_under_their_pods_on_the_second_of_two_nodes() {
    let args = ["up", "--nodes", "2", "--node-name", "vm"];
    grows_under_its_pods("grow-two", &args, Some("vm-2"));
}

/// A claim that grows before its pod has a node, and one whose instance is killed while its node has the
/// half that is left.
#[test]
fn growth_waits_for_its_pod_and_outlives_the_instance() {
    if !can_grow("grow-waits") {
        return;
    }
    let home = Home::new("grow-waits");
    let up = Instance::start(&home, "data", &["up", "--node-name", "vm"]);
    let mut pending = Volume::new("local", "xfs", 300).on(Some("vm"));
    let mut raw = Volume::new("shared", "", 16);
    for volume in [&mut pending, &mut raw] {
        volume.make(&up);
        volume.start(&up);
        volume.find(&up);
    }
    let before = pending.seen();
    pending.stop(&up);
    // No node takes the pod for now.
    assert!(up.kubectl(&["cordon", "vm"]).status.success());
    pending.start_unwaited(&up);
    up.grow(&pending.name, &size(&pending));
    up.wait("pvc", &pending.name, "waits for its pod", |claim| {
        conditions(claim).iter().any(|one| one == "FileSystemResizePending")
    });
    let claim = up.json("pvc", &pending.name);
    assert_eq!(claim["status"]["capacity"]["storage"], "300Mi", "{claim:#}");
    assert!(up.kubectl(&["uncordon", "vm"]).status.success());
    pending.start(&up);
    pending.find(&up);
    pending.grows(&up, before, MORE_MIB);
    pending.is_whole(&up);

    // Killed at once: the next life of the instance finishes, node's half included.
    let before = raw.seen();
    up.grow(&raw.name, &size(&raw));
    up.kill();
    let up = Instance::start(&home, "data", &["up", "--node-name", "vm"]);
    raw.grows(&up, before, MORE_MIB);
    raw.is_whole(&up);
    assert_eq!(up.stop(), Some(0));
}
