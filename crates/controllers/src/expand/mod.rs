//! Sends an event to claims that grow: which resizer will expand them.
//!
//! [`longshore_core::expand`] decides. Nothing is expanded here: CSI volumes are their driver's
//! resizer's, the claims of volumes that were an in-tree plugin's are given the name of the driver
//! that took over, and for FlexVolumes only the books are kept, for the node.

mod flex;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Change, Context, Loop, OptionalExt as _, Outcome, Patch, QueueOptions,
    Reconciler, Recorder, Sources, Subject, WorkQueue,
};
use longshore_core::{
    expand::{Expansion, NotBound, decide_expansion, is_settled, worth_a_look},
    model::{
        ObjectKey, VolumeName,
        keys::annotations,
        kinds::{Claim, Volume},
    },
};
use serde::Deserialize as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const WORKERS: usize = 10;

/// The expansion controller.
pub struct Expander {
    api: Api,
    claims: Cache<Claim>,
    /// For a first look: most claims that are bound have what they ask for.
    volumes: Cache<Volume>,
    recorder: Recorder,
    queue: WorkQueue<ObjectKey>,
}

/// Why a claim has to be looked at again.
#[derive(Debug, thiserror::Error)]
enum ExpandError {
    #[error("failed to get PV {name:?}: {source}")]
    Volume { name: VolumeName, source: ApiError },
    #[error("persistentvolume {0:?} not found")]
    NoVolume(VolumeName),
    #[error("persistentvolume {0:?} cannot be read: {1}")]
    Unreadable(VolumeName, serde_json::Error),
    #[error(transparent)]
    NotBound(#[from] NotBound),
    #[error("saving the resizer of the claim: {0}")]
    Save(#[source] ApiError),
    #[error("the claim changed meanwhile")]
    Changed,
    #[error("saving the new size: {0}")]
    SaveSize(#[source] ApiError),
}

impl ExpandError {
    /// Somebody else wrote in between, which says nothing about the expansion.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::SaveSize(error) if error.is_conflict())
    }
}

impl Reconciler for Expander {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.claims, |_, change| match change {
            Change::Applied { old, new } => {
                worth_a_look(old.as_deref(), new).then(|| new.metadata.key())
            }
            Change::Deleted { .. } => None,
        });
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        self.expand(key).await.into()
    }
}

impl Expander {
    /// A loop that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            api: context.api.clone(),
            claims: context.cache(),
            volumes: context.cache(),
            recorder: context.recorder("volume_expand"),
            queue: context.queue("volume_expand", QueueOptions::controller()),
        }
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("expand", Arc::new(self), queue).workers(WORKERS).run(&shutdown).await;
    }

    async fn expand(&self, key: &ObjectKey) -> Result<(), ExpandError> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let name = claim.spec.volume_name.clone();
        let cached = self.volumes.get(&ObjectKey::cluster(&name));
        if cached.is_some_and(|volume| is_settled(&claim, &volume)) {
            return Ok(());
        }
        let live = match self.api.get_raw::<Volume>(&ObjectKey::cluster(&name)).await {
            Ok(live) => live.ok_or(ExpandError::NoVolume(name.clone()))?,
            Err(source) => return Err(ExpandError::Volume { name, source }),
        };
        let volume =
            Volume::deserialize(&live).map_err(|error| ExpandError::Unreadable(name, error))?;
        match decide_expansion(&claim, &volume, &live)? {
            Expansion::Nothing => Ok(()),
            Expansion::External { message, resizer } => {
                self.recorder.normal(claim.as_ref(), "ExternalExpanding", message);
                match resizer {
                    Some(resizer) => self.name_resizer(&claim, resizer).await,
                    None => Ok(()),
                }
            }
            Expansion::Flex { driver, step } => {
                // The step must fit what is written over.
                let saved = self.api.get_raw::<Claim>(key).await.map_err(ExpandError::SaveSize)?;
                let Some(saved) = saved else { return Ok(()) };
                if saved["metadata"]["resourceVersion"] != claim.metadata.resource_version.as_str()
                {
                    return Err(ExpandError::Changed);
                }
                self.flex_step(&claim, saved, live, &driver, step).await
            }
        }
    }

    /// By way of the status, as upstream does: whoever may not write the claim may write that.
    async fn name_resizer(&self, claim: &Claim, resizer: &str) -> Result<(), ExpandError> {
        let patch = json!({"metadata": {
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {annotations::STORAGE_RESIZER: resizer},
        }});
        let key = claim.metadata.key();
        let written = self.api.patch_status::<Claim>(&key, Patch::Strategic(&patch)).await;
        let written = written.optional().map_err(ExpandError::Save)?;
        written.iter().for_each(|claim| self.claims.assume(claim));
        Ok(())
    }
}
