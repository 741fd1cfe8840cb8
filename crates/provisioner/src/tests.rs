//! The library's own promises, one look at a time, over the real API server.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use longshore_apiserver::{ApiServer, Config as ServerConfig};
use longshore_cluster::{Api, ListParams, Outcome, Patch};
use longshore_core::model::{ObjectKey, kinds::Event};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Claim, Config, Made, NotDeleted, NotMade, Parts, ProvisionController, Provisioner, Request,
    Save, StorageClass, Volume, controller::BY_UID,
};

const NAME: &str = "foo.bar/baz";

type Answer = fn() -> NotMade;

/// Answers as scripted, and with success when the script is over.
#[derive(Default)]
struct Scripted {
    refusals: Mutex<VecDeque<Answer>>,
    delete_fails: bool,
    delete_ignored: bool,
    disqualified: bool,
    block: bool,
    asked: Mutex<Vec<Request>>,
    deleted: Mutex<Vec<String>>,
}

impl Provisioner for Scripted {
    async fn provision(&self, request: &Request) -> Result<Made, NotMade> {
        self.asked.lock().push(request.clone());
        match self.refusals.lock().pop_front() {
            Some(answer) => Err(answer()),
            None => Ok(Made::new(request, json!({"hostPath": {"path": "/srv"}}))),
        }
    }

    async fn delete(&self, volume: &Volume) -> Result<(), NotDeleted> {
        self.deleted.lock().push(volume.metadata.name.clone());
        if self.delete_ignored {
            return Err(NotDeleted::Ignored("it is not ours".into()));
        }
        if self.delete_fails { Err(NotDeleted::Failed("no".into())) } else { Ok(()) }
    }

    async fn should_provision(&self, _claim: &Claim) -> bool {
        !self.disqualified
    }

    fn supports_block(&self) -> bool {
        self.block
    }
}

struct Lab {
    _server: ApiServer,
    api: Api,
    parts: Parts,
    stop: CancellationToken,
}

impl Lab {
    async fn new() -> Self {
        let server = ApiServer::open(ServerConfig::deterministic(1)).await.unwrap();
        let (api, stop) = (Api::new(server.client()), CancellationToken::new());
        let parts = Parts::start(&api, NAME, &stop);
        let lab = Self { _server: server, api, parts, stop };
        lab.class("class-1", NAME, json!({})).await;
        lab
    }

    fn controller(&self, config: Config, scripted: Scripted) -> ProvisionController<Scripted> {
        self.parts.claims.index(BY_UID, |claim| vec![claim.metadata.uid.clone()]);
        ProvisionController::new(config, self.parts.clone(), scripted)
    }

    /// Lets caches and events catch up.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    async fn class(&self, name: &str, provisioner: &str, over: Value) {
        let mut class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name}, "provisioner": provisioner});
        class.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        self.api.create::<StorageClass>(&class).await.unwrap();
    }

    /// A claim that asks our provisioner; returns its UID.
    async fn claim(&self, name: &str, class: &str, annotations: Value, spec: Value) -> String {
        let mut notes = json!({"volume.kubernetes.io/storage-provisioner": NAME});
        notes.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default", "annotations": notes},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}}});
        claim["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let made = self.api.create::<Claim>(&claim).await.unwrap();
        self.settle().await;
        made["metadata"]["uid"].as_str().unwrap().to_string()
    }

    async fn plain_claim(&self) -> String {
        self.claim("claim-1", "class-1", json!({}), json!({})).await
    }

    async fn delete_claim(&self, name: &str) {
        let key = ObjectKey::new("default", name);
        let patch = json!({"metadata": {"finalizers": null}});
        self.api.patch::<Claim>(&key, Patch::Merge(&patch)).await.unwrap();
        self.api.delete::<Claim>(&key, &Default::default()).await.unwrap();
        self.settle().await;
    }

    async fn volume(&self, name: &str, phase: &str, annotations: Value, spec: Value) {
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": "/srv"}}});
        volume["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut made = self.api.create::<Volume>(&volume).await.unwrap();
        made["status"]["phase"] = json!(phase);
        self.api.update_status::<Volume>(&made).await.unwrap();
        self.settle().await;
    }

    async fn volumes(&self) -> BTreeMap<String, Volume> {
        let all = self.api.list::<Volume>(None, &ListParams::default()).await.unwrap();
        all.into_iter().map(|volume| (volume.metadata.name.clone(), volume)).collect()
    }

    async fn events(&self) -> Vec<String> {
        self.settle().await;
        let all = self.api.list::<Event>(None, &ListParams::default()).await.unwrap();
        all.into_iter().map(|event| format!("{}: {}", event.reason, event.message)).collect()
    }

    fn counted(&self, line: &str) -> bool {
        self.parts.registry.render().lines().any(|one| one == line)
    }

    fn failed(&self, count: u32) -> bool {
        let name = "controller_persistentvolumeclaim_provision_failed_total";
        self.counted(&format!("{name}{{class=\"class-1\",source=\"\"}} {count}"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn refusing(refusals: &[Answer]) -> Scripted {
    Scripted { refusals: Mutex::new(refusals.iter().copied().collect()), ..Scripted::default() }
}

fn final_no() -> NotMade {
    NotMade::Final("no".into())
}
fn background() -> NotMade {
    NotMade::InBackground("who knows".into())
}
fn unchanged() -> NotMade {
    NotMade::Unchanged("not asked".into())
}
fn elsewhere() -> NotMade {
    NotMade::Elsewhere("full".into())
}
fn infeasible() -> NotMade {
    NotMade::Infeasible("never".into())
}
fn ignored() -> NotMade {
    NotMade::Ignored("others will".into())
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_and_completed() {
    // case: provisioner/1 case: provisioner/32
    let lab = Lab::new().await;
    lab.class("foreign", "other", json!({})).await;
    let other = json!({"volume.kubernetes.io/storage-provisioner": "other"});
    let foreign = lab.claim("claim-2", "foreign", other, json!({})).await;
    let uid = lab.plain_claim().await;
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    for uid in [&uid, &foreign] {
        assert!(matches!(controller.inner.sync_claim(uid).await, Outcome::Done));
    }
    let volumes = lab.volumes().await;
    assert_eq!(volumes.keys().collect::<Vec<_>>(), [&format!("pvc-{uid}")]);
    let volume = &volumes[&format!("pvc-{uid}")];
    let reference = volume.spec.claim_ref.as_ref().unwrap();
    assert_eq!((reference.uid.as_str(), reference.namespace.as_str()), (uid.as_str(), "default"));
    assert_eq!(volume.spec.storage_class_name, "class-1");
    assert_eq!(volume.metadata.annotation("pv.kubernetes.io/provisioned-by"), Some(NAME));
    let finalizer = "external-provisioner.volume.kubernetes.io/finalizer";
    assert!(!volume.metadata.has_finalizer(finalizer));
    let name = "controller_persistentvolumeclaim_provision_total";
    assert!(lab.counted(&format!("{name}{{class=\"class-1\",source=\"\"}} 1")));
    // case: provisioner/2
    lab.settle().await;
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    assert_eq!(controller.inner.provisioner.asked.lock().len(), 1);
    assert!(lab.failed(1));
    let uid = lab.claim("claim-3", "class-1", json!({}), json!({})).await;
    let config = Config { add_finalizer: true, ..Config::new(NAME) };
    let controller = lab.controller(config, Scripted::default());
    controller.inner.sync_claim(&uid).await;
    assert!(lab.volumes().await[&format!("pvc-{uid}")].metadata.has_finalizer(finalizer));
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_left_alone() {
    let lab = Lab::new().await;
    // case: provisioner/3
    let block = lab.claim("block", "class-1", json!({}), json!({"volumeMode": "Block"})).await;
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    assert!(matches!(controller.inner.sync_claim(&block).await, Outcome::Done));
    let text = "ProvisioningFailed: foo.bar/baz does not support block volume provisioning";
    assert!(lab.events().await.iter().any(|event| event == text));
    // case: provisioner/7
    let lost = lab.claim("lost", "nowhere", json!({}), json!({})).await;
    let before = lab.events().await;
    let outcome = controller.inner.sync_claim(&lost).await;
    assert!(
        matches!(&outcome, Outcome::Retry(e) if e.to_string() == "storageClass \"nowhere\" not found")
    );
    assert_eq!(lab.events().await, before);
    let name = "controller_persistentvolumeclaim_provision_failed_total";
    assert!(lab.counted(&format!("{name}{{class=\"nowhere\",source=\"\"}} 1")));
    // case: provisioner/11
    let uid = lab.plain_claim().await;
    let scripted = Scripted { disqualified: true, ..Scripted::default() };
    let controller = lab.controller(Config::new(NAME), scripted);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    // case: provisioner/18
    assert!(matches!(controller.inner.sync_claim("unknown").await, Outcome::Done));
    // case: provisioner/23
    let controller = lab.controller(Config::new(NAME), refusing(&[ignored]));
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    assert!(lab.volumes().await.is_empty());
    assert!(lab.failed(2), "the block volume, and this one");
    let events = lab.events().await;
    assert!(!events.iter().any(|event| event.contains("others will")), "{events:?}");
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    controller.inner.sync_claim(&uid).await;
    assert_eq!(lab.volumes().await.len(), 1, "qualified now");
}

#[tokio::test(start_paused = true)]
async fn an_additional_name_is_answered() {
    // case: provisioner/5
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let config = Config { additional_names: vec![NAME.into()], ..Config::new("csi.com/mock-csi") };
    let controller = lab.controller(config, Scripted::default());
    controller.inner.sync_claim(&uid).await;
    let volume = &lab.volumes().await[&format!("pvc-{uid}")];
    assert_eq!(volume.metadata.annotation("pv.kubernetes.io/provisioned-by"), Some(NAME));
}

#[tokio::test(start_paused = true)]
async fn what_is_begun_is_remembered() {
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let rows: [(&str, &[Answer], bool); 6] = [
        ("case: provisioner/14", &[final_no], false),
        ("case: provisioner/14 after a call without verdict", &[background, final_no], false),
        ("case: provisioner/15", &[background], true),
        ("case: provisioner/15 kept", &[background, background], true),
        ("case: provisioner/16", &[unchanged], false),
        ("case: provisioner/16 kept", &[background, unchanged], true),
    ];
    for (name, answers, begun) in rows {
        let controller = lab.controller(Config::new(NAME), refusing(answers));
        for _ in answers {
            assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Retry(_)), "{name}");
        }
        assert_eq!(controller.inner.memory.begun(&uid).is_some(), begun, "{name}");
    }
    // case: provisioner/17: the claim (and its class) go; the call goes on and the volume is saved.
    let controller = lab.controller(Config::new(NAME), refusing(&[background]));
    controller.inner.sync_claim(&uid).await;
    lab.delete_claim("claim-1").await;
    let class = ObjectKey::cluster("class-1");
    lab.api.delete::<StorageClass>(&class, &Default::default()).await.unwrap();
    lab.settle().await;
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    assert!(lab.volumes().await.contains_key(&format!("pvc-{uid}")));
    assert!(controller.inner.memory.begun(&uid).is_none());
}

#[tokio::test(start_paused = true)]
async fn another_node_is_asked_for() {
    let lab = Lab::new().await;
    let node = "volume.kubernetes.io/selected-node";
    let notes = json!({node: "node-1", "other": "kept"});
    let uid = lab.claim("claim-1", "class-1", notes, json!({})).await;
    let key = ObjectKey::new("default", "claim-1");
    // case: provisioner/20
    for answer in [final_no as Answer, unchanged, background] {
        let controller = lab.controller(Config::new(NAME), refusing(&[answer]));
        controller.inner.sync_claim(&uid).await;
        let claim = lab.api.get::<Claim>(&key).await.unwrap().unwrap();
        assert_eq!(claim.metadata.annotation(node), Some("node-1"));
    }
    let controller = lab.controller(Config::new(NAME), refusing(&[elsewhere, elsewhere]));
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    assert_eq!(controller.inner.provisioner.asked.lock()[0].node.as_deref(), Some("node-1"));
    let claim = lab.api.get::<Claim>(&key).await.unwrap().unwrap();
    assert_eq!(claim.metadata.annotation(node), None);
    assert_eq!(claim.metadata.annotation("other"), Some("kept"));
    assert!(controller.inner.memory.begun(&uid).is_none());
    assert!(lab.failed(4), "three refusals before, and this one");
    // case: provisioner/21
    let outcome = controller.inner.sync_claim(&uid).await;
    assert!(matches!(&outcome, Outcome::Retry(error) if error.to_string() == "full"));
}

#[tokio::test(start_paused = true)]
async fn giving_up() {
    // case: provisioner/25
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let controller = lab.controller(Config::new(NAME), refusing(&[final_no as Answer; 100]));
    let inner = &controller.inner;
    let mut tries = 0;
    while matches!(inner.sync_claim(&uid).await, Outcome::Retry(_)) {
        tries += 1;
    }
    assert_eq!((tries, inner.provisioner.asked.lock().len()), (15, 16));
    assert!(matches!(inner.sync_claim(&uid).await, Outcome::Done));
    assert_eq!(inner.provisioner.asked.lock().len(), 17);
    // case: provisioner/26
    let config = Config { failed_provision_threshold: 0, ..Config::new(NAME) };
    let controller = lab.controller(config, refusing(&[final_no as Answer; 50]));
    for _ in 0..50 {
        assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Retry(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn infeasible_claims_rest() {
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let controller = lab.controller(Config::new(NAME), refusing(&[infeasible]));
    let inner = &controller.inner;
    assert!(matches!(inner.sync_claim(&uid).await, Outcome::Retry(_)));
    assert!(matches!(inner.sync_claim(&uid).await, Outcome::After(_)));
    assert_eq!(inner.provisioner.asked.lock().len(), 1);
    let events = lab.events().await;
    let text = "ProvisioningFailed: Volume provisioning failed with infeasible error. Retries will be delayed. never";
    assert!(events.iter().any(|event| event == text), "{events:?}");
    // case: provisioner/30
    let class = ObjectKey::cluster("class-1");
    lab.api.delete::<StorageClass>(&class, &Default::default()).await.unwrap();
    lab.class("class-1", NAME, json!({})).await;
    lab.settle().await;
    assert!(matches!(inner.sync_claim(&uid).await, Outcome::Done));
    assert!(inner.memory.resting().is_empty());
    assert_eq!(lab.volumes().await.len(), 1);
    // case: provisioner/28
    let uid = lab.claim("claim-2", "class-1", json!({}), json!({})).await;
    let controller = lab.controller(Config::new(NAME), refusing(&[final_no]));
    controller.inner.sync_claim(&uid).await;
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    assert_eq!(controller.inner.provisioner.asked.lock().len(), 2);
}

/// Makes storage whose volume the API refuses: it has no access mode.
struct Unsavable(Scripted);

impl Provisioner for Unsavable {
    async fn provision(&self, request: &Request) -> Result<Made, NotMade> {
        let mut made = self.0.provision(request).await?;
        if self.0.asked.lock().len() == 1 {
            made.volume["spec"]["accessModes"] = json!([]);
        }
        Ok(made)
    }

    async fn delete(&self, volume: &Volume) -> Result<(), NotDeleted> {
        self.0.delete(volume).await
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_saved() {
    // case: provisioner/33
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    let make = |save, delete_fails| {
        lab.parts.claims.index(BY_UID, |claim| vec![claim.metadata.uid.clone()]);
        let config = Config { save, ..Config::new(NAME) };
        let scripted = Scripted { delete_fails, ..Scripted::default() };
        ProvisionController::new(config, lab.parts.clone(), Unsavable(scripted))
    };
    let attempts = Save::Attempts { count: 5, interval: Duration::from_secs(10) };
    let controller = make(attempts, false);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Retry(_)));
    assert_eq!(controller.inner.provisioner.0.deleted.lock().len(), 1);
    assert!(lab.volumes().await.is_empty() && lab.failed(1));
    let told = |events: &[String], reason: &str| events.iter().any(|e| e.starts_with(reason));
    let events = lab.events().await;
    assert!(told(&events, "ProvisioningFailed: Error creating provisioned PV object for claim"));
    assert!(!told(&events, "ProvisioningCleanupFailed"));
    // case: provisioner/34
    let controller = make(attempts, true);
    controller.inner.sync_claim(&uid).await;
    assert_eq!(controller.inner.provisioner.0.deleted.lock().len(), 5);
    assert!(told(
        &lab.events().await,
        "ProvisioningCleanupFailed: Error cleaning provisioned volume"
    ));
    // case: provisioner/35
    let controller = make(Save::Always, false);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    let name = format!("pvc-{uid}");
    assert!(controller.inner.memory.unsaved(&name).is_some());
    assert!(controller.inner.provisioner.0.deleted.lock().is_empty());
    assert!(matches!(controller.inner.save_again(&name).await, Outcome::Retry(_)));
    // case: provisioner/37: somebody else has saved it meanwhile
    let mut unsaved = controller.inner.memory.unsaved(&name).unwrap();
    unsaved.volume["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
    controller.inner.memory.keep_unsaved(&name, unsaved);
    lab.volume(&name, "Available", json!({}), json!({})).await;
    assert!(matches!(controller.inner.save_again(&name).await, Outcome::Done));
    assert!(controller.inner.memory.unsaved(&name).is_none());
    assert!(told(&lab.events().await, "ProvisioningSucceeded"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_is_not_told() {
    let lab = Lab::new().await;
    let uid = lab.plain_claim().await;
    lab.parts.claims.index(BY_UID, |claim| vec![claim.metadata.uid.clone()]);
    let config = Config { save: Save::Always, ..Config::new(NAME) };
    let scripted = Unsavable(Scripted::default());
    let controller = ProvisionController::new(config, lab.parts.clone(), scripted);
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    lab.delete_claim("claim-1").await;
    let name = format!("pvc-{uid}");
    let mut unsaved = controller.inner.memory.unsaved(&name).unwrap();
    unsaved.volume["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
    controller.inner.memory.keep_unsaved(&name, unsaved);
    assert!(matches!(controller.inner.save_again(&name).await, Outcome::Done));
    assert!(lab.volumes().await.contains_key(&name));
    let events = lab.events().await;
    assert!(!events.iter().any(|event| event.starts_with("ProvisioningSucceeded")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn released_volumes_are_deleted() {
    let lab = Lab::new().await;
    let by = |who: &str| json!({"pv.kubernetes.io/provisioned-by": who});
    lab.volume("ours", "Released", by(NAME), json!({})).await;
    lab.volume("theirs", "Released", by("other"), json!({})).await;
    let keep = json!({"persistentVolumeReclaimPolicy": "Retain"});
    lab.volume("kept", "Released", by(NAME), keep).await;
    // case: provisioner/44
    let failing = Scripted { delete_fails: true, ..Scripted::default() };
    let controller = lab.controller(Config::new(NAME), failing);
    assert!(matches!(controller.inner.sync_volume("ours").await, Outcome::Retry(_)));
    let events = lab.events().await;
    assert!(events.iter().any(|event| event == "VolumeFailedDelete: no"), "{events:?}");
    assert!(lab.counted("controller_persistentvolume_delete_failed_total{class=\"\"} 1"));
    // case: provisioner/53
    let ignoring = Scripted { delete_ignored: true, ..Scripted::default() };
    let controller = lab.controller(Config::new(NAME), ignoring);
    assert!(matches!(controller.inner.sync_volume("ours").await, Outcome::Done));
    assert_eq!(lab.volumes().await.len(), 3);
    assert!(lab.counted("controller_persistentvolume_delete_total{class=\"\"} 1"));
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    for name in ["ours", "theirs", "kept", "unknown"] {
        assert!(matches!(controller.inner.sync_volume(name).await, Outcome::Done));
    }
    // case: provisioner/39
    assert_eq!(*controller.inner.provisioner.deleted.lock(), ["ours"]);
    lab.settle().await;
    let deleting: Vec<String> = lab
        .volumes()
        .await
        .into_values()
        .filter(|volume| volume.metadata.deleting())
        .map(|volume| volume.metadata.name)
        .collect();
    // Its protection is somebody else's to take off.
    assert_eq!(deleting, ["ours"]);
    assert!(lab.counted("controller_persistentvolume_delete_total{class=\"\"} 2"));
}

#[tokio::test(start_paused = true)]
async fn a_late_cache_deletes_nothing() {
    let lab = Lab::new().await;
    let by = json!({"pv.kubernetes.io/provisioned-by": NAME});
    lab.volume("ours", "Released", by, json!({})).await;
    let stale = lab.parts.volumes.get(&ObjectKey::cluster("ours")).unwrap();
    let controller = lab.controller(Config::new(NAME), Scripted::default());
    // Bound again by an administrator, and the cache has not heard of it.
    let key = ObjectKey::cluster("ours");
    let patch = json!({"status": {"phase": "Available"}});
    lab.api.patch_status::<Volume>(&key, Patch::Merge(&patch)).await.unwrap();
    assert_eq!(stale.status.phase, "Released");
    controller.inner.delete(&stale).await.unwrap();
    assert!(controller.inner.provisioner.deleted.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_goes_wherever_it_is_by_now() {
    let lab = Lab::new().await;
    lab.volume("ours", "Released", json!({}), json!({})).await;
    let ours = "external-provisioner.volume.kubernetes.io/finalizer";
    let key = ObjectKey::cluster("ours");
    let patch = json!({"metadata": {"finalizers": ["a/b", "c/d", ours]}});
    lab.api.patch::<Volume>(&key, Patch::Merge(&patch)).await.unwrap();
    let uid = lab.volumes().await["ours"].metadata.uid.clone();
    let config = Config { add_finalizer: true, ..Config::new(NAME) };
    let controller = lab.controller(config, Scripted::default());
    let seen = || ["c/d", ours].map(str::to_owned).to_vec();
    // Another volume's finalizer stays, whatever its name.
    controller.inner.drop_finalizer(&key, "another", seen()).await.unwrap();
    assert!(lab.volumes().await["ours"].metadata.has_finalizer(ours));
    controller.inner.drop_finalizer(&key, &uid, seen()).await.unwrap();
    assert_eq!(lab.volumes().await["ours"].metadata.finalizers, ["a/b", "c/d"]);
    controller.inner.drop_finalizer(&ObjectKey::cluster("gone"), &uid, seen()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_controller_runs_on_its_own() {
    let lab = Lab::new().await;
    let controller = lab.controller(Config::new(NAME), refusing(&[final_no, background]));
    let provisioner: Arc<Scripted> = controller.inner.provisioner.clone();
    let run = tokio::spawn(controller.run(lab.stop.clone()));
    let uid = lab.plain_claim().await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(lab.volumes().await.contains_key(&format!("pvc-{uid}")));
    assert_eq!(provisioner.asked.lock().len(), 3);
    lab.stop.cancel();
    run.await.unwrap();
}
