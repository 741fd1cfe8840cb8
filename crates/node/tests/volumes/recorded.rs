//! What the recorded scenarios have in common: the driver of the recording, its words, short verbs.

use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{Node, Secret, VolumeAttachment};
use longshore_core::names::{attachment_name, sha256_hex};
use longshore_csi::capabilities::NodeCapability;
use serde_json::{Value, json};

use crate::rig::{DRIVER, Rig};

/// The driver of the recording: capabilities and context.
pub async fn recorded(attach: bool, extra: Value) -> Rig {
    let rig = Rig::start_with(attach, extra).await;
    rig.driver.configure(|config| config.node.insert(NodeCapability::SingleNodeMultiWriter));
    rig
}

pub fn context() -> Value {
    json!({"tier": "fast", "storage.kubernetes.io/csiProvisionerIdentity": "id"})
}

pub async fn volume(rig: &Rig, extra: Value) {
    volume_named(rig, "data", extra).await;
}

/// A volume of another name.
pub async fn volume_named(rig: &Rig, name: &str, extra: Value) {
    let mut all = json!({"volumeAttributes": context()});
    for (key, value) in extra.as_object().unwrap() {
        all[key] = value.clone();
    }
    rig.volume_with(name, all).await;
}

/// The recording's tokens for one volume and pod.
pub struct Names<'a> {
    pub rig: &'a Rig,
    pub attach: bool,
    /// The claim's name.
    pub claim: &'a str,
    pub mount: Value,
    pub mode: &'a str,
    pub flags: Value,
    pub secrets: Value,
    pub pod_info: Value,
    pub read_only: bool,
}

impl<'a> Names<'a> {
    pub fn new(rig: &'a Rig, attach: bool) -> Self {
        Self {
            rig,
            attach,
            claim: "data",
            mount: json!({"fs_type": "ext4"}),
            mode: "SINGLE_NODE_MULTI_WRITER",
            flags: json!([]),
            secrets: json!({}),
            pod_info: json!({}),
            read_only: false,
        }
    }

    pub fn staging(&self) -> String {
        let sha = sha256_hex(&[&self.rig.handle(self.claim)]);
        let dir = self.rig.root().join("plugins/kubernetes.io/csi").join(DRIVER).join(sha);
        dir.join("globalmount").display().to_string()
    }

    pub fn target(&self, uid: &str) -> String {
        self.rig.publish_dir(uid, self.claim).join("mount").display().to_string()
    }

    pub fn capability(&self) -> Value {
        let mut mount = self.mount.clone();
        if self.flags != json!([]) {
            mount["mount_flags"] = self.flags.clone();
        }
        json!({"mount": mount, "mode": self.mode})
    }

    pub fn common(&self) -> Value {
        let mut one = json!({"volume_id": self.rig.handle(self.claim), "capability": self.capability(),
            "volume_context": context()});
        if self.attach {
            one["publish_context"] = json!({"golden/attach": "slot-7"});
        }
        if self.secrets != json!({}) {
            one["secrets"] = self.secrets.clone();
        }
        one
    }

    pub fn stage(&self) -> (&'static str, Value) {
        let mut one = self.common();
        one["staging"] = self.staging().into();
        ("NodeStageVolume", one)
    }

    pub fn publish(&self, uid: &str) -> (&'static str, Value) {
        let mut one = self.common();
        one["staging"] = self.staging().into();
        one["target"] = self.target(uid).into();
        if self.read_only {
            one["readonly"] = true.into();
        }
        for (key, value) in self.pod_info.as_object().unwrap() {
            one["volume_context"][key] = value.clone();
        }
        ("NodePublishVolume", one)
    }

    pub fn unpublish(&self, uid: &str) -> (&'static str, Value) {
        let one = json!({"volume_id": self.rig.handle(self.claim), "target": self.target(uid)});
        ("NodeUnpublishVolume", one)
    }

    pub fn unstage(&self) -> (&'static str, Value) {
        let one = json!({"volume_id": self.rig.handle(self.claim), "staging": self.staging()});
        ("NodeUnstageVolume", one)
    }

    /// The calls for one pod, from staging to unstaging.
    pub fn life(&self, uid: &str) -> [(&'static str, Value); 4] {
        [self.stage(), self.publish(uid), self.unpublish(uid), self.unstage()]
    }

    /// The calls for two pods that share the volume; the first one ends first.
    pub fn shared_life(&self, a: &str, b: &str) -> [(&'static str, Value); 6] {
        let [stage, publish, unpublish, unstage] = self.life(a);
        [stage, publish, self.publish(b), unpublish, self.unpublish(b), unstage]
    }
}

/// What the driver heard, equal neighbours collapsed.
pub fn heard(rig: &Rig) -> Vec<(&'static str, Value)> {
    let mut all: Vec<_> =
        rig.heard.all().into_iter().map(|call| (call.name, call.request)).collect();
    all.dedup();
    all
}

/// What it heard of one volume.
pub fn heard_of(rig: &Rig, id: &str) -> Vec<(&'static str, Value)> {
    let calls = rig.heard.all().into_iter().filter(|call| call.request["volume_id"] == id);
    let mut all: Vec<_> = calls.map(|call| (call.name, call.request)).collect();
    all.dedup();
    all
}

/// A pod that mounts claims, each at a directory of its name.
pub fn pod_of(name: &str, claims: &[&str], script: &str) -> Value {
    let volume =
        |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let mount = |claim: &&str| json!({"name": claim, "mountPath": format!("/{claim}")});
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "volumes": claims.iter().map(volume).collect::<Vec<_>>(),
        "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", script],
            "volumeMounts": claims.iter().map(mount).collect::<Vec<_>>()}],
    }})
}

pub async fn unstaged(rig: &Rig) {
    rig.until("nothing is staged", async || rig.staged_dirs().is_empty()).await;
}

/// Attaches `data` once the node lists it as in use, and waits until the pod runs.
pub async fn attach_and_run(rig: &Rig, pod: &str) {
    rig.until("in use", async || rig.in_use().await == [rig.unique("data")]).await;
    rig.attach("data").await;
    rig.wait_phase(pod, "Running").await;
}

/// What the attach-detach controller does when the node has let go.
pub async fn detach(rig: &Rig) {
    rig.until("not in use", async || rig.in_use().await.is_empty()).await;
    let none = json!({"status": {"volumesAttached": []}});
    rig.api.patch_status::<Node>(&ObjectKey::cluster("n1"), Patch::Merge(&none)).await.unwrap();
    let va = ObjectKey::cluster(attachment_name(&rig.handle("data"), &DRIVER.into(), &"n1".into()));
    rig.api.delete::<VolumeAttachment>(&va, &Default::default()).await.unwrap();
}

pub fn pod_info(name: &str, uid: &str, inline: bool) -> Value {
    let key = |part: &str| format!("csi.storage.k8s.io/{part}");
    json!({key("pod.name"): name, key("pod.namespace"): "default", key("pod.uid"): uid,
        key("serviceAccount.name"): "default", key("ephemeral"): inline.to_string()})
}

pub async fn secret(rig: &Rig) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "sec", "namespace": "default"},
        "stringData": {"user": "u", "pass": "p"}, "data": {"user": "dQ==", "pass": "cA=="}});
    rig.api.create::<Secret>(&secret).await.unwrap();
}
