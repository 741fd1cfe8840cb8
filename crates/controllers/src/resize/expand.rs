//! Expands volumes.

use std::sync::Arc;

use longshore_cluster::{
    Change, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue, clock,
    controller::note,
};
use longshore_core::{
    model::{
        ObjectKey, Quantity,
        kinds::{Claim, Pod, Volume},
    },
    resize::{
        conditions, holds,
        target::{self, Expansion, Stage, is_recorded, worth_a_look},
        writes::{self, Begin},
    },
};
use longshore_csi::code_name;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Expander, Sidecar, claims::Precondition, error::ResizeError, fault::Bug, memory::rest,
    request::known,
};

/// The loop of expansions.
pub(super) struct Expansions {
    sidecar: Arc<Sidecar>,
    queue: WorkQueue<ObjectKey>,
}

/// What the driver made of a volume.
struct Grown {
    size: Quantity,
    /// Nodes have to do their part.
    on_node: bool,
}

impl Expansions {
    pub(super) fn new(sidecar: &Arc<Sidecar>) -> Self {
        let config = &sidecar.config;
        let retry = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
        let queue = sidecar.context.queue(&sidecar.queue_name(), retry);
        Self { sidecar: sidecar.clone(), queue }
    }

    pub(super) async fn run(self, shutdown: &CancellationToken) {
        let (queue, config) = (self.queue.clone(), &self.sidecar.config);
        let (workers, resync) = (config.workers.get(), config.resync_period);
        let expansions = Loop::new("resize", Arc::new(self), queue).workers(workers).resync(resync);
        expansions.run(shutdown).await;
    }

    fn claim_changed(&self, change: &Change<Claim>) -> Option<ObjectKey> {
        let sidecar = &self.sidecar;
        match change {
            Change::Applied { old, new } => {
                let news = |old: &Arc<Claim>| worth_a_look(old, new, sidecar.config.recovers);
                old.as_ref().is_none_or(news).then(|| new.metadata.key())
            }
            Change::Deleted { old } => {
                sidecar.memory.forget(&old.metadata.uid);
                None
            }
        }
    }

    /// A pod that has ended may have been the last to keep a claim in use.
    fn pod_changed(&self, change: &Change<Pod>) -> Vec<ObjectKey> {
        let pod = change.object();
        let ended = change.deleted().is_some() || pod.finished();
        let waits = |key: &ObjectKey| {
            let claim = self.sidecar.claims.get(key);
            claim.is_some_and(|claim| {
                self.sidecar.memory.with(&claim.metadata.uid, |marks| marks.only_offline)
            })
        };
        let keys = pod.claim_names().map(|(name, _)| ObjectKey::new(&pod.metadata.namespace, name));
        keys.filter(|key| ended && waits(key)).collect()
    }
}

impl Reconciler for Expansions {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let sidecar = &self.sidecar;
        sources
            .on(&sidecar.volumes, |_, change| match change {
                Change::Applied { old: None, new } => new
                    .spec
                    .claim_ref
                    .as_ref()
                    .map(|claim| ObjectKey::new(&claim.namespace, &claim.name)),
                _ => None,
            })
            .on(&sidecar.claims, Self::claim_changed)
            .on_resync(&sidecar.claims, |_, claim| Some(claim.metadata.key()));
        if let Some(pods) = &sidecar.pods {
            sources.on(pods, Self::pod_changed);
        }
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let Some(claim) = self.sidecar.claims.get(key) else { return Outcome::Done };
        let outcome = self.sidecar.expand(&claim).await;
        self.sidecar.tidy(&claim);
        outcome
    }
}

impl Sidecar {
    async fn expand(&self, claim: &Claim) -> Outcome {
        if claim.spec.volume_name.is_empty() {
            return Outcome::Done;
        }
        let Some(mut volume) = self.volumes.get(&ObjectKey::cluster(&claim.spec.volume_name))
        else {
            return Outcome::retry(ResizeError::NoVolume(claim.spec.volume_name.clone()));
        };
        let refused = self.memory.with(&claim.metadata.uid, |marks| marks.refused);
        let mut next = target::decide(&self.rules(), claim, &volume, refused);
        if !self.serves(&volume) {
            if matches!(next, Expansion::To(_)) {
                self.note_unserved(claim, &volume);
            }
            return Outcome::Done;
        }
        if next == Expansion::DropMark {
            if let Err(error) = self.patch_volume(&volume, &writes::unmarked()).await {
                return Outcome::retry(error);
            }
            let unmarked = self.volumes.get(&volume.metadata.key());
            let Some(unmarked) = unmarked else { return Outcome::Done };
            volume = unmarked;
            next = target::decide(&self.rules(), claim, &volume, refused);
        }
        match next {
            // The mark is gone, or the cache does not show it yet: its next change does.
            Expansion::Nothing | Expansion::DropMark => Outcome::Done,
            Expansion::To(target) => self.expand_to(target, claim, &volume).await,
        }
    }

    async fn expand_to(&self, target: Quantity, claim: &Claim, volume: &Volume) -> Outcome {
        note("volume", &volume.metadata.name);
        note("driver", &self.name);
        let uid = &claim.metadata.uid;
        let infeasible = Stage::of(claim) == Stage::ControllerInfeasible;
        let resting = self.memory.with(uid, |marks| {
            let resting = rest(marks.size_infeasible, self.config.retry_interval_max);
            if resting.is_none() {
                marks.size_infeasible = infeasible.then(Instant::now);
            }
            resting
        });
        let recorded = is_recorded(claim, target);
        if let Some(left) = resting.filter(|_| recorded && self.config.recovers) {
            return Outcome::After(left);
        }
        let begin = match self.config.recovers {
            false => Begin::Legacy,
            true if recorded && !infeasible => Begin::Again,
            true => Begin::Anew,
        };
        if let Err(error) = self.mark(target, begin, claim, volume).await {
            return self.not_marked(claim, volume, error);
        }
        match self.grow(target, claim, volume).await {
            Ok(()) => Outcome::Done,
            Err(error @ ResizeError::InUse) => Outcome::retry(error),
            Err(error) if error.is_conflict() => Outcome::retry(error),
            Err(error) => self.not_grown(claim, volume, error).await,
        }
    }

    async fn grow(
        &self,
        target: Quantity,
        claim: &Claim,
        volume: &Volume,
    ) -> Result<(), ResizeError> {
        let uid = &claim.metadata.uid;
        self.faults.at("expand.marked");
        let only_offline = self.memory.with(uid, |marks| marks.only_offline);
        if only_offline && self.is_in_use(&claim.metadata.key()) {
            let (key, driver) = (claim.metadata.key(), &self.name);
            let text = format!(
                "Unable to expand {key} because CSI driver {driver} only supports offline expansion and volume is currently in-use"
            );
            self.recorder.warning(claim, "VolumeResizeFailed", text);
            return Err(ResizeError::InUse);
        }
        let text = format!("External resizer is resizing volume {}", volume.metadata.name);
        self.recorder.normal(claim, "Resizing", text);
        self.memory.with(uid, |marks| marks.only_offline = false);
        let grown = self.call_expand(target, volume).await?;
        self.faults.at("expand.answered");
        self.memory.with(uid, |marks| {
            marks.refused = false;
            marks.size_infeasible = None;
        });
        self.record_grown(&grown, claim, volume).await
    }

    /// Writes down what the driver is about to be asked for.
    async fn mark(
        &self,
        target: Quantity,
        begin: Begin,
        claim: &Claim,
        volume: &Volume,
    ) -> Result<(), ResizeError> {
        if begin == Begin::Again && holds(claim, conditions::RESIZING) {
            return Ok(());
        }
        let refused = self.memory.with(&claim.metadata.uid, |marks| marks.refused);
        let marked = self.patch_claim(claim, Precondition::Version, |newest| {
            let decided = target::decide(&self.rules(), newest, volume, refused);
            let now = clock::seconds(clock::now());
            (decided == Expansion::To(target)).then(|| writes::begun(newest, target, begin, &now))
        });
        marked.await?.map(drop).ok_or(ResizeError::Changed)
    }

    async fn call_expand(&self, target: Quantity, volume: &Volume) -> Result<Grown, ResizeError> {
        if self.expander == Expander::Nodes {
            return Ok(Grown { size: target, on_node: true });
        }
        let known = known(volume)?;
        let request = self.expand_request(&known, target).await?;
        let answer = self.driver_for(&known).controller_expand_volume(request).await?;
        Ok(Grown {
            size: Quantity::from_bytes(answer.capacity_bytes),
            on_node: answer.node_expansion_required,
        })
    }

    /// The volume first: a claim never says more than its volume.
    async fn record_grown(
        &self,
        grown: &Grown,
        claim: &Claim,
        volume: &Volume,
    ) -> Result<(), ResizeError> {
        let annotate = grown.on_node && self.config.annotates;
        self.patch_volume(volume, &writes::grown(claim, volume, grown.size, annotate)).await?;
        self.faults.at("expand.volume-written");
        let recovers = self.config.recovers;
        let written = self.patch_claim(claim, Precondition::Version, |newest| {
            let now = clock::seconds(clock::now());
            Some(match grown.on_node && !self.faults.forgets(Bug::EarlySuccess) {
                true => writes::node_pending(newest, recovers, &now),
                false => writes::finished(newest, grown.size, recovers),
            })
        });
        written.await?;
        self.faults.at("expand.claim-written");
        let (reason, text) = match grown.on_node {
            true => ("FileSystemResizeRequired", "Require file system resize of volume on node"),
            false => ("VolumeResizeSuccessful", "Resize volume succeeded"),
        };
        self.recorder.normal(claim, reason, text);
        Ok(())
    }

    /// The driver was not asked: what it has said before still holds.
    fn not_marked(&self, claim: &Claim, volume: &Volume, error: ResizeError) -> Outcome {
        if matches!(error, ResizeError::Changed) {
            return Outcome::Again;
        }
        if !error.is_conflict() {
            let text = self.failure(volume, &error);
            self.recorder.warning(claim, "VolumeResizeFailed", text);
        }
        Outcome::retry(error)
    }

    fn failure(&self, volume: &Volume, error: &ResizeError) -> String {
        format!(
            "resize volume {:?} by resizer {:?} failed: {error}",
            volume.metadata.name, self.name
        )
    }

    async fn not_grown(&self, claim: &Claim, volume: &Volume, error: ResizeError) -> Outcome {
        let answer = error.answer().filter(|answer| answer.is_final());
        let infeasible = answer.is_some_and(|answer| answer.is_infeasible());
        let in_use = answer.is_some_and(|answer| code_name(answer.code()) == "FailedPrecondition");
        self.memory.with(&claim.metadata.uid, |marks| {
            marks.refused = answer.is_some();
            if !infeasible {
                marks.size_infeasible = None;
            }
            marks.only_offline = in_use && self.pods.is_some();
        });
        let said = error.to_string();
        let mut text = self.failure(volume, &error);
        if answer.is_some() && self.config.recovers {
            let written = self.patch_claim(claim, Precondition::None, |_| {
                let now = clock::seconds(clock::now());
                Some(writes::refused(&said, infeasible, &now))
            });
            if let Err(second) = written.await {
                let key = claim.metadata.key();
                text = format!(
                    "resizing failed in controller with {said} but failed to update PVC {key} with: {second}"
                );
            }
        }
        self.recorder.warning(claim, "VolumeResizeFailed", text);
        Outcome::retry(error)
    }
}
