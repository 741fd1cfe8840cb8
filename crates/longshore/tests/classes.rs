//! Every field of a StorageClass, end to end in the embedded mode; and what a class or a claim can get
//! wrong: an event names the field and what to write instead, and nothing is made.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use common::*;
use serde_json::{Value, json};

const LOCAL: &str = "local.csi.longshore.dev";
const LATE: &str = "volumeBindingMode: WaitForFirstConsumer";

/// The tutorial's second class, with a filesystem.
fn fast(name: &str, fstype: &str) -> String {
    let more = format!(
        "parameters: {{type: fast, zone: us-east-1, replication-type: none, \
         csi.storage.k8s.io/fstype: {fstype}}}\nreclaimPolicy: Delete\n{LATE}\n\
         allowVolumeExpansion: true\nmountOptions: [discard, nobarrier]"
    );
    class(name, LOCAL, &more)
}

/// The options of the mounts below a directory that are of a filesystem on a loop device.
fn mount_options(up: &Instance) -> Vec<String> {
    let table = longshore_files::mounts::MountTable::read().unwrap();
    let ours = table.below(&up.data_dir).filter(|mount| mount.source.starts_with("/dev"));
    ours.map(|mount| mount.options.clone()).collect()
}

fn running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

#[test]
fn the_classes_of_the_tutorial() {
    if !can_run("tutorial-classes") {
        return;
    }
    let home = Home::new("tutorial");
    let up = Instance::up(&home, "data");
    up.apply(&class("custom-storage", LOCAL, "parameters: {type: custom}"));
    up.apply(&fast("fast", "ext4"));
    up.apply(&fast("fast-xfs", "xfs"));

    up.apply(&claim("custom", "custom-storage"));
    let volume = up.bound("custom");
    assert_eq!(volume["spec"]["csi"]["driver"], LOCAL);

    up.apply(&claim("fast", "fast"));
    up.event("fast", &["WaitForFirstConsumer"]);
    up.apply(&pod("worker", "fast", "touch /data/file; sleep 1000"));
    up.wait("pod", "worker", "ran", running);
    let options = mount_options(&up);
    let all = |line: &&String| ["discard", "nobarrier"].iter().all(|word| line.contains(word));
    assert!(options.iter().any(|line| all(&line)), "{options:?}");
    let volume = up.bound("fast");
    assert_eq!(volume["spec"]["mountOptions"], json!(["discard", "nobarrier"]));
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(up.json("storageclass", "fast")["allowVolumeExpansion"], true);
    let bigger = r#"{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}"#;
    up.patched("pvc", "fast", bigger, true);
    up.delete("pod", "worker");
    for one in ["custom", "fast"] {
        up.delete("pvc", one);
    }
    eventually("the image files are gone", || images_below(&up.data_dir).is_empty());

    // xfs has no such option any more: the claim hears it by name, and nothing is made.
    up.apply(&claim("fast-xfs", "fast-xfs"));
    up.apply(&pod("worker-xfs", "fast-xfs", "true"));
    up.event("fast-xfs", &["ProvisioningFailed", "nobarrier", "xfs", "mountOptions"]);
    assert!(images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn policies_modes_and_places() {
    if !can_run("class-fields") {
        return;
    }
    let home = Home::new("class-fields");
    let up = Instance::up(&home, "data");
    let node = up.only_node();
    let allowed = |node: &str| {
        let key = "topology.local.csi.longshore.dev/node";
        format!(
            "allowedTopologies: [{{matchLabelExpressions: [{{key: {key}, values: [{node}]}}]}}]"
        )
    };
    up.apply(&class("kept", LOCAL, "reclaimPolicy: Retain"));
    up.apply(&class("here", LOCAL, &allowed(&node)));
    up.apply(&class("here-late", LOCAL, &format!("{}\n{LATE}", allowed(&node))));
    up.apply(&class("there", LOCAL, &allowed("nowhere")));
    up.apply(&class("there-late", LOCAL, &format!("{}\n{LATE}", allowed("nowhere"))));
    up.apply(&class("fixed", LOCAL, ""));

    // Retain: the claim goes, volume and data stay.
    up.apply(&claim("kept", "kept"));
    let volume = up.bound("kept")["metadata"]["name"].as_str().unwrap().to_owned();
    up.delete("pvc", "kept");
    up.wait("pv", &volume, "was released", |pv| pv["status"]["phase"] == "Released");
    assert_eq!(images_below(&up.data_dir).len(), 1);

    // Places: where the class allows, the volume is pinned; elsewhere nothing is made.
    up.apply(&claim("here", "here"));
    let pinned = up.bound("here")["spec"]["nodeAffinity"].to_string();
    assert!(pinned.contains(&node), "{pinned}");
    up.apply(&claim("here-late", "here-late"));
    up.apply(&pod("here-late", "here-late", "sleep 1000"));
    up.wait("pod", "here-late", "ran", running);
    up.apply(&claim("there", "there"));
    up.event("there", &["ProvisioningFailed", "nowhere"]);
    up.apply(&claim("there-late", "there-late"));
    up.apply(&pod("there-late", "there-late", "true"));
    up.event("there-late", &["FailedScheduling"]);
    assert_eq!(up.json("pvc", "there-late")["status"]["phase"], "Pending");
    assert_eq!(images_below(&up.data_dir).len(), 3);

    // A class that does not allow expansion refuses it.
    up.apply(&claim("fixed", "fixed"));
    up.bound("fixed");
    let bigger = r#"{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}"#;
    up.patched("pvc", "fixed", bigger, false);
    assert_eq!(up.stop(), Some(0));
}

impl Instance {
    fn only_node(&self) -> String {
        let done = self.cli(&["get", "nodes", "-o", "json"]);
        let list: Value = serde_json::from_slice(&done.stdout).unwrap();
        list["items"][0]["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Applies a change to an object; it must succeed, or be refused.
    fn patched(&self, kind: &str, name: &str, patch: &str, fine: bool) {
        let mut object = self.json(kind, name);
        let change: Value = serde_json::from_str(patch).unwrap();
        let storage = &change["spec"]["resources"]["requests"]["storage"];
        object["spec"]["resources"]["requests"]["storage"] = storage.clone();
        object.as_object_mut().unwrap().remove("status");
        let text = serde_json::to_string(&object).unwrap();
        let done = self.cli_with(&["apply", "-f", "-"], &text);
        assert_eq!(done.status.success(), fine, "{kind}/{name}: {}", common::text(&done));
    }
}

/// What is wrong with a class or a claim: its lines, the claim's change, and words of the event.
struct Wrong {
    class: &'static str,
    claim: fn(&mut Value),
    words: &'static [&'static str],
}

const fn parameter(class: &'static str, words: &'static [&'static str]) -> Wrong {
    Wrong { class, claim: |_| {}, words }
}

const WRONG: &[Wrong] = &[
    parameter("parameters: {fstpye: ext4}", &["\"fstpye\" is not known", "use one of", "fstype"]),
    parameter(
        "parameters: {csi.storage.k8s.io/fstype: zfs}",
        &["\"zfs\" is not supported", "ext4, xfs, btrfs"],
    ),
    parameter(
        "parameters: {csi.storage.k8s.io/fstype: ext4, fstype: ext4}",
        &["both \"fstype\" and \"csi.storage.k8s.io/fstype\""],
    ),
    parameter(
        "parameters: {csi.storage.k8s.io/surprise: x}",
        &["unknown parameter key \"csi.storage.k8s.io/surprise\""],
    ),
    parameter("parameters: {pool: gold}", &["parameter pool", "\"gold\"", "choose from: default"]),
    parameter("parameters: {provisioning: fat}", &["parameter provisioning", "thin or thick"]),
    parameter("parameters: {overcommit: lots}", &["parameter overcommit", "from 1 to 1000"]),
    parameter("parameters: {blockSize: \"3000\"}", &["parameter blockSize", "1024, 2048, 4096"]),
    parameter("parameters: {reflink: \"true\"}", &["parameter reflink", "ext4 has no such option"]),
    parameter("mountOptions: [loop]", &["mount flag \"loop\"", "mountOptions"]),
    parameter(
        "parameters: {csi.storage.k8s.io/provisioner-secret-name: key}",
        &["Provisioner secrets", "Both must be specified"],
    ),
    parameter(
        "parameters: {csi.storage.k8s.io/provisioner-secret-name: key, \
         csi.storage.k8s.io/provisioner-secret-namespace: default}",
        &["secret key in namespace default", "not found"],
    ),
    parameter(
        "parameters: {csi.storage.k8s.io/provisioner-secret-name: \"${pvc.nane}\", \
         csi.storage.k8s.io/provisioner-secret-namespace: default}",
        &["${pvc.nane}", "invalid tokens"],
    ),
    Wrong {
        class: "",
        claim: |claim| claim["spec"]["accessModes"] = json!(["ReadWriteMany"]),
        words: &["MULTI_NODE_MULTI_WRITER", "claims can ask for ReadWriteOnce"],
    },
    Wrong {
        class: "",
        claim: |claim| claim["spec"]["selector"] = json!({"matchLabels": {"a": "b"}}),
        words: &["claim Selector is not supported"],
    },
    Wrong {
        class: "",
        claim: |claim| claim["spec"]["resources"]["requests"]["storage"] = json!("4Ei"),
        words: &["4Ei needed", "pool"],
    },
];

#[test]
fn what_is_wrong_is_named_and_nothing_is_made() {
    if !can_run("wrong-classes") {
        return;
    }
    let home = Home::new("wrong");
    let up = Instance::up(&home, "data");
    for (number, wrong) in WRONG.iter().enumerate() {
        let name = format!("wrong-{number}");
        up.apply(&class(&name, LOCAL, wrong.class));
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": name,
                "resources": {"requests": {"storage": "16Mi"}}}});
        (wrong.claim)(&mut claim);
        up.apply(&claim.to_string());
    }
    for (number, wrong) in WRONG.iter().enumerate() {
        let name = format!("wrong-{number}");
        let mut words = vec!["ProvisioningFailed"];
        words.extend(wrong.words);
        println!("{}", up.event(&name, &words));
        assert_eq!(up.json("pvc", &name)["status"]["phase"], "Pending");
    }
    assert!(images_below(&up.data_dir).is_empty());
    assert!(up.cli(&["get", "pv", "-o", "name"]).stdout.is_empty());
    // Nothing is refused for good: a class that is made anew is tried at once.
    up.delete("storageclass", "wrong-0");
    up.apply(&class("wrong-0", LOCAL, ""));
    up.bound("wrong-0");
    assert_eq!(up.stop(), Some(0));
}
