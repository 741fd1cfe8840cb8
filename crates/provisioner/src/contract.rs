//! The `Provisioner` trait: its contract, its requests and its results.

use std::{collections::BTreeMap, sync::Arc};

use longshore_core::model::{
    NodeName, Quantity, VolumeName,
    kinds::{Claim, StorageClass, Volume},
};
use serde_json::{Value, json};

/// Any error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Makes and removes the storage behind a claim.
///
/// The controller repeats a call until it gets a final answer, and repeats it after a restart, so
/// both required methods must be idempotent: the same request yields the same storage, not a
/// second one, and what is gone already is deleted with success.
///
/// ```
/// use longshore_provisioner::{ProvisionedVolume, DeleteError, ProvisionError, Provisioner, Request, Volume};
/// use serde_json::json;
///
/// struct Ramdisks;
///
/// impl Provisioner for Ramdisks {
///     async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
///         if request.bytes > 1 << 30 {
///             return Err(ProvisionError::Final("a ramdisk holds at most 1 GiB".into()));
///         }
///         let path = format!("/dev/shm/{}", request.volume);
///         Ok(ProvisionedVolume::new(request, json!({"hostPath": {"path": path}})))
///     }
///
///     async fn delete(&self, _volume: &Volume) -> Result<(), DeleteError> {
///         Ok(())
///     }
/// }
/// ```
pub trait Provisioner: Send + Sync + 'static {
    /// Makes the storage for one claim. Never writes the PersistentVolume itself.
    fn provision(
        &self,
        request: &Request,
    ) -> impl Future<Output = Result<ProvisionedVolume, ProvisionError>> + Send;

    /// Removes the storage behind a volume. Never deletes the PersistentVolume itself.
    fn delete(&self, volume: &Volume) -> impl Future<Output = Result<(), DeleteError>> + Send;

    /// Whether to look at this claim at all. Asked for every unbound claim of the cluster, before
    /// anything else; `false` skips it silently.
    fn should_provision(&self, claim: &Claim) -> impl Future<Output = bool> + Send {
        let _ = claim;
        async { true }
    }

    /// Whether to look at deleting this volume at all; `false` skips it silently.
    fn should_delete(&self, volume: &Volume) -> impl Future<Output = bool> + Send {
        let _ = volume;
        async { true }
    }

    /// The claim's PersistentVolume is saved: whatever was kept for the case of a crash in between
    /// can go.
    fn saved(&self, claim: &Claim) -> impl Future<Output = ()> + Send {
        let _ = claim;
        async {}
    }
}

/// One volume to make.
#[derive(Debug, Clone)]
pub struct Request {
    /// The claim; when it was deleted meanwhile, as it was last seen.
    pub claim: Arc<Claim>,
    /// Its class.
    pub class: Arc<StorageClass>,
    /// The name that the volume will have.
    pub volume: VolumeName,
    /// The size asked for.
    pub bytes: i64,
    /// The node that the scheduler chose, if it did.
    pub node: Option<NodeName>,
}

/// A volume that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct ProvisionedVolume {
    /// The PersistentVolume as it shall be saved. The controller adds the claim, the class, the
    /// origin and its finalizer.
    pub volume: Value,
}

impl ProvisionedVolume {
    /// A volume with the given source (`{"hostPath": {…}}`, `{"nfs": {…}}`, `{"csi": {…}}`), the
    /// size and modes that the claim asks for, and the class's policy and mount options.
    #[must_use]
    pub fn new(request: &Request, source: Value) -> Self {
        let (claim, class) = (&request.claim, &request.class);
        let mut spec = json!({
            "capacity": {"storage": Quantity::from_bytes(request.bytes).to_string()},
            "accessModes": claim.spec.access_modes,
            "persistentVolumeReclaimPolicy": class.reclaim_policy(),
            "volumeMode": claim.volume_mode(),
        });
        if !class.mount_options.is_empty() {
            spec["mountOptions"] = json!(class.mount_options);
        }
        if let (Some(spec), Value::Object(source)) = (spec.as_object_mut(), source) {
            spec.extend(source);
        }
        Self {
            volume: json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": request.volume},
                "spec": spec,
            }),
        }
    }

    /// Adds annotations.
    #[must_use]
    pub fn annotated(mut self, annotations: &BTreeMap<String, String>) -> Self {
        for (key, value) in annotations {
            self.volume["metadata"]["annotations"][key] = json!(value);
        }
        self
    }

    /// Pins the volume to nodes whose label `key` has the value `value`.
    #[must_use]
    pub fn pinned(mut self, key: &str, value: &str) -> Self {
        self.volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        ]}});
        self
    }
}

/// Why there is no volume, and what is known about the storage behind it.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// Nothing was made and nothing is running; the claim is tried again later.
    #[error("{0}")]
    Final(Cause),
    /// As [`ProvisionError::Final`], and the same request will fail for a long time: tried again seldom.
    #[error("{0}")]
    Infeasible(Cause),
    /// No verdict: the storage may exist or may come to be. The same request is repeated until
    /// there is a verdict, even if the claim is deleted meanwhile.
    #[error("{0}")]
    InBackground(Cause),
    /// This attempt asked nothing of the backend; what was known before still holds.
    #[error("{0}")]
    Unchanged(Cause),
    /// Not on this node: the scheduler is asked for another one.
    #[error("{0}")]
    Elsewhere(Cause),
    /// Somebody else will do it. No event, no retry.
    #[error("ignored because {0}")]
    Ignored(String),
}

impl ProvisionError {
    /// [`ProvisionError::Unchanged`] from any error or text.
    pub fn unchanged(cause: impl Into<Cause>) -> Self {
        Self::Unchanged(cause.into())
    }
}

/// Why storage was not removed.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// It failed, or nobody knows; tried again.
    #[error("{0}")]
    Failed(Cause),
    /// Not ours: the PersistentVolume is left alone.
    #[error("ignored because {0}")]
    Ignored(String),
}

impl DeleteError {
    /// [`DeleteError::Failed`] from any error or text.
    pub fn failed(cause: impl Into<Cause>) -> Self {
        Self::Failed(cause.into())
    }
}
