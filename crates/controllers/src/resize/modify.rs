//! Gives volumes another VolumeAttributesClass.

use std::{collections::BTreeMap, sync::Arc};

use longshore_cluster::{
    Change, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue, clock,
    controller::note,
};
use longshore_core::{
    model::{
        ClaimPhase, ObjectKey, PodPhase,
        kinds::{Claim, Condition, Pod, Volume, VolumeAttributesClass},
    },
    resize::{
        conditions, is_of,
        modify::{self, Modification, Refusal, View, decide, worth_a_look},
    },
};
use longshore_csi::{CsiError, v1::ControllerModifyVolumeRequest};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Sidecar, claims::Precondition, error::ResizeError, fault::Bug, memory::rest};

/// Claims by the class that they ask for.
const BY_CLASS: &str = "claims-by-attributes-class";

/// The code of a refusal that a pod's end may undo.
const IN_USE: &str = "FailedPrecondition";

/// The loop of modifications.
pub(super) struct Modifications {
    sidecar: Arc<Sidecar>,
    queue: WorkQueue<ObjectKey>,
}

impl Modifications {
    pub(super) fn new(sidecar: &Arc<Sidecar>) -> Self {
        let config = &sidecar.config;
        let retry = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
        let queue = sidecar.context.queue(&sidecar.queue_name(), retry);
        sidecar.claims.index(BY_CLASS, |claim: &Claim| {
            claim.spec.volume_attributes_class_name.iter().cloned().collect()
        });
        Self { sidecar: sidecar.clone(), queue }
    }

    pub(super) async fn run(self, shutdown: &CancellationToken) {
        let (queue, config) = (self.queue.clone(), &self.sidecar.config);
        let (workers, resync) = (config.workers.get(), config.resync_period);
        let all = Loop::new("modify", Arc::new(self), queue).workers(workers).resync(resync);
        all.run(shutdown).await;
    }

    fn claim_changed(&self, change: &Change<Claim>) -> Option<ObjectKey> {
        match change {
            Change::Applied { old, new } => {
                let news = |old: &Arc<Claim>| worth_a_look(old, new);
                old.as_ref().is_none_or(news).then(|| new.metadata.key())
            }
            Change::Deleted { old } => {
                self.sidecar.memory.forget(&old.metadata.uid);
                None
            }
        }
    }

    /// Claims of a pod that has ended or begun to run: a change that the driver refused because the volume
    /// was in use may be possible now, or done.
    fn pod_changed(&self, change: &Change<Pod>) -> Vec<ObjectKey> {
        let pod = change.object();
        let runs = |pod: &Pod| pod.status.phase == PodPhase::Running;
        let started = match change {
            Change::Applied { old, new } => runs(new) && !old.as_ref().is_some_and(|old| runs(old)),
            Change::Deleted { .. } => false,
        };
        if !(started || pod.finished() || change.deleted().is_some()) {
            return Vec::new();
        }
        let waits = |key: &ObjectKey| {
            let claim = self.sidecar.claims.get(key);
            claim.is_some_and(|claim| {
                let refused = |one: &Condition| {
                    one.kind == conditions::MODIFY_VOLUME_ERROR && one.reason == IN_USE
                };
                claim.status.conditions.iter().any(refused)
            })
        };
        let keys = pod.claim_names().map(|(name, _)| ObjectKey::new(&pod.metadata.namespace, name));
        keys.filter(waits).collect()
    }

    /// Claims that wait for a class that is there by now.
    fn class_changed(&self, change: &Change<VolumeAttributesClass>) -> Vec<ObjectKey> {
        let Some(class) = change.applied() else { return Vec::new() };
        let claims = self.sidecar.claims.by_index(BY_CLASS, &class.metadata.name);
        let waits = |claim: &&Arc<Claim>| claim.status.modify_volume_status.is_some();
        claims.iter().filter(waits).map(|claim| claim.metadata.key()).collect()
    }
}

impl Reconciler for Modifications {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let sidecar = &self.sidecar;
        sources
            .needs(&sidecar.volumes)
            .on(&sidecar.claims, Self::claim_changed)
            .on_resync(&sidecar.claims, |_, claim| Some(claim.metadata.key()));
        if let Some(classes) = &sidecar.classes {
            sources.on(classes, Self::class_changed);
        }
        if let Some(pods) = &sidecar.pods {
            sources.on(pods, Self::pod_changed);
        }
    }

    /// What an earlier run of this program has begun has no verdict.
    fn prepare(&self) {
        let Self { sidecar, .. } = self;
        for claim in sidecar.claims.list() {
            let begun = claim.status.modify_volume_status.as_ref();
            let in_progress = begun.is_some_and(|begun| begun.status == "InProgress");
            let volume = sidecar.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name));
            if in_progress && volume.is_some_and(|volume| is_of(&sidecar.name, &volume)) {
                sidecar.memory.with(&claim.metadata.uid, |marks| marks.modify_uncertain = true);
            }
        }
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let Some(claim) = self.sidecar.claims.get(key) else { return Outcome::Done };
        let outcome = self.sidecar.modify(&claim).await;
        self.sidecar.tidy(&claim);
        outcome
    }
}

impl Sidecar {
    async fn modify(&self, claim: &Claim) -> Outcome {
        if claim.spec.volume_name.is_empty() || claim.status.phase != ClaimPhase::Bound {
            return Outcome::Done;
        }
        let Some(volume) = self.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name)) else {
            return Outcome::retry(ResizeError::NoVolume(claim.spec.volume_name.clone()));
        };
        if !is_of(&self.name, &volume) {
            return Outcome::Done;
        }
        if !self.serves(&volume) {
            if decide(&View::of(claim, false)) != Modification::Nothing {
                self.note_unserved(claim, &volume);
            }
            return Outcome::Done;
        }
        let retention = self.config.retry_interval_max;
        let (view, resting) = self.memory.with(&claim.metadata.uid, |marks| {
            let uncertain = marks.modify_uncertain && !self.faults.forgets(Bug::TwoClasses);
            let view = View::of(claim, uncertain);
            let resting = rest(marks.class_infeasible, retention).filter(|_| view.repeats());
            if resting.is_none() {
                let again = view.repeats() && view.is_infeasible();
                marks.class_infeasible = again.then(Instant::now);
            }
            (view, resting)
        });
        if let Some(left) = resting {
            return Outcome::After(left);
        }
        let back = view.wanted == view.current && self.faults.forgets(Bug::LostRollback);
        let done = match decide(&view) {
            Modification::Nothing => return Outcome::Done,
            Modification::Begin(_) if back => return Outcome::Done,
            Modification::Cancel => self.cancel(claim).await,
            Modification::Continue(class) => self.go_on(class, claim, &volume).await,
            Modification::Begin(class) => self.begin(class, claim, &volume).await,
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(ResizeError::Changed) => Outcome::Again,
            Err(error) if error.answer().is_some_and(CsiError::is_infeasible) => {
                Outcome::After(retention)
            }
            Err(error) => Outcome::retry(error),
        }
    }

    async fn cancel(&self, claim: &Claim) -> Result<(), ResizeError> {
        self.recorder.normal(claim, "VolumeModifyCanceled", "Cancelled modify.");
        let patched =
            self.patch_claim(claim, Precondition::None, |newest| Some(modify::cancelled(newest)));
        patched.await.map(drop)
    }

    /// Repeats what was begun: nobody knows how the last call ended.
    async fn go_on(&self, class: &str, claim: &Claim, volume: &Volume) -> Result<(), ResizeError> {
        match self.class(class).await? {
            Some(class) => self.call_modify(&class, claim, volume).await,
            None => Err(self.class_is_missing(class, claim)),
        }
    }

    async fn begin(&self, class: &str, claim: &Claim, volume: &Volume) -> Result<(), ResizeError> {
        let Some(found) = self.class(class).await? else {
            self.class_is_missing(class, claim);
            let patched = self.patch_claim(claim, Precondition::Version, |newest| {
                is_wanted(class, newest).then(|| modify::pending(newest))
            });
            // The class wakes the claim when it comes.
            return patched.await?.map(drop).ok_or(ResizeError::Changed);
        };
        let marked = self.patch_claim(claim, Precondition::Version, |newest| {
            let now = clock::seconds(clock::now());
            is_wanted(class, newest).then(|| modify::begun(newest, class, &now))
        });
        marked.await?.ok_or(ResizeError::Changed)?;
        self.faults.at("modify.marked");
        let name = &claim.metadata.name;
        let text = format!("external resizer is modifying volume {name} with vac {class}");
        self.recorder.normal(claim, "VolumeModify", text);
        self.call_modify(&found, claim, volume).await
    }

    fn class_is_missing(&self, class: &str, claim: &Claim) -> ResizeError {
        let error = ResizeError::NoClass(class.to_owned());
        self.recorder.warning(claim, "VolumeModifyFailed", error.to_string());
        error
    }

    /// The class. Watches of two kinds are not ordered, so one that the cache does not show is asked for
    /// before it counts as missing.
    async fn class(&self, name: &str) -> Result<Option<Arc<VolumeAttributesClass>>, ResizeError> {
        let key = ObjectKey::cluster(name);
        let cached = self.classes.as_ref().and_then(|classes| classes.get(&key));
        if cached.is_some() {
            return Ok(cached);
        }
        let found = self.api.get::<VolumeAttributesClass>(&key).await;
        let failed = |source| ResizeError::Class { class: name.to_owned(), source };
        Ok(found.map_err(failed)?.map(Arc::new))
    }

    async fn call_modify(
        &self,
        class: &VolumeAttributesClass,
        claim: &Claim,
        volume: &Volume,
    ) -> Result<(), ResizeError> {
        note("volume", &volume.metadata.name);
        note("driver", &self.name);
        let uid = &claim.metadata.uid;
        let csi = volume.spec.csi.as_ref();
        let request = ControllerModifyVolumeRequest {
            volume_id: csi.map(|csi| csi.volume_handle.to_string()).unwrap_or_default(),
            secrets: self.modify_secrets(volume).await?,
            mutable_parameters: self.parameters(class, claim, volume),
        };
        let name = &class.metadata.name;
        match self.driver.controller_modify_volume(request).await {
            Ok(_) => {
                self.faults.at("modify.answered");
                // Until it is recorded, a claim that asks for something else by now has to wait.
                self.memory.with(uid, |marks| marks.modify_uncertain = true);
                self.record_modified(name, claim, volume).await?;
                self.memory.with(uid, |marks| marks.modify_uncertain = false);
                Ok(())
            }
            Err(error) => {
                self.not_modified(name, claim, &error).await?;
                Err(error.into())
            }
        }
    }

    fn parameters(
        &self,
        class: &VolumeAttributesClass,
        claim: &Claim,
        volume: &Volume,
    ) -> BTreeMap<String, String> {
        // A driver must not change what a request does not name.
        let unnamed = self.mutable.iter().map(|key| (key.clone(), String::new()));
        let mut parameters: BTreeMap<String, String> = unnamed.collect();
        parameters.extend(class.parameters.clone());
        if self.config.extra_modify_metadata {
            let (claim, volume) = (&claim.metadata, &volume.metadata);
            parameters.insert("csi.storage.k8s.io/pvc/name".into(), claim.name.clone());
            parameters.insert("csi.storage.k8s.io/pvc/namespace".into(), claim.namespace.clone());
            parameters.insert("csi.storage.k8s.io/pv/name".into(), volume.name.clone());
        }
        parameters
    }

    async fn record_modified(
        &self,
        class: &str,
        claim: &Claim,
        volume: &Volume,
    ) -> Result<(), ResizeError> {
        let patch = json!({"spec": {"volumeAttributesClassName": class}});
        self.patch_volume(volume, &patch).await?;
        self.faults.at("modify.volume-written");
        let patched = self
            .patch_claim(claim, Precondition::None, |newest| Some(modify::finished(newest, class)));
        patched.await?;
        let name = &claim.metadata.name;
        let text = format!("external resizer modified volume {name} with vac {class} successfully");
        self.recorder.normal(claim, "VolumeModifySuccessful", text);
        Ok(())
    }

    async fn not_modified(
        &self,
        class: &str,
        claim: &Claim,
        error: &CsiError,
    ) -> Result<(), ResizeError> {
        let refusal = match (error.is_infeasible(), error.is_final()) {
            (true, _) => Refusal::Infeasible,
            (false, true) => Refusal::Final,
            (false, false) => Refusal::Unknown,
        };
        let uid = &claim.metadata.uid;
        self.memory.with(uid, |marks| marks.modify_uncertain = refusal == Refusal::Unknown);
        let mut text = error.to_string();
        if refusal == Refusal::Unknown {
            text = format!("{text}. Still modifying to VAC {class}");
        }
        self.recorder.warning(claim, "VolumeModifyFailed", text);
        let code = longshore_csi::code_name(error.code());
        let patched = self.patch_claim(claim, Precondition::Version, |newest| {
            let now = clock::seconds(clock::now());
            Some(modify::refused(newest, class, refusal, (code, error.message()), &now))
        });
        patched.await?;
        // Only now: a claim that does not say that its class is infeasible must not rest.
        if refusal == Refusal::Infeasible {
            self.memory.with(uid, |marks| marks.class_infeasible = Some(Instant::now()));
        }
        Ok(())
    }
}

/// Whether the claim still asks for the class.
fn is_wanted(class: &str, claim: &Claim) -> bool {
    claim.spec.volume_attributes_class_name.as_deref() == Some(class)
}
