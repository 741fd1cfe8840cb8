//! Which change wakes which turn.

use std::sync::Arc;

use longshore_cluster::Change;
use longshore_core::model::{ObjectKey, keys::annotations, kinds::Claim};
use tokio_util::sync::CancellationToken;

use super::{Inner, Key, metrics::Operation, view};

pub(super) async fn resync(inner: &Inner, shutdown: &CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(inner.config.resync) => {}
        }
        for claim in inner.parts.claims.list() {
            inner.queue.add(Key::Claim(claim.metadata.key()));
        }
        for volume in inner.parts.volumes.list() {
            inner.queue.add(Key::Volume(volume.metadata.name.clone()));
        }
    }
}

/// Feeds the queue: not only with what changed, but also with what waits for the change.
pub(super) fn subscribe(inner: &Arc<Inner>) {
    let (queue, volumes) = (inner.queue.clone(), inner.parts.volumes.clone());
    let (counted, doubts) = (inner.parts.counted.clone(), inner.doubts.clone());
    inner.parts.claims.subscribe(move |change| {
        let claim = change.object();
        let key = claim.metadata.key();
        let bound_now = match change {
            Change::Applied { old, new } => {
                old.as_ref().is_none_or(|old| old.spec.volume_name != new.spec.volume_name)
            }
            Change::Deleted { old } => {
                doubts.forget(old);
                counted.discard(Operation::Provision, &key.to_string());
                true
            }
        };
        if bound_now {
            for volume in view::volumes_for(&volumes, &key) {
                queue.add(Key::Volume(volume.metadata.name.clone()));
            }
            if !claim.spec.volume_name.is_empty() {
                queue.add(Key::Volume(claim.spec.volume_name.clone()));
            }
        }
        queue.add(Key::Claim(key));
    });
    let (queue, claims) = (inner.queue.clone(), inner.parts.claims.clone());
    let counted = inner.parts.counted.clone();
    inner.parts.volumes.subscribe(move |change| {
        let volume = change.object();
        if let Change::Deleted { .. } = change {
            counted.end(Operation::Delete, &volume.metadata.name);
        }
        queue.add(Key::Volume(volume.metadata.name.clone()));
        for claim in
            view::claims_waiting_for(&claims, volume, matches!(change, Change::Deleted { .. }))
        {
            queue.add(Key::Claim(claim));
        }
    });
    let (queue, claims) = (inner.queue.clone(), inner.parts.claims.clone());
    inner.parts.classes.subscribe(move |change| {
        let name = &change.object().metadata.name;
        for claim in
            view::open_claims(&claims, name).into_iter().chain(view::open_claims(&claims, ""))
        {
            queue.add(Key::Claim(claim.metadata.key()));
        }
    });
    let (queue, claims) = (inner.queue.clone(), inner.parts.claims.clone());
    inner.parts.pods.subscribe(move |change| {
        let pod = change.object();
        for (name, _) in pod.claim_names() {
            let key = ObjectKey::new(pod.metadata.namespace.clone(), name);
            let open = |claim: Arc<Claim>| {
                claim.metadata.annotation(annotations::BIND_COMPLETED).is_none()
            };
            if claims.get(&key).is_some_and(open) {
                queue.add(Key::Claim(key));
            }
        }
    });
}
