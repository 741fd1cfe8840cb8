//! The library's own promises, one look at a time, over the real API server.

mod asked;
mod host;
mod store;
mod volumes;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use longshore_apiserver::{ApiServer, Config as ServerConfig};
use longshore_cluster::{Api, ListParams, Metrics, Outcome, Patch};
use longshore_core::{
    model::{
        Kind, ObjectKey, Uid,
        kinds::{Event, Namespace},
    },
    provision::attempt::{Attempt, Event as AttemptEvent},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Claim, Config, Context, DeleteError, ProvisionController, ProvisionError, ProvisionedVolume,
    Provisioner, Request, Save, StorageClass, Volume, controller::Inner,
};

const NAME: &str = "foo.bar/baz";

type Answer = fn() -> ProvisionError;

/// Answers as scripted, and with success when the script is over.
#[derive(Default)]
struct Scripted {
    refusals: Mutex<VecDeque<Answer>>,
    delete_fails: bool,
    delete_ignored: bool,
    disqualified: bool,
    asked: Mutex<Vec<Request>>,
    deleted: Mutex<Vec<String>>,
}

impl Provisioner for Scripted {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        self.asked.lock().push(request.clone());
        match self.refusals.lock().pop_front() {
            Some(answer) => Err(answer()),
            None => Ok(ProvisionedVolume::new(request, json!({"hostPath": {"path": "/srv"}}))),
        }
    }

    async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        self.deleted.lock().push(volume.metadata.name.clone());
        if self.delete_ignored {
            return Err(DeleteError::Ignored("it is not ours".into()));
        }
        if self.delete_fails { Err(DeleteError::Failed("no".into())) } else { Ok(()) }
    }

    async fn should_provision(&self, _claim: &Claim) -> bool {
        !self.disqualified
    }
}

struct ClusterRole;
struct ClusterRoleBinding;

impl Kind for ClusterRole {
    const GROUP: &'static str = "rbac.authorization.k8s.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "ClusterRole";
    const PLURAL: &'static str = "clusterroles";
    const NAMESPACED: bool = false;
}

impl Kind for ClusterRoleBinding {
    const GROUP: &'static str = ClusterRole::GROUP;
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "ClusterRoleBinding";
    const PLURAL: &'static str = "clusterrolebindings";
    const NAMESPACED: bool = false;
}

struct Lab {
    server: ApiServer,
    api: Api,
    context: Context,
    stop: CancellationToken,
}

impl Lab {
    async fn new() -> Self {
        let server = ApiServer::open(ServerConfig::deterministic(1)).await.unwrap();
        let (api, stop) = (Api::new(server.client()), CancellationToken::new());
        let context = Context::new(api.clone(), Metrics::new(), &stop);
        context.cache::<Claim>().synced().await;
        context.cache::<Volume>().synced().await;
        context.cache::<StorageClass>().synced().await;
        let lab = Self { server, api, context, stop };
        lab.class("class-1", NAME, json!({})).await;
        lab
    }

    fn controller(&self, config: Config, scripted: Scripted) -> ProvisionController<Scripted> {
        ProvisionController::new(config, &self.context, scripted)
    }

    async fn namespace(&self, name: &str) {
        let namespace = json!({"metadata": {"name": name}});
        self.api.create::<Namespace>(&namespace).await.unwrap();
    }

    /// Lets the user `saver` do what a new role says.
    async fn grant(&self, name: &str, rules: Value) {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        self.api.create::<ClusterRole>(&role).await.unwrap();
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": ClusterRole::GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "apiGroup": ClusterRole::GROUP, "name": "saver"}]});
        self.api.create::<ClusterRoleBinding>(&binding).await.unwrap();
        self.settle().await;
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
    async fn claim(&self, name: &str, class: &str, annotations: Value, spec: Value) -> Uid {
        let mut notes = json!({"volume.kubernetes.io/storage-provisioner": NAME});
        notes.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default", "annotations": notes},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}}});
        claim["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let made = self.api.create::<Claim>(&claim).await.unwrap();
        self.settle().await;
        made["metadata"]["uid"].as_str().unwrap().into()
    }

    async fn plain_claim(&self) -> Uid {
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
        self.context.metrics.render().lines().any(|one| one == line)
    }

    fn failed(&self, count: u32) -> bool {
        let name = "controller_persistentvolumeclaim_provision_failed_total";
        self.counted(&format!("{name}{{class=\"class-1\",source=\"\"}} {count}"))
    }
}

impl<P: Provisioner> Inner<P> {
    /// Whether the calls for a claim go on when it is deleted.
    fn is_begun(&self, uid: &Uid) -> bool {
        self.attempts.read(uid, |attempt| attempt.asker().is_some())
    }

    fn is_unsaved(&self, uid: &Uid) -> bool {
        self.attempts.read(uid, |attempt| attempt.unsaved().is_some())
    }

    /// Gives the volume that waits to be saved the access mode that it lacks.
    fn mend_unsaved(&self, uid: &Uid) {
        let made = self.attempts.read(uid, Attempt::clone);
        let Attempt::Made { volume, asker, .. } = made else { panic!("{made:?}") };
        let mut volume = (*volume).clone();
        volume["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
        self.attempts.apply(uid, AttemptEvent::NotSaved);
        self.attempts.apply(uid, AttemptEvent::Made(Arc::new(volume), asker));
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

fn final_no() -> ProvisionError {
    ProvisionError::Final("no".into())
}
fn background() -> ProvisionError {
    ProvisionError::InBackground("who knows".into())
}
fn unchanged() -> ProvisionError {
    ProvisionError::Unchanged("not asked".into())
}
fn elsewhere() -> ProvisionError {
    ProvisionError::Elsewhere("full".into())
}
fn infeasible() -> ProvisionError {
    ProvisionError::Infeasible("never".into())
}
fn ignored() -> ProvisionError {
    ProvisionError::Ignored("others will".into())
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
    assert!(matches!(controller.inner.sync_claim(&"unknown".into()).await, Outcome::Done));
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
        assert_eq!(controller.inner.is_begun(&uid), begun, "{name}");
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
    assert!(!controller.inner.is_begun(&uid));
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
    assert!(!controller.inner.is_begun(&uid));
    assert!(lab.failed(4), "three refusals before, and this one");
    // case: provisioner/21
    let outcome = controller.inner.sync_claim(&uid).await;
    assert!(matches!(&outcome, Outcome::Retry(error) if error.to_string() == "full"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_given_up_after_the_threshold() {
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
    // The delay that is logged is the one that is kept.
    let pause = inner.config.infeasible_pause;
    let rests =
        |outcome| matches!(outcome, Outcome::After(left) if left <= pause && left > pause / 2);
    assert!(rests(inner.sync_claim(&uid).await));
    assert!(rests(inner.sync_claim(&uid).await));
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
    assert!(inner.attempts.resting().is_empty());
    assert_eq!(lab.volumes().await.len(), 1);
    // case: provisioner/28
    let uid = lab.claim("claim-2", "class-1", json!({}), json!({})).await;
    let controller = lab.controller(Config::new(NAME), refusing(&[final_no]));
    controller.inner.sync_claim(&uid).await;
    assert!(matches!(controller.inner.sync_claim(&uid).await, Outcome::Done));
    assert_eq!(controller.inner.provisioner.asked.lock().len(), 2);
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
