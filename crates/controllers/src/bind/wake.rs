//! Decides which claims and volumes a change enqueues.

use std::sync::Arc;

use longshore_cluster::{Change, Outcome, Reconciler, Sources, Subject};
use longshore_core::model::{
    ObjectKey,
    keys::annotations,
    kinds::{Claim, Pod, StorageClass, Volume},
};

use super::{Binder, Key, metrics::Operation, view};

impl Reconciler for Binder {
    type Key = Key;

    /// Not only what changed is enqueued, but also what waits for the change.
    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.claims, Self::claim_changed)
            .on(&self.volumes, Self::volume_changed)
            .on(&self.classes, Self::class_changed)
            .on(&self.pods, Self::pod_changed)
            .on_resync(&self.claims, |_, claim| [Key::Claim(claim.metadata.key())])
            .on_resync(&self.volumes, |_, volume| [Key::Volume(volume.name())]);
    }

    fn prepare(&self) {
        self.counted.count(&self.metrics, &self.volumes, &self.claims);
    }

    fn subject(&self, key: &Key) -> Subject {
        match key {
            Key::Claim(claim) => Subject::claim(claim),
            Key::Volume(volume) => Subject::volume(volume),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        self.pass(key).await
    }
}

impl Binder {
    fn claim_changed(&self, change: &Change<Claim>) -> Vec<Key> {
        let claim = change.object();
        let key = claim.metadata.key();
        let bound_now = match change {
            Change::Applied { old, new } => {
                old.as_ref().is_none_or(|old| old.spec.volume_name != new.spec.volume_name)
            }
            Change::Deleted { old } => {
                self.grace.forget(old);
                self.counted.discard(Operation::Provision, &key.to_string());
                true
            }
        };
        let mut keys = Vec::new();
        if bound_now {
            let volumes = view::volumes_for(&self.volumes, &key);
            keys.extend(volumes.iter().map(|volume| Key::Volume(volume.name())));
            if !claim.spec.volume_name.is_empty() {
                keys.push(Key::Volume(claim.spec.volume_name.clone()));
            }
        }
        keys.push(Key::Claim(key));
        keys
    }

    fn volume_changed(&self, change: &Change<Volume>) -> Vec<Key> {
        // Before the volume is enqueued, so that a pass over its claim finds it.
        self.free.observe(change);
        let volume = change.object();
        let deleted = matches!(change, Change::Deleted { .. });
        if deleted {
            self.counted.end(Operation::Delete, &volume.metadata.name);
        }
        let waiting = view::claims_waiting_for(&self.claims, volume, deleted);
        let mut keys = vec![Key::Volume(volume.name())];
        keys.extend(waiting.into_iter().map(Key::Claim));
        keys
    }

    fn class_changed(&self, change: &Change<StorageClass>) -> Vec<Key> {
        let claims = &self.claims;
        let named = view::open_claims(claims, &change.object().metadata.name);
        let open = named.into_iter().chain(view::open_claims(claims, ""));
        open.map(|claim| Key::Claim(claim.metadata.key())).collect()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<Key> {
        let pod = change.object();
        let open =
            |claim: Arc<Claim>| claim.metadata.annotation(annotations::BIND_COMPLETED).is_none();
        let names = pod.claim_names();
        let keys = names.map(|(name, _)| ObjectKey::new(pod.metadata.namespace.clone(), name));
        keys.filter(|key| self.claims.get(key).is_some_and(open)).map(Key::Claim).collect()
    }
}
