//! Finds the owner of CSIStorageCapacity objects, which are deleted with it.

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use longshore_cluster::Api;
use longshore_core::model::kinds::OwnerReference;

/// Why there is no owner.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// An object on the way up cannot be read.
    #[error(
        "cannot read {kind} {namespace}/{name}, to which capacity objects shall belong: {source}"
    )]
    Unreadable {
        kind: String,
        namespace: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The way up ends too early.
    #[error(
        "{kind} {namespace}/{name} has no controlling owner, cannot unwind the ownership further; choose a smaller --capacity-ownerref-level, or -1 for none"
    )]
    NoOwner {
        /// The kind of the topmost object.
        kind: String,
        namespace: String,
        name: String,
    },
}

/// The pod itself (level 0), or who controls it that many levels up. What is on top is not read:
/// the reference to it is enough.
///
/// # Errors
/// When an object on the way cannot be read, or nobody controls it.
pub async fn owner(
    api: &Api,
    namespace: &str,
    pod: &str,
    level: u32,
) -> Result<OwnerReference, OwnerError> {
    let mut at = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.into(),
        ..OwnerReference::default()
    };
    let mut left = level;
    loop {
        let object = read(api, namespace, &at).await?;
        let meta = object.metadata;
        if left == 0 {
            let uid = meta.uid.unwrap_or_default().into();
            return Ok(OwnerReference { uid, controller: Some(true), ..at });
        }
        let mut owners = meta.owner_references.unwrap_or_default().into_iter();
        let Some(up) = owners.find(|one| one.controller == Some(true)) else {
            return Err(OwnerError::NoOwner {
                kind: at.kind,
                namespace: namespace.into(),
                name: at.name,
            });
        };
        at = OwnerReference {
            api_version: up.api_version,
            kind: up.kind,
            name: up.name,
            uid: up.uid.into(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        left -= 1;
        if left == 0 {
            return Ok(at);
        }
    }
}

async fn read(
    api: &Api,
    namespace: &str,
    at: &OwnerReference,
) -> Result<DynamicObject, OwnerError> {
    let (group, version) = at.api_version.split_once('/').unwrap_or(("", &at.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &at.kind));
    let objects: kube::Api<DynamicObject> =
        kube::Api::namespaced_with(api.client().clone(), namespace, &resource);
    objects.get(&at.name).await.map_err(|source| OwnerError::Unreadable {
        kind: at.kind.clone(),
        namespace: namespace.into(),
        name: at.name.clone(),
        source: Box::new(source),
    })
}
