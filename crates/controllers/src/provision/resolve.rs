//! Brings intents to their end that nobody else will.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{ApiError, Change, Outcome, QueueOptions, Subscription, WorkQueue};
use longshore_core::{
    model::{
        ObjectKey,
        kinds::{Claim, Volume},
    },
    provision::Plan,
};
use longshore_csi::CsiError;
use longshore_provisioner::Cause;
use tokio_util::sync::CancellationToken;

use super::{
    guard::{INTENT_KIND, Intents, plan_in},
    make::{Answer, Attempt, CsiProvisioner},
};

const WORKERS: usize = 4;
/// When to look again at an intent that a claim's own turns are working on.
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
            records.add(plan.claim.uid);
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
        let _taken = intents.take(uid).await;
        if intents.is_finished(uid) {
            return match intents.end_finished(uid).await {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::retry(error),
            };
        }
        if intents.is_owned(uid) {
            // The claim's own turns end it and drop the record; look again in case that fails.
            return Outcome::After(LOOK_AGAIN);
        }
        let resolved = match intents.open(uid).await {
            Ok(Some(plan)) => self.resolve_open(intents, &plan).await,
            Ok(None) => return Outcome::Done,
            Err(error) => Err(error.into()),
        };
        match resolved {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Retry(Cause::from(error)),
        }
    }

    async fn resolve_open(&self, intents: &Intents, plan: &Plan) -> Result<(), Unresolved> {
        if self.is_saved(plan).await? {
            return Ok(intents.end(&plan.claim.uid).await?);
        }
        let key = ObjectKey::new(plan.claim.namespace.clone(), plan.claim.name.clone());
        let claim = self.parts.api.get::<Claim>(&key).await?;
        let waits = claim.is_some_and(|claim| {
            let volume = &claim.spec.volume_name;
            claim.metadata.uid == plan.claim.uid && (volume.is_empty() || *volume == plan.volume)
        });
        if waits {
            // The claim's own turn repeats the call and saves the volume.
            return Ok(());
        }
        tracing::info!(
            intent = INTENT_KIND,
            claim = %key,
            volume = plan.volume,
            "the claim is gone; settling what was begun for it"
        );
        self.abandon(plan, Attempt::Abandoned).await
    }

    /// Whether the volume of this plan is in the API.
    async fn is_saved(&self, plan: &Plan) -> Result<bool, ApiError> {
        let saved = self.parts.api.get::<Volume>(&ObjectKey::cluster(&plan.volume)).await?;
        Ok(saved.is_some_and(|volume| {
            volume.spec.claim_ref.is_some_and(|reference| reference.uid == plan.claim.uid)
        }))
    }

    /// Repeats a call to a verdict, deletes what it made, and drops the record.
    pub(super) async fn abandon(&self, plan: &Plan, attempt: Attempt) -> Result<(), Unresolved> {
        let secrets =
            self.content(plan.secrets.provisioner.as_ref()).await.map_err(Unresolved::Secret)?;
        match self.create(plan, secrets.clone()).await {
            Answer::Made(created) => {
                // A volume that was saved after all belongs to its PersistentVolume.
                if !self.is_saved(plan).await? {
                    self.delete_handle(&created.handle, secrets, plan.in_tree).await?;
                }
            }
            Answer::No(error) if self.believes(plan, &error, attempt) => {
                tracing::info!(volume = plan.volume, %error, "nothing was made");
            }
            Answer::No(error) => return Err(error.into()),
            Answer::Nonsense => tracing::error!(volume = plan.volume, "an answer without a volume"),
            Answer::NoVerdict(error) => {
                self.forget_refusals(&plan.claim.uid);
                return Err(error.into());
            }
        }
        self.forget_refusals(&plan.claim.uid);
        match &self.intents {
            Some(intents) => Ok(intents.end(&plan.claim.uid).await?),
            None => Ok(()),
        }
    }
}
