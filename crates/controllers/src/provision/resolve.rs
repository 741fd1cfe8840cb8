//! Brings intents to their end that nobody else will.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{ApiError, Change, Outcome, QueueOptions, Subscription, WorkQueue};
use longshore_core::{
    model::{
        ObjectKey,
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
    create::CreateOutcome,
    guard::{INTENT_KIND, Intents, plan_in},
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
    #[error("{0}")]
    Secret(String),
}

/// Watches over intents until `shutdown`.
pub(super) async fn run(provisioner: Arc<CsiProvisioner>, shutdown: CancellationToken) {
    let Some(intents) = provisioner.intents.clone() else { return };
    let config = &provisioner.config;
    let options = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
    let queue: WorkQueue<String> =
        WorkQueue::new("intents", options.with_metrics(&provisioner.parts.registry));
    let _closing = Closing { queue: queue.clone(), intents: intents.clone() };
    intents.set_resolver(Some(queue.clone()));
    let _subscriptions = subscribe(&provisioner, &intents, &queue);
    let work = provisioner.clone();
    queue
        .run_until(WORKERS, &shutdown, move |uid| {
            let provisioner = work.clone();
            async move { provisioner.resolve(&uid).await }
        })
        .await;
}

struct Closing {
    queue: WorkQueue<String>,
    intents: Intents,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.intents.set_resolver(None);
        self.queue.shut_down();
    }
}

/// An intent is looked at when it appears, when its claim is gone or bound, and when its volume
/// is there.
fn subscribe(
    provisioner: &CsiProvisioner,
    intents: &Intents,
    queue: &WorkQueue<String>,
) -> [Subscription; 3] {
    let records = queue.clone();
    let records = intents.records().subscribe(move |change| {
        if let Change::Applied { new, .. } = change
            && let Some(plan) = plan_in(new)
        {
            records.add(plan.claim.uid.clone());
        }
    });
    let (claims, known) = (queue.clone(), intents.clone());
    let claims = provisioner.parts.claims.subscribe(move |change| {
        let claim = change.object();
        let over = matches!(change, Change::Deleted { .. }) || !claim.spec.volume_name.is_empty();
        if over && known.seems_open(&claim.metadata.uid) {
            claims.add(claim.metadata.uid.clone());
        }
    });
    let (volumes, known) = (queue.clone(), intents.clone());
    let volumes = provisioner.parts.volumes.subscribe(move |change| {
        let reference = change.object().spec.claim_ref.as_ref();
        if let Some(uid) = reference.map(|reference| &reference.uid)
            && known.seems_open(uid)
        {
            volumes.add(uid.clone());
        }
    });
    [records, claims, volumes]
}

impl CsiProvisioner {
    async fn resolve(&self, uid: &str) -> Outcome {
        let Some(intents) = &self.intents else { return Outcome::Done };
        let _lock = self.attempts.lock(uid).await;
        let (debt, owned) =
            self.attempts.read(uid, |attempt| (attempt.owes(), attempt.is_owned_by_claim_queue()));
        if debt == Debt::DropRecord {
            let dropped = self.drop_record(uid, &self.parts.api.later()).await;
            return dropped.map_or_else(Outcome::retry, |()| Outcome::Done);
        }
        if owned {
            // The claim queue settles it and drops the record; look again in case that fails.
            return Outcome::After(LOOK_AGAIN);
        }
        let resolved = match intents.open(uid).await {
            Ok(Some(plan)) => self.resolve_open(&plan).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        resolved.map_or_else(Outcome::retry, |()| Outcome::Done)
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
        tracing::info!(
            intent = INTENT_KIND,
            claim = %key,
            volume = plan.volume,
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
        let secrets =
            self.content(plan.secrets.provisioner.as_ref()).await.map_err(Unresolved::Secret)?;
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
                tracing::info!(volume = plan.volume, %error, "nothing was made");
            }
            CreateOutcome::Refused(error) => return Err(error.into()),
            CreateOutcome::MissingVolume => {
                tracing::error!(volume = plan.volume, "an answer without a volume");
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
