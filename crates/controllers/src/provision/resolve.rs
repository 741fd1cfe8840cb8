//! Resolves intent records whose claim is gone or bound: replays them to a verdict.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{ApiError, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject};
use longshore_core::{
    model::{
        ObjectKey, Uid,
        kinds::{Claim, Volume},
    },
    provision::{
        Plan,
        attempt::{Debt, Event},
    },
};
use longshore_csi::CsiError;
use tokio_util::sync::CancellationToken;

use super::{
    call::NoSecret,
    create::CreateOutcome,
    guard::{INTENT_KIND, Intents},
    make::CsiProvisioner,
};

const WORKERS: usize = 4;
/// When to look again at an intent that the claim queue is working on.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Why an intent is still open.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unresolved {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Driver(#[from] CsiError),
    #[error(transparent)]
    Secret(#[from] NoSecret),
}

/// Watches over intents until `shutdown`.
pub(super) async fn run(provisioner: Arc<CsiProvisioner>, shutdown: CancellationToken) {
    let Some(intents) = provisioner.intents.clone() else { return };
    let config = &provisioner.config;
    let retry = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
    let queue = provisioner.parts.context.queue("intents", retry);
    intents.set_resolver(Some(queue.clone()));
    let _resolving = Resolving(intents.clone());
    let records = Arc::new(Records { provisioner, intents });
    Loop::new("resolve", records, queue).workers(WORKERS).run(&shutdown).await;
}

/// Says, while it lives, that somebody resolves records.
struct Resolving(Intents);

impl Drop for Resolving {
    fn drop(&mut self) {
        self.0.set_resolver(None);
    }
}

/// Intent records, by the UID of their claim.
struct Records {
    provisioner: Arc<CsiProvisioner>,
    intents: Intents,
}

impl Reconciler for Records {
    type Key = Uid;

    /// A record is looked at when it appears, when its claim is gone or bound, and when its volume
    /// is there.
    fn sources(&self, sources: &mut Sources<Self>) {
        let parts = &self.provisioner.parts;
        sources
            .on(self.intents.records(), |this, change| {
                let plan = change.applied().and_then(|new| this.intents.plan_in(new));
                plan.map(|plan| plan.claim.uid.clone())
            })
            .on(&parts.claims, |this, change| {
                let claim = change.object();
                let over = change.deleted().is_some() || !claim.spec.volume_name.is_empty();
                let uid = &claim.metadata.uid;
                (over && this.intents.seems_open(uid)).then(|| uid.clone())
            })
            .on(&parts.volumes, |this, change| {
                let reference = change.object().spec.claim_ref.as_ref();
                let uid = reference.map(|reference| reference.uid.clone());
                uid.filter(|uid| this.intents.seems_open(uid))
            });
    }

    fn subject(&self, uid: &Uid) -> Subject {
        self.intents.claim_of(uid).map_or_else(|| Subject::key(uid), Subject::claim)
    }

    async fn reconcile(&self, uid: &Uid) -> Outcome {
        self.provisioner.resolve(uid).await
    }
}

impl CsiProvisioner {
    async fn resolve(&self, uid: &Uid) -> Outcome {
        let Some(intents) = &self.intents else { return Outcome::Done };
        let _lock = self.attempts.lock(uid).await;
        let (debt, owned) =
            self.attempts.read(uid, |attempt| (attempt.owes(), attempt.is_owned_by_claim_queue()));
        if debt == Debt::DropRecord {
            return self.drop_record(uid, &self.parts.api.low_priority()).await.into();
        }
        if owned {
            // The claim queue settles it and drops the record; look again in case that fails.
            return Outcome::After(LOOK_AGAIN);
        }
        match intents.open(uid).await {
            Ok(Some(plan)) => self.resolve_open(&plan).await.into(),
            other => other.map(drop).into(),
        }
    }

    async fn resolve_open(&self, plan: &Arc<Plan>) -> Result<(), Unresolved> {
        let uid = &plan.claim.uid;
        if self.is_saved(plan).await? {
            self.attempts.apply(uid, Event::Recovered(plan.clone()));
            self.attempts.apply(uid, Event::Saved);
            return Ok(self.drop_record(uid, &self.parts.api).await?);
        }
        let key = ObjectKey::new(plan.claim.namespace.clone(), plan.claim.name.clone());
        let claim = self.parts.api.get::<Claim>(&key).await?;
        let waits = claim.is_some_and(|claim| {
            let volume = &claim.spec.volume_name;
            claim.metadata.uid == *uid && (volume.is_empty() || *volume == plan.volume)
        });
        if waits {
            // The claim's own reconcile repeats the call and saves the volume.
            return Ok(());
        }
        longshore_cluster::log_result!(
            intent = INTENT_KIND,
            claim = %key,
            volume = plan.volume.as_str(),
            "the claim is gone; settling what was begun for it"
        );
        self.attempts.apply(uid, Event::Recovered(plan.clone()));
        self.abandon(plan, false).await
    }

    /// Whether the volume of this plan is in the API.
    async fn is_saved(&self, plan: &Plan) -> Result<bool, ApiError> {
        let saved = self.parts.api.get::<Volume>(&ObjectKey::cluster(&plan.volume)).await?;
        Ok(saved.is_some_and(|volume| {
            volume.spec.claim_ref.is_some_and(|reference| reference.uid == plan.claim.uid)
        }))
    }

    /// Repeats a call to a verdict, deletes what it made, and drops the record.
    pub(super) async fn abandon(&self, plan: &Plan, claim_waits: bool) -> Result<(), Unresolved> {
        let uid = &plan.claim.uid;
        self.attempts.apply(uid, Event::Abandoned);
        let secrets = self.content(plan.secrets.provisioner.as_ref()).await?;
        match self.create(plan, secrets.clone()).await {
            CreateOutcome::Created(created) => {
                // Refusals before this one proved nothing.
                self.attempts.apply(uid, Event::NoVerdict);
                // A volume that was saved after all belongs to its PersistentVolume.
                let saved = self.is_saved(plan).await?;
                if !saved {
                    self.delete_handle(&created.handle, secrets, plan.in_tree).await?;
                }
                self.attempts.apply(uid, if saved { Event::Saved } else { Event::Absent });
            }
            CreateOutcome::Refused(error) if self.refusal_settles(plan, &error, claim_waits) => {
                longshore_cluster::log_result!(volume = plan.volume.as_str(), %error, "nothing was made");
            }
            CreateOutcome::Refused(error) => return Err(error.into()),
            CreateOutcome::MissingVolume => {
                tracing::error!(volume = plan.volume.as_str(), "an answer without a volume");
                self.attempts.apply(uid, Event::Absent);
            }
            CreateOutcome::NoVerdict(error) => {
                self.attempts.apply(uid, Event::NoVerdict);
                return Err(error.into());
            }
        }
        Ok(self.drop_record(uid, &self.parts.api).await?)
    }
}
