//! Saving the PersistentVolume of storage that was made.

use std::time::Duration;

use longshore_cluster::{ApiError, Outcome};
use longshore_core::{
    model::{
        ObjectRef, Uid,
        keys::{annotations, finalizers},
        kinds::{Claim, Volume},
    },
    provision::attempt::{Attempt, Event},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Cause, Provisioner, Request, Save,
    controller::{BY_UID, Inner},
};

impl<P: Provisioner> Inner<P> {
    /// Saves a claim's volume. An error means that the storage is gone again, or that nobody could
    /// find out.
    pub(crate) async fn save(&self, claim: &Claim, volume: &Value) -> Result<(), Option<Cause>> {
        match self.config.save {
            Save::Always => {
                if let Err(error) = self.create(claim, volume).await {
                    let uid = claim.metadata.uid.clone();
                    let name = self.config.volume_name(&uid);
                    tracing::warn!(volume = name.as_str(), %error, "the volume is not saved yet");
                    self.unsaved.add_rate_limited(uid);
                }
                Ok(())
            }
            Save::Attempts { count, interval, factor, longest } => {
                let pauses = Pauses { count, next: interval, factor, longest };
                self.save_or_remove(claim, volume, pauses).await
            }
        }
    }

    /// What the library writes onto every volume.
    pub(crate) fn completed(&self, request: &Request, mut volume: Value) -> Value {
        let claim = &request.claim;
        volume["spec"]["claimRef"] = json!(ObjectRef::of::<Claim>(&claim.metadata));
        volume["spec"]["storageClassName"] = json!(claim.class_name());
        volume["metadata"]["annotations"][annotations::PROVISIONED_BY] =
            json!(request.class.provisioner);
        if self.config.add_finalizer {
            let ours = json!(finalizers::EXTERNAL_PROVISIONER);
            match volume["metadata"]["finalizers"].as_array_mut() {
                Some(all) if all.contains(&ours) => {}
                Some(all) => all.push(ours),
                None => volume["metadata"]["finalizers"] = json!([ours]),
            }
        }
        volume
    }

    /// One attempt. A volume that is there already is the one we wanted: its name says so.
    async fn create(&self, claim: &Claim, volume: &Value) -> Result<(), ApiError> {
        match self.api.create::<Volume>(volume).await {
            Ok(written) => {
                self.volumes.assume(&written);
                self.volumes.keep_written(written);
            }
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(error),
        }
        let uid = &claim.metadata.uid;
        let lock = self.attempts.lock(uid).await;
        self.attempts.apply(uid, Event::Saved);
        self.provisioner.saved(claim).await;
        drop(lock);
        // Nobody reads the events of a claim that was deleted meanwhile.
        if !self.claims.by_index(BY_UID, uid).is_empty() {
            let text = format!("Successfully provisioned volume {}", self.config.volume_name(uid));
            self.recorder.normal(claim, "ProvisioningSucceeded", text);
        }
        Ok(())
    }

    /// A later attempt, for a volume that could not be saved at once.
    pub(crate) async fn save_again(&self, uid: &Uid) -> Outcome {
        let unsaved = self.attempts.read(uid, Attempt::unsaved);
        let Some((volume, claim)) = unsaved else { return Outcome::Done };
        self.create(&claim, &volume).await.into()
    }

    async fn save_or_remove(
        &self,
        claim: &Claim,
        volume: &Value,
        pauses: Pauses,
    ) -> Result<(), Option<Cause>> {
        let Err(last) = pauses.repeat(|| self.create(claim, volume)).await else { return Ok(()) };
        let key = claim.metadata.key();
        let text = format!(
            "Error creating provisioned PV object for claim {key}: {last}. Deleting the volume."
        );
        self.recorder.warning(claim, "ProvisioningFailed", text);
        let event = match self.remove(volume, pauses).await {
            Ok(()) => Event::Absent,
            Err(error) => {
                let text = format!(
                    "Error cleaning provisioned volume for claim {key}: {error}. Please delete manually."
                );
                self.recorder.warning(claim, "ProvisioningCleanupFailed", text);
                Event::NotSaved
            }
        };
        self.attempts.apply(&claim.metadata.uid, event);
        Err(Some(last))
    }

    async fn remove(&self, volume: &Value, pauses: Pauses) -> Result<(), Cause> {
        let record = Volume::deserialize(volume)?;
        pauses.repeat(|| self.provisioner.delete(&record)).await
    }
}

/// A number of attempts with pauses between them.
#[derive(Clone, Copy)]
struct Pauses {
    /// Attempts that are left, at least one.
    count: u32,
    /// The pause before the next attempt.
    next: Duration,
    factor: f64,
    longest: Duration,
}

impl Pauses {
    /// Repeats an operation until it succeeds or no attempt is left; returns the last error then.
    async fn repeat<E, F>(mut self, operation: impl Fn() -> F) -> Result<(), Cause>
    where
        E: Into<Cause>,
        F: Future<Output = Result<(), E>>,
    {
        loop {
            let Err(error) = operation().await else { return Ok(()) };
            self.count = self.count.saturating_sub(1);
            if self.count == 0 {
                return Err(error.into());
            }
            tokio::time::sleep(self.next).await;
            let longer = self.next.as_secs_f64() * self.factor;
            let longest = self.longest.max(self.next);
            self.next = Duration::try_from_secs_f64(longer).unwrap_or(longest).min(longest);
        }
    }
}
