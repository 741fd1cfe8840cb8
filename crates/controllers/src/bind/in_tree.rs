//! Volumes that the binder itself makes and deletes, with an in-tree plugin.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use longshore_cluster::{ApiError, DeleteParams, OptionalExt as _};
use longshore_core::{
    bind::{edit, is_released},
    model::{
        Kind as _, ObjectKey, ObjectRef, ReclaimPolicy, VolumeName, VolumePhase,
        keys::{annotations, finalizers},
        kinds::{Claim, Node, StorageClass, Volume},
    },
};
use serde_json::{Value, json};
use tokio::{task::JoinError, time::Instant};

use super::{Binder, act::Undone, metrics::Operation};

/// How often a volume's object is saved, and how often what was made is deleted when that failed.
const TRIES: usize = 5;
/// The pause between two of these.
const PAUSE: Duration = Duration::from_secs(10);

/// Why a plugin did not make a volume.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The directory behind it could not be made.
    #[error("cannot make {}: {source}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// The plugin's call panicked.
    #[error(transparent)]
    Aborted(#[from] JoinError),
}

/// Why a plugin did not delete a volume.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// It is no volume of the plugin's.
    #[error("failed to create deleter for volume {volume:?}: {why}")]
    Foreign { volume: VolumeName, why: String },
    #[error("{0}")]
    Failed(String),
}

/// A plugin that makes and deletes volumes. Its calls may block.
pub trait InTreePlugin: Send + Sync {
    /// Its name, as classes say it.
    fn name(&self) -> &'static str;

    /// What it writes onto its volumes as their maker, beyond its name.
    fn signature(&self) -> Option<&'static str> {
        None
    }

    /// Makes what is behind a volume; the answer is the source in the volume's spec.
    ///
    /// # Errors
    /// When it cannot be made; nothing is left then.
    fn make(
        &self,
        volume: &VolumeName,
        claim: &Claim,
        class: &StorageClass,
    ) -> Result<Value, MakeError>;

    /// Deletes what is behind a volume. Deleting what is gone succeeds.
    ///
    /// # Errors
    /// When it is still there.
    fn delete(&self, volume: &Volume) -> Result<(), DeleteError>;
}

impl Binder {
    /// Makes a volume for a claim and saves it.
    pub(super) async fn provision_in_tree(&self, claim: &Claim) -> Result<(), Undone> {
        let name = VolumeName::from(format!("pvc-{}", claim.metadata.uid));
        let class = self.classes.get(&ObjectKey::cluster(claim.class_name()));
        let (Some(plugin), Some(class)) = (self.in_tree.clone(), class) else { return Ok(()) };
        let key = claim.metadata.key().to_string();
        self.counted.begin(Operation::Provision, &key, || plugin.name().to_owned());
        if self.api.get::<Volume>(&ObjectKey::cluster(&name)).await?.is_some() {
            return Ok(());
        }
        self.target_node(claim).await?;
        let since = Instant::now();
        let made = self.make(&plugin, &name, claim, &class).await;
        self.counted.in_tree(Operation::Provision, plugin.name(), since, made.is_ok());
        let source = match made {
            Ok(source) => source,
            Err(why) => return self.not_made(claim, &class, why).await,
        };
        let volume = new_volume(&name, plugin.as_ref(), claim, &class, source);
        match self.save(&volume).await {
            Ok(()) => {
                let text =
                    format!("Successfully provisioned volume {name} using {}", plugin.name());
                self.recorder.normal(claim, "ProvisioningSucceeded", text);
                Ok(())
            }
            Err(error) => {
                let text = format!(
                    "Error creating provisioned PV object for claim {key}: {error}. Deleting the volume."
                );
                self.recorder.warning(claim, "ProvisioningFailed", text);
                self.clean_up(&plugin, claim, &volume).await;
                self.counted.fail(Operation::Provision, &key);
                Err(Undone::Failed(error.into()))
            }
        }
    }

    /// A node that was chosen must be there.
    async fn target_node(&self, claim: &Claim) -> Result<(), Undone> {
        let Some(node) = claim.metadata.annotation(annotations::SELECTED_NODE) else {
            return Ok(());
        };
        if self.api.get::<Node>(&ObjectKey::cluster(node)).await?.is_some() {
            return Ok(());
        }
        let text = format!("Failed to get target node: node {node:?} not found");
        self.recorder.warning(claim, "ProvisioningFailed", text.clone());
        Err(Undone::Failed(text.into()))
    }

    async fn make(
        &self,
        plugin: &Arc<dyn InTreePlugin>,
        name: &VolumeName,
        claim: &Claim,
        class: &StorageClass,
    ) -> Result<Value, MakeError> {
        let (plugin, name) = (plugin.clone(), name.clone());
        let (claim, class) = (claim.clone(), class.clone());
        tokio::task::spawn_blocking(move || plugin.make(&name, &claim, &class)).await?
    }

    /// The scheduler is asked to choose again, and the claim is told.
    async fn not_made(
        &self,
        claim: &Claim,
        class: &StorageClass,
        why: MakeError,
    ) -> Result<(), Undone> {
        let api = &self.api;
        if claim.metadata.annotation(annotations::SELECTED_NODE).is_some()
            && let Some(mut live) = api.get_raw::<Claim>(&claim.metadata.key()).await?
            && edit::forget_selected_node(&mut live)
        {
            self.claims.assume(&api.update::<Claim>(&live).await?);
        }
        let name = &class.metadata.name;
        let text = format!("Failed to provision volume with StorageClass {name:?}: {why}");
        self.recorder.warning(claim, "ProvisioningFailed", text.clone());
        self.counted.fail(Operation::Provision, &claim.metadata.key().to_string());
        Err(Undone::Failed(text.into()))
    }

    /// Saves a volume, patiently. One that is there already is ours: its name holds the claim's UID.
    async fn save(&self, volume: &Value) -> Result<(), ApiError> {
        let mut tries = 1;
        loop {
            match self.api.create::<Volume>(volume).await {
                Ok(made) => {
                    self.volumes.assume(&made);
                    return Ok(());
                }
                Err(error) if error.is_already_exists() => return Ok(()),
                Err(error) if tries == TRIES => return Err(error),
                Err(error) => tracing::warn!(%error, tries, "a new volume could not be saved"),
            }
            tries += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Deletes what was made for nothing.
    async fn clean_up(&self, plugin: &Arc<dyn InTreePlugin>, claim: &Claim, volume: &Value) {
        let Ok(volume) = serde_json::from_value::<Volume>(volume.clone()) else { return };
        for tries in 1..=TRIES {
            let Err(error) = delete(plugin, &volume).await else { return };
            if tries < TRIES {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let key = claim.metadata.key();
            let text = format!(
                "Error cleaning provisioned volume for claim {key}: {error}. Please delete manually."
            );
            self.recorder.warning(claim, "ProvisioningCleanupFailed", text);
        }
    }

    /// Deletes a released volume, what is behind it first.
    pub(super) async fn delete_in_tree(&self, seen: &Volume) -> Result<(), Undone> {
        let Some(plugin) = self.in_tree.clone() else { return Ok(()) };
        let name = &seen.metadata.name;
        self.counted.begin(Operation::Delete, name, || plugin.name().to_owned());
        let key = ObjectKey::cluster(name);
        // Nothing is deleted on the word of a cache.
        let Some(volume) = self.api.get::<Volume>(&key).await? else { return Ok(()) };
        let reference = volume.spec.claim_ref.clone().unwrap_or_default();
        let claim = ObjectKey::new(reference.namespace, reference.name);
        let claim = self.api.get::<Claim>(&claim).await?;
        if volume.metadata.uid != seen.metadata.uid || !is_released(&volume, claim.as_ref()) {
            return Ok(());
        }
        let since = Instant::now();
        let deleted = delete(&plugin, &volume).await;
        self.counted.in_tree(Operation::Delete, plugin.name(), since, deleted.is_ok());
        if let Err(error) = deleted {
            self.counted.fail(Operation::Delete, name);
            return self.not_deleted(&volume, &error).await;
        }
        self.let_volume_go(&key).await
    }

    async fn not_deleted(&self, volume: &Volume, error: &DeleteError) -> Result<(), Undone> {
        let text = error.to_string();
        let api = &self.api;
        let key = volume.metadata.key();
        if let Some(mut live) = api.get_raw::<Volume>(&key).await?
            && edit::set_volume_phase(&mut live, &VolumePhase::Failed, &text)
        {
            self.volumes.assume(&api.update_status::<Volume>(&live).await?);
            self.recorder.warning(volume, "VolumeFailedDelete", text.clone());
        }
        Err(Undone::Failed(text.into()))
    }

    /// The finalizer goes, then the object.
    async fn let_volume_go(&self, key: &ObjectKey) -> Result<(), Undone> {
        let api = &self.api;
        let Some(mut live) = api.get_raw::<Volume>(key).await? else { return Ok(()) };
        let kept: Vec<String> = live["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter(|one| *one != finalizers::PV_CONTROLLER)
            .map(str::to_owned)
            .collect();
        if edit::set_finalizers(&mut live, &kept) {
            api.update::<Volume>(&live).await?;
        }
        api.delete::<Volume>(key, &DeleteParams::default()).await.optional()?;
        Ok(())
    }
}

async fn delete(plugin: &Arc<dyn InTreePlugin>, volume: &Volume) -> Result<(), DeleteError> {
    let (plugin, volume) = (plugin.clone(), volume.clone());
    let done = tokio::task::spawn_blocking(move || plugin.delete(&volume)).await;
    done.unwrap_or_else(|error| Err(DeleteError::Failed(error.to_string())))
}

pub(super) fn new_volume(
    name: &VolumeName,
    plugin: &dyn InTreePlugin,
    claim: &Claim,
    class: &StorageClass,
    source: Value,
) -> Value {
    let policy = class.reclaim_policy();
    let mut metadata = json!({"name": name, "annotations": {
        annotations::BOUND_BY_CONTROLLER: "yes", annotations::PROVISIONED_BY: plugin.name()}});
    if let Some(signature) = plugin.signature() {
        metadata["annotations"][annotations::CREATED_BY] = signature.into();
    }
    if *policy == ReclaimPolicy::Delete {
        metadata["finalizers"] = json!([finalizers::PV_CONTROLLER]);
    }
    let mut spec = json!({
        "accessModes": claim.spec.access_modes,
        "capacity": {"storage": claim.request().to_string()},
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": claim.class_name(),
        "volumeMode": claim.volume_mode(),
        "claimRef": ObjectRef::of::<Claim>(&claim.metadata),
    });
    if let (Some(spec), Value::Object(source)) = (spec.as_object_mut(), source) {
        spec.extend(source);
    }
    json!({"apiVersion": Volume::api_version(), "kind": Volume::KIND, "metadata": metadata, "spec": spec})
}
