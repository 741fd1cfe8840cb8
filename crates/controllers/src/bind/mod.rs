//! Binds claims to volumes and reclaims volumes whose claim is gone.
//!
//! One queue holds claims and volumes. A turn looks at one object in the caches, asks
//! [`longshore_core::bind`] what to do, and does it. Decisions are made one at a time, so that two
//! claims can never choose one volume; the writes that follow run side by side. While the writes of
//! a bind are under way the volume is held: other claims do not see it, and its own turn waits.
//!
//! Everything is kept in the API: a binder that stops anywhere and starts anew completes what was
//! begun. The volume is written before the claim (see [`longshore_core::bind`]).

mod act;
mod config;
mod free;
mod grace;
mod hold;
mod host_path;
mod in_tree;
mod metrics;
mod view;
mod wake;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{
    Api, Cache, Context, EventType, Loop, Metrics, Outcome, QueueOptions, Recorder, WorkQueue,
};
use longshore_core::{
    bind::{
        About, Action, ClaimView, HostPathPlugin, Note, Options, VolumeView, Write, decide_claim,
        decide_volume,
    },
    claim::default_class,
    model::{
        ObjectKey, ObjectRef, VolumeName, VolumePhase,
        keys::annotations,
        kinds::{Claim, Pod, StorageClass, Volume},
    },
    provision::migration,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use act::{Hands, Undone};
use free::FreeVolumes;
use grace::GracePeriods;
use hold::{Hold, Holds};
use metrics::{BindMetrics, Operation};

use crate::planted::Planted;

pub use config::{Config, Flags};
pub use host_path::HostPath;
pub use in_tree::{DeleteError, InTreePlugin, MakeError};

/// What a pass is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    Claim(ObjectKey),
    Volume(VolumeName),
}

/// What to do about a claim, and with which volume.
struct Decided {
    actions: Vec<Action>,
    volume: Option<Arc<Volume>>,
    _hold: Option<Hold>,
}

/// The binder.
pub struct Binder {
    api: Api,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    classes: Cache<StorageClass>,
    pods: Cache<Pod>,
    recorder: Recorder,
    metrics: Metrics,
    counted: BindMetrics,
    /// The in-tree plugin; without it volumes are made and deleted by others only.
    in_tree: Option<Arc<dyn InTreePlugin>>,
    config: Config,
    queue: WorkQueue<Key>,
    holds: Arc<Holds>,
    free: FreeVolumes,
    grace: GracePeriods,
    /// Held over a decision and the hold that follows from it: decisions are serial.
    deciding: Mutex<()>,
}

impl Binder {
    /// A binder that does nothing until [`Self::run`]. Without a plugin volumes are made and deleted
    /// by others only.
    #[must_use]
    pub fn new(context: &Context, config: Config, in_tree: Option<Arc<dyn InTreePlugin>>) -> Self {
        let queue = context.queue("persistentvolume-binder", QueueOptions::controller());
        let new = Self {
            api: context.api.clone(),
            claims: context.cache(),
            volumes: context.cache(),
            classes: context.cache(),
            pods: context.cache(),
            recorder: context.recorder("persistentvolume-controller"),
            counted: BindMetrics::of(&context.metrics),
            metrics: context.metrics.clone(),
            in_tree,
            config,
            holds: Arc::new(Holds::new(queue.clone())),
            queue,
            free: FreeVolumes::default(),
            grace: GracePeriods::default(),
            deciding: Mutex::new(()),
        };
        view::index(&new);
        new.claims.want_written();
        new.volumes.want_written();
        new
    }

    /// Runs until `shutdown`. Aborting it anywhere is safe: the next run completes what was begun.
    pub async fn run(self, shutdown: CancellationToken) {
        let (queue, config) = (self.queue.clone(), &self.config);
        let (workers, resync) = (config.workers, config.resync);
        let run = Loop::new("bind", Arc::new(self), queue).workers(workers).resync(resync);
        run.run(&shutdown).await;
    }

    async fn pass(&self, key: &Key) -> Outcome {
        let result = match key {
            Key::Claim(claim) => self.reconcile_claim(claim).await,
            Key::Volume(volume) => self.reconcile_volume(volume).await,
        };
        match result {
            Ok(()) => Outcome::Done,
            // The cache is behind, or somebody wrote in between: look again in a moment.
            Err(Undone::Stale) => Outcome::After(Duration::from_millis(5)),
            Err(Undone::TooEarly(wait)) => Outcome::After(wait),
            Err(Undone::Failed(_)) if self.config.has(Planted::GivesUp) => Outcome::Done,
            Err(Undone::Failed(error)) => Outcome::Retry(error),
        }
    }

    async fn reconcile_claim(&self, key: &ObjectKey) -> Result<(), Undone> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let Some(decided) = self.decide_claim(&claim) else { return Ok(()) };
        if let Some(wait) = self.grace.wait(&claim, &decided.actions) {
            return Err(Undone::TooEarly(wait));
        }
        self.count_request(&claim, &decided.actions);
        let binds = claim.spec.volume_name.is_empty() && touched(&decided.actions).is_some();
        let defaults = decided.actions.iter().any(sets_class);
        let done = self.act(Some(&claim), decided.volume.as_deref(), decided.actions).await;
        let counted = &self.counted;
        match (binds, done.is_ok()) {
            (true, true) => counted.end(Operation::Provision, &key.to_string()),
            (true, false) => counted.fail(Operation::Provision, &key.to_string()),
            (false, _) => {}
        }
        if defaults {
            counted.defaulted(done.is_ok());
        }
        done
    }

    /// Starts the time of a provisioning when an external provisioner is asked.
    fn count_request(&self, claim: &Claim, actions: &[Action]) {
        let asks = |action: &Action| matches!(action, Action::Event(note) if note.reason == "ExternalProvisioning");
        if actions.iter().any(asks) {
            let key = claim.metadata.key().to_string();
            let provisioner = || self.provisioner_of(claim.class_name());
            self.counted.begin(Operation::Provision, &key, provisioner);
        }
    }

    /// Who makes the volumes of a class, as metrics name it.
    fn provisioner_of(&self, class: &str) -> String {
        let class = self.classes.get(&ObjectKey::cluster(class));
        let name = class.as_ref().map(|class| class.provisioner.as_str());
        let driver = |name| migration::driver_for(name).unwrap_or(name);
        name.map_or(metrics::UNKNOWN, driver).to_owned()
    }

    /// One decision, and the hold that follows from it. `None` when a volume's own turn is under
    /// way or due: the claim is woken when that is done.
    fn decide_claim(&self, claim: &Claim) -> Option<Decided> {
        let _serial = self.deciding.lock();
        let key = claim.metadata.key();
        let reserved = self.holds.promised_to_others(&key);
        let mut volumes = view::candidates(&self.volumes, &self.free, claim, &reserved);
        if self.config.has(Planted::TwoClaims) {
            volumes = self.volumes.list().iter().map(|volume| taken_for_free(volume)).collect();
        }
        if self.config.has(Planted::TwoVolumes) {
            volumes.retain(|volume| !is_begun(volume));
        }
        let named = self.volume(&claim.spec.volume_name);
        let class = self.classes.get(&ObjectKey::cluster(claim.class_name()));
        let classes = self.classes.list();
        let default = default_class(classes.iter().map(Arc::as_ref));
        let actions = decide_claim(&ClaimView {
            claim,
            named: named.as_deref(),
            candidates: &volumes.iter().map(Arc::as_ref).collect::<Vec<_>>(),
            reserved: &reserved,
            class: class.as_deref(),
            default_class: default.map(|class| class.metadata.name.as_str()),
            waiting_pods: &view::waiting_pods(&self.pods, &key),
            options: self.options(),
        });
        let Some(name) = touched(&actions) else {
            // A new volume is free once its own turn says so, and that wakes the claim. Until then
            // it is too early to say that there is none.
            if view::awaits_new_volume(&self.volumes, claim) {
                return None;
            }
            return Some(Decided { actions, volume: None, _hold: None });
        };
        let hold = self.holds.promise(name, &key)?;
        // The very record that was decided on: writes compare its version with the live one.
        volumes.extend(named);
        let volume = volumes.into_iter().find(|volume| *name == volume.metadata.name);
        Some(Decided { volume, _hold: Some(hold), actions })
    }

    async fn reconcile_volume(&self, name: &VolumeName) -> Result<(), Undone> {
        let Some(_hold) = self.holds.take(name) else { return Ok(()) };
        let Some(volume) = self.volume(name) else { return Ok(()) };
        let mut claim = view::claim_of(self, &volume).await?;
        if self.config.has(Planted::EarlyReclaim) {
            claim = claim.filter(|claim| !claim.metadata.deleting());
        }
        let reference = volume.spec.claim_ref.clone().unwrap_or_default();
        let key = ObjectKey::new(reference.namespace, reference.name);
        let actions = decide_volume(&VolumeView {
            volume: &volume,
            claim: claim.as_deref(),
            name_taken: self.claims.get(&key).is_some(),
            users: &view::users(&self.pods, &key),
            options: self.options(),
        });
        self.act(claim.as_deref(), Some(&volume), actions).await
    }

    fn options(&self) -> Options {
        match self.in_tree {
            Some(_) => self.config.options,
            None => Options { host_path: HostPathPlugin::Off, ..self.config.options },
        }
    }

    fn volume(&self, name: &VolumeName) -> Option<Arc<Volume>> {
        self.volumes.get(&ObjectKey::cluster(name))
    }

    async fn act(
        &self,
        claim: Option<&Claim>,
        volume: Option<&Volume>,
        actions: Vec<Action>,
    ) -> Result<(), Undone> {
        let mut hands = Hands::new(self, claim, volume);
        for action in actions {
            match (action, claim, volume) {
                (Action::Write(write), ..) => hands.carry_out(write).await?,
                (Action::Event(note), ..) => self.send_event(claim, volume, &note),
                (Action::EnqueueClaim, Some(claim), _) => {
                    self.queue.add(Key::Claim(claim.metadata.key()));
                }
                (Action::ProvisionInTree, Some(claim), _) => self.provision_in_tree(claim).await?,
                (Action::DeleteInTree, _, Some(volume)) => self.delete_in_tree(volume).await?,
                (Action::DeletionBegins { external }, _, Some(volume)) => {
                    self.count_deletion(volume, external);
                }
                (Action::Fail(text), ..) => return Err(Undone::Failed(text.into())),
                // Rules return these only for an object that they saw.
                (Action::EnqueueClaim | Action::ProvisionInTree, None, _)
                | (Action::DeleteInTree | Action::DeletionBegins { .. }, _, None) => {}
            }
        }
        hands.put_down();
        Ok(())
    }

    fn count_deletion(&self, volume: &Volume, external: bool) {
        let plugin = || match external {
            true => self.provisioner_of(volume.class_name()),
            false => metrics::UNKNOWN.to_owned(),
        };
        self.counted.begin(Operation::Delete, &volume.metadata.name, plugin);
    }

    fn send_event(&self, claim: Option<&Claim>, volume: Option<&Volume>, note: &Note) {
        let object = match note.about {
            About::Claim => claim.map(|claim| ObjectRef::of::<Claim>(&claim.metadata)),
            About::Volume => volume.map(|volume| ObjectRef::of::<Volume>(&volume.metadata)),
        };
        let kind = if note.warning { EventType::Warning } else { EventType::Normal };
        if let Some(object) = object {
            self.recorder.event(&object, kind, note.reason, note.message.clone());
        }
    }
}

/// The volume as if nobody had it.
fn taken_for_free(volume: &Volume) -> Arc<Volume> {
    let mut volume = volume.clone();
    volume.spec.claim_ref = None;
    volume.status.phase = VolumePhase::Available;
    Arc::new(volume)
}

/// Whether the binder itself has pointed the volume at a claim.
fn is_begun(volume: &Volume) -> bool {
    volume.metadata.annotation(annotations::BOUND_BY_CONTROLLER).is_some()
}

/// The volume that a claim's steps bind, if they bind one.
fn touched(actions: &[Action]) -> Option<&VolumeName> {
    actions.iter().find_map(|action| match action {
        Action::Write(
            Write::PointVolume { volume, .. }
            | Write::SetVolumePhase { volume, .. }
            | Write::PointClaim { volume }
            | Write::SetClaimBound { volume },
        ) => Some(volume),
        _ => None,
    })
}

fn sets_class(action: &Action) -> bool {
    matches!(action, Action::Write(Write::SetClass(_)))
}

#[cfg(test)]
mod in_tree_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod tests;
