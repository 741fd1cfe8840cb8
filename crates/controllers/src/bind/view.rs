//! Builds the views of binding decisions from the caches.

use std::{collections::BTreeSet, sync::Arc};

use longshore_cluster::{ApiError, Cache};
use longshore_core::model::{
    ObjectKey, VolumeName, VolumePhase,
    keys::annotations,
    kinds::{Claim, Pod, Volume},
};

use super::{Binder, free::FreeVolumes};
use crate::index::{index_pods, pods_of_claim};

/// Volumes by the claim they point at.
const BY_CLAIM: &str = "bind-volumes-by-claim";
/// Volumes that point at none and are so new that they have no phase, by class.
const NEW: &str = "bind-new-volumes-by-class";
/// Claims that are not bound yet, by class.
const OPEN: &str = "bind-open-claims-by-class";
/// Claims by the volume they name.
const BY_VOLUME: &str = "bind-claims-by-volume";

pub(super) fn index(binder: &Binder) {
    binder.volumes.index(BY_CLAIM, |volume| {
        let key = |reference: &longshore_core::model::ObjectRef| {
            format!("{}/{}", reference.namespace, reference.name)
        };
        volume.spec.claim_ref.as_ref().map(key).into_iter().collect()
    });
    binder.volumes.index(NEW, |volume| {
        let new = volume.spec.claim_ref.is_none()
            && (volume.status.phase.is_empty()
                || matches!(volume.status.phase, VolumePhase::Pending))
            && !volume.metadata.deleting();
        if new { vec![volume.class_name().to_string()] } else { vec![] }
    });
    binder.claims.index(OPEN, |claim| {
        let bound = claim.metadata.annotation(annotations::BIND_COMPLETED).is_some();
        if bound { vec![] } else { vec![claim.class_name().to_string()] }
    });
    binder.claims.index(BY_VOLUME, |claim| {
        let name = &claim.spec.volume_name;
        if name.is_empty() { vec![] } else { vec![name.to_string()] }
    });
    index_pods(&binder.pods);
}

/// Volumes that point at this claim.
pub(super) fn volumes_for(volumes: &Cache<Volume>, claim: &ObjectKey) -> Vec<Arc<Volume>> {
    volumes.by_index(BY_CLAIM, &claim.to_string())
}

/// Volumes that may answer this claim: those kept for it, and the best of the free ones.
pub(super) fn candidates(
    volumes: &Cache<Volume>,
    free: &FreeVolumes,
    claim: &Claim,
    reserved: &BTreeSet<VolumeName>,
) -> Vec<Arc<Volume>> {
    let mut found = volumes_for(volumes, &claim.metadata.key());
    let usable = |volume: &Volume| !reserved.contains(volume.metadata.name.as_str());
    found.extend(free.best(claim, |key| volumes.get(key), usable));
    found
}

/// Whether the claim is open to any volume and one of its class is so new that it has no phase.
pub(super) fn awaits_new_volume(volumes: &Cache<Volume>, claim: &Claim) -> bool {
    let open = claim.spec.volume_name.is_empty()
        && claim.metadata.annotation(annotations::BIND_COMPLETED).is_none();
    open && volumes.has_indexed(NEW, claim.class_name())
}

/// Claims of this class that are not bound yet.
pub(super) fn open_claims(claims: &Cache<Claim>, class: &str) -> Vec<Arc<Claim>> {
    claims.by_index(OPEN, class)
}

/// Claims that a change of this volume concerns.
pub(super) fn claims_waiting_for(
    claims: &Cache<Claim>,
    volume: &Volume,
    gone: bool,
) -> Vec<ObjectKey> {
    let name = &volume.metadata.name;
    let mut keys: Vec<ObjectKey> =
        claims.by_index(BY_VOLUME, name).iter().map(|claim| claim.metadata.key()).collect();
    if let Some(reference) = &volume.spec.claim_ref {
        keys.push(ObjectKey::new(reference.namespace.clone(), reference.name.clone()));
    } else if !gone && volume.status.phase == VolumePhase::Available {
        let open = open_claims(claims, volume.class_name());
        let any = open.iter().filter(|claim| claim.spec.volume_name.is_empty());
        keys.extend(any.map(|claim| claim.metadata.key()));
    }
    keys
}

/// Names of pods that use the claim, are not finished, and have no node yet.
pub(super) fn waiting_pods(pods: &Cache<Pod>, claim: &ObjectKey) -> Vec<String> {
    let using = pods_of_claim(pods, claim);
    let waiting = using.iter().filter(|pod| !pod.finished() && pod.spec.node_name.is_empty());
    waiting.map(|pod| pod.metadata.name.clone()).collect()
}

/// Pods that use a claim of this name and are not finished, as `namespace/name`.
pub(super) fn users(pods: &Cache<Pod>, claim: &ObjectKey) -> Vec<String> {
    let using = pods_of_claim(pods, claim);
    using.iter().filter(|pod| !pod.finished()).map(|pod| pod.metadata.key().to_string()).collect()
}

/// The claim that a volume points at, with the same UID.
///
/// A cache can be late. Before a volume is released for want of a claim, the API itself is asked.
pub(super) async fn claim_of(
    binder: &Binder,
    volume: &Volume,
) -> Result<Option<Arc<Claim>>, ApiError> {
    let Some(reference) = volume.spec.claim_ref.as_ref().filter(|one| !one.uid.is_empty()) else {
        return Ok(None);
    };
    let key = ObjectKey::new(reference.namespace.clone(), reference.name.clone());
    let settled = matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
    let found = match binder.claims.get(&key) {
        None if settled => None,
        Some(claim) if claim.metadata.uid == reference.uid => Some(claim),
        None | Some(_) => binder.api.get::<Claim>(&key).await?.map(Arc::new),
    };
    Ok(found.filter(|claim| claim.metadata.uid == reference.uid))
}
