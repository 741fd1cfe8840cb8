//! Saving the PersistentVolume of storage that was made.

use std::time::Duration;

use longshore_cluster::{ApiError, EventType, Outcome};
use longshore_core::model::{
    ObjectRef,
    keys::{annotations, finalizers},
    kinds::{Claim, Volume},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Cause, Made, NotDeleted, Provisioner, Request, Save,
    controller::{BY_UID, Inner},
    memory::Unsaved,
};

impl<P: Provisioner> Inner<P> {
    /// Completes and saves a volume. An error means that the storage is gone again, or that
    /// nobody could find out.
    pub(crate) async fn save(&self, request: &Request, made: Made) -> Result<(), Option<Cause>> {
        let volume = self.completed(request, made.volume);
        match self.config.save {
            Save::Always => {
                if let Err(error) = self.create(request, &volume).await {
                    let name = request.volume.clone();
                    tracing::warn!(volume = name, %error, "the volume is not saved yet");
                    let unsaved = Unsaved { volume, request: request.clone() };
                    self.memory.keep_unsaved(&name, unsaved);
                    self.unsaved.add_rate_limited(name);
                }
                Ok(())
            }
            Save::Attempts { count, interval, factor, longest } => {
                let pauses = Pauses { count, begun: false, next: interval, factor, longest };
                self.save_or_remove(request, &volume, pauses).await
            }
        }
    }

    /// What the library writes onto every volume.
    fn completed(&self, request: &Request, mut volume: Value) -> Value {
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
    async fn create(&self, request: &Request, volume: &Value) -> Result<(), ApiError> {
        match self.parts.api.create::<Volume>(volume).await {
            Ok(written) => {
                self.parts.volumes.assume(&written);
                self.parts.volumes.keep_written(written);
            }
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(error),
        }
        self.provisioner.saved(request).await;
        // Nobody reads the events of a claim that was deleted meanwhile.
        if !self.parts.claims.by_index(BY_UID, &request.claim.metadata.uid).is_empty() {
            let text = format!("Successfully provisioned volume {}", request.volume);
            self.tell(&request.claim, EventType::Normal, "ProvisioningSucceeded", text);
        }
        Ok(())
    }

    /// A later attempt, for a volume that could not be saved at once.
    pub(crate) async fn save_again(&self, name: &str) -> Outcome {
        let Some(unsaved) = self.memory.unsaved(name) else { return Outcome::Done };
        match self.create(&unsaved.request, &unsaved.volume).await {
            Ok(()) => {
                self.memory.drop_unsaved(name);
                Outcome::Done
            }
            Err(error) => Outcome::retry(error),
        }
    }

    async fn save_or_remove(
        &self,
        request: &Request,
        volume: &Value,
        pauses: Pauses,
    ) -> Result<(), Option<Cause>> {
        let mut last: Cause = "no attempt to save the volume is configured".into();
        let mut attempts = pauses;
        while attempts.another().await {
            match self.create(request, volume).await {
                Ok(()) => return Ok(()),
                Err(error) => last = error.into(),
            }
        }
        let key = request.claim.metadata.key();
        let text = format!(
            "Error creating provisioned PV object for claim {key}: {last}. Deleting the volume."
        );
        self.tell(&request.claim, EventType::Warning, "ProvisioningFailed", text);
        if let Err(error) = self.remove(volume, pauses).await {
            let text = format!(
                "Error cleaning provisioned volume for claim {key}: {error}. Please delete manually."
            );
            self.tell(&request.claim, EventType::Warning, "ProvisioningCleanupFailed", text);
        }
        Err(Some(last))
    }

    async fn remove(&self, volume: &Value, mut attempts: Pauses) -> Result<(), Cause> {
        let record = Volume::deserialize(volume)?;
        let mut last: Cause = "no attempt to delete the volume is configured".into();
        while attempts.another().await {
            match self.provisioner.delete(&record).await {
                Ok(()) => return Ok(()),
                Err(NotDeleted::Ignored(reason)) => {
                    last = format!("ignored because {reason}").into()
                }
                Err(NotDeleted::Failed(cause)) => last = cause,
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
