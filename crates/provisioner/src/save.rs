//! Saving the PersistentVolume of storage that was made.

use std::time::Duration;

use longshore_cluster::{ApiError, EventType, Outcome};
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
    Cause, DeleteError, Provisioner, Request, Save,
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
                let pauses = Pauses { count, begun: false, next: interval, factor, longest };
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
        match self.parts.api.create::<Volume>(volume).await {
            Ok(written) => {
                self.parts.volumes.assume(&written);
                self.parts.volumes.keep_written(written);
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
        if !self.parts.claims.by_index(BY_UID, uid).is_empty() {
            let text = format!("Successfully provisioned volume {}", self.config.volume_name(uid));
            self.tell(claim, EventType::Normal, "ProvisioningSucceeded", text);
        }
        Ok(())
    }

    /// A later attempt, for a volume that could not be saved at once.
    pub(crate) async fn save_again(&self, uid: &Uid) -> Outcome {
        let unsaved = self.attempts.read(uid, Attempt::unsaved);
        let Some((volume, claim)) = unsaved else { return Outcome::Done };
        match self.create(&claim, &volume).await {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }

    async fn save_or_remove(
        &self,
        claim: &Claim,
        volume: &Value,
        pauses: Pauses,
    ) -> Result<(), Option<Cause>> {
        let mut last: Cause = "no attempt to save the volume is configured".into();
        let mut attempts = pauses;
        while attempts.another().await {
            match self.create(claim, volume).await {
                Ok(()) => return Ok(()),
                Err(error) => last = error.into(),
            }
        }
        let key = claim.metadata.key();
        let text = format!(
            "Error creating provisioned PV object for claim {key}: {last}. Deleting the volume."
        );
        self.tell(claim, EventType::Warning, "ProvisioningFailed", text);
        let event = match self.remove(volume, pauses).await {
            Ok(()) => Event::Absent,
            Err(error) => {
                let text = format!(
                    "Error cleaning provisioned volume for claim {key}: {error}. Please delete manually."
                );
                self.tell(claim, EventType::Warning, "ProvisioningCleanupFailed", text);
                Event::NotSaved
            }
        };
        self.attempts.apply(&claim.metadata.uid, event);
        Err(Some(last))
    }

    async fn remove(&self, volume: &Value, mut attempts: Pauses) -> Result<(), Cause> {
        let record = Volume::deserialize(volume)?;
        let mut last: Cause = "no attempt to delete the volume is configured".into();
        while attempts.another().await {
            match self.provisioner.delete(&record).await {
                Ok(()) => return Ok(()),
                Err(DeleteError::Ignored(reason)) => {
                    last = format!("ignored because {reason}").into()
                }
                Err(DeleteError::Failed(cause)) => last = cause,
            }
        }
        Err(last)
    }
}

/// A number of attempts with pauses between them.
#[derive(Clone, Copy)]
struct Pauses {
    /// Attempts that are left.
    count: u32,
    begun: bool,
    /// The pause before the next attempt but the first.
    next: Duration,
    factor: f64,
    longest: Duration,
}

impl Pauses {
    /// Whether there is another attempt; returns when it is due. The first one is due at once.
    async fn another(&mut self) -> bool {
        let Some(left) = self.count.checked_sub(1) else { return false };
        self.count = left;
        if std::mem::replace(&mut self.begun, true) {
            tokio::time::sleep(self.next).await;
            let longer = self.next.as_secs_f64() * self.factor;
            let longest = self.longest.max(self.next);
            self.next = Duration::try_from_secs_f64(longer).unwrap_or(longest).min(longest);
        }
        true
    }
}
