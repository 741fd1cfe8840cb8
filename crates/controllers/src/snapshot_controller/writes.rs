//! Writes that loops over snapshots and over group snapshots have in common.

use longshore_cluster::{Cache, Cacheable, DeleteParams, Outcome, Patch, clock};
use longshore_core::{
    model::{ObjectKey, kinds::SnapshotError},
    snapshot::{Failure, status},
};
use serde_json::Value;

use super::{Shared, error::ControllerError, snapshots::Flow};

impl Shared {
    /// Patches an object; the next look sees it as it is then.
    pub(super) async fn patch<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<(), ControllerError> {
        let written = self.api.patch::<T>(key, Patch::Merge(patch)).await?;
        cache.assume(&written);
        Ok(())
    }

    /// Patches the status of an object.
    pub(super) async fn patch_status<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<(), ControllerError> {
        let written = self.api.patch_status::<T>(key, Patch::Merge(patch)).await?;
        cache.assume(&written);
        Ok(())
    }

    /// Creates an object, or finds the one that an earlier pass created whose response was lost.
    pub(super) async fn create_or_get<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        key: &ObjectKey,
        object: &Value,
    ) -> Result<(), ControllerError> {
        if cache.get(key).is_some() {
            return Ok(());
        }
        let made = match self.api.create::<T>(object).await {
            Err(error) if error.is_already_exists() => {
                self.api.get_raw::<T>(key).await?.ok_or(error)?
            }
            made => made?,
        };
        cache.assume(&made);
        Ok(())
    }

    /// Deletes the object that was looked at, and shows what is left of it.
    pub(super) async fn delete<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        key: &ObjectKey,
    ) -> Result<Flow, ControllerError> {
        let Some(object) = cache.get(key) else { return Ok(Flow::On) };
        let this = DeleteParams::uid(object.meta().uid.as_str());
        match self.api.delete::<T>(key, &this).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        match self.api.get_raw::<T>(key).await? {
            Some(live) => {
                cache.assume(&live);
                Ok(Flow::On)
            }
            // The watch says so, too, and that starts the pass again.
            None => Ok(Flow::End(Outcome::Done)),
        }
    }

    /// Reads an object for the next look, after a conflict.
    pub(super) async fn refresh<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        key: &ObjectKey,
    ) -> Result<(), ControllerError> {
        if let Some(live) = self.api.get_raw::<T>(key).await? {
            cache.assume(&live);
        }
        Ok(())
    }

    /// Shows a failure once, and ends the pass. `error` is what the object shows already.
    pub(super) async fn show<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        object: &T,
        error: Option<&SnapshotError>,
        failure: &Failure,
    ) -> Result<Flow, ControllerError> {
        let key = object.key();
        let now = clock::seconds(clock::now());
        if let Some(mut patch) = status::failed(error, failure, &now) {
            patch["metadata"]["uid"] = object.meta().uid.as_str().into();
            self.patch_status(cache, &key, &patch).await?;
            self.recorder.warning(object, failure.reason, failure.message.clone());
        }
        Ok(Flow::End(Outcome::retry(format!("{key}: {}", failure.message))))
    }
}
