//! Reconciles one PersistentVolume: deletes its storage once it is released.

use std::time::Duration;

use longshore_cluster::{ApiError, DeleteParams, OptionalExt as _, Outcome, Patch, log_result};
use longshore_core::{
    model::{
        ObjectKey, Uid, VolumeName,
        keys::{annotations, finalizers},
        kinds::Volume,
    },
    provision::{finalizers_after, is_ours, wants_deletion},
    words,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Cause, DeleteError, Provisioner, controller::Inner};

/// How often our finalizer is taken off against the writes of others.
const TRIES: u32 = 8;
/// A watch that is open and told something this long ago is not later than an answer would be.
pub(crate) const FRESH: Duration = Duration::from_millis(250);

impl<P: Provisioner> Inner<P> {
    pub(crate) async fn sync_volume(&self, name: &VolumeName) -> Outcome {
        let Err(error) = self.look_at_volume(name).await else {
            self.memory.volume_done(name);
            return Outcome::Done;
        };
        if self.memory.volume_failed(name, self.config.failed_delete_threshold) {
            tracing::error!(volume = name.as_str(), %error, "giving the volume up after too many failures");
            return Outcome::Done;
        }
        Outcome::Retry(error)
    }

    async fn look_at_volume(&self, name: &VolumeName) -> Result<(), Cause> {
        let Some(cached) = self.volumes.get(&ObjectKey::cluster(name)) else { return Ok(()) };
        if !is_ours(&cached, &self.names) {
            return Ok(());
        }
        let mut volume = (*cached).clone();
        if let Some(wanted) = finalizers_after(&volume, self.config.add_finalizer) {
            volume = self.patch_finalizers(&volume, &wanted).await.map_err(|error| {
                format!("failed to modify finalizers to {wanted:?} on volume {name} err: {error}")
            })?;
        }
        // In this order: the question may take its time, and most volumes need not be asked about.
        if !wants_deletion(&volume, self.config.add_finalizer)
            || !self.provisioner.should_delete(&volume).await
        {
            return Ok(());
        }
        let result = self.delete(&volume).await;
        if result.is_err() {
            self.metrics.delete_failed(&volume);
        }
        result
    }

    pub(crate) async fn delete(&self, volume: &Volume) -> Result<(), Cause> {
        let started = Instant::now();
        let key = ObjectKey::cluster(&volume.metadata.name);
        let uid = &volume.metadata.uid;
        let mut finalizers = volume.metadata.finalizers.clone();
        if !self.memory.is_emptied(uid) {
            let Some(live) = self.certain(volume).await? else { return Ok(()) };
            if !self.empty(&live).await? {
                // Upstream counts a deletion that is not ours, too.
                self.metrics.deleted(volume, started.elapsed().as_secs_f64());
                return Ok(());
            }
            self.memory.mark_emptied(uid);
            finalizers = live.metadata.finalizers;
        }
        let only = DeleteParams::uid(uid.clone());
        self.api.delete::<Volume>(&key, &only).await.optional()?;
        // The change that we just made brings the volume back for another look.
        if self.memory.count_deletion(uid) {
            let took = started.elapsed();
            self.metrics.deleted(volume, took.as_secs_f64());
            let driver = volume.metadata.annotation(annotations::PROVISIONED_BY);
            log_result!(driver, took = words::time(took), "volume is deleted");
        }
        self.drop_finalizer(&key, uid, finalizers).await
    }

    /// The volume as it is, if it still wants to be deleted. What follows cannot be undone, so a
    /// cache that may be late is not enough: then the API itself is asked.
    async fn certain(&self, volume: &Volume) -> Result<Option<Volume>, Cause> {
        let key = ObjectKey::cluster(&volume.metadata.name);
        let now = match self.volumes.is_fresh(FRESH) {
            true => self.volumes.get(&key).map(|cached| (*cached).clone()),
            false => self.api.get::<Volume>(&key).await?,
        };
        Ok(now.filter(|now| {
            now.metadata.uid == volume.metadata.uid
                && wants_deletion(now, self.config.add_finalizer)
        }))
    }

    /// Removes the storage; false when it is not ours to remove.
    async fn empty(&self, volume: &Volume) -> Result<bool, Cause> {
        let call = self.provisioner.delete(volume);
        let result = match self.config.deletion_timeout {
            None => call.await,
            Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
                Err(DeleteError::Failed("timed out waiting for the provisioner".into()))
            }),
        };
        match result {
            Ok(()) => Ok(true),
            Err(DeleteError::Ignored(reason)) => {
                log_result!(volume = volume.metadata.name, reason, "deletion is ignored");
                Ok(false)
            }
            Err(DeleteError::Failed(cause)) => {
                self.recorder.warning(volume, "VolumeFailedDelete", cause.to_string());
                Err(cause)
            }
        }
    }

    /// Takes our finalizer off where it was last seen, whatever else has changed: others take theirs
    /// off at the same moment. Only when it is elsewhere by now is the volume read again.
    pub(crate) async fn drop_finalizer(
        &self,
        key: &ObjectKey,
        uid: &Uid,
        mut seen: Vec<String>,
    ) -> Result<(), Cause> {
        if !self.config.add_finalizer {
            return Ok(());
        }
        let mut tries = 0;
        loop {
            let Some(patch) = removal(uid, &seen) else { return Ok(()) };
            tries += 1;
            match self.api.patch::<Volume>(key, Patch::Json(&patch)).await {
                Ok(written) => {
                    self.volumes.assume(&written);
                    return Ok(());
                }
                Err(error) if error.is_not_found() => return Ok(()),
                Err(ApiError::Invalid { .. } | ApiError::Conflict { .. }) if tries < TRIES => {}
                Err(error) => return Err(error.into()),
            }
            let live = self.api.get::<Volume>(key).await?;
            let Some(live) = live.filter(|live| live.metadata.uid == *uid) else { return Ok(()) };
            seen = live.metadata.finalizers;
        }
    }

    /// Sets the finalizers, provided that the volume is still as we saw it.
    async fn patch_finalizers(
        &self,
        volume: &Volume,
        wanted: &[String],
    ) -> Result<Volume, ApiError> {
        let key = ObjectKey::cluster(&volume.metadata.name);
        let patch = json!({"metadata": {
            "finalizers": wanted,
            "resourceVersion": volume.metadata.resource_version,
            "uid": volume.metadata.uid,
        }});
        let written = self.api.patch::<Volume>(&key, Patch::Merge(&patch)).await?;
        self.volumes.assume(&written);
        Ok(Volume::deserialize(&written).unwrap_or_else(|_| volume.clone()))
    }
}

/// A patch that takes our finalizer out of the list, if it is in it. It fails on another volume of
/// the same name, and when something else is in that place.
fn removal(uid: &Uid, finalizers: &[String]) -> Option<Value> {
    let at = finalizers.iter().position(|one| one == finalizers::EXTERNAL_PROVISIONER)?;
    let path = format!("/metadata/finalizers/{at}");
    Some(json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": path, "value": finalizers::EXTERNAL_PROVISIONER},
        {"op": "remove", "path": path},
    ]))
}
