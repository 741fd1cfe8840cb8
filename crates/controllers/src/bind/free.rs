//! Free volumes, kept in the order in which claims look for them.
//!
//! A claim wants the smallest volume that is large enough, among those with its class, its mode and
//! its attributes class, and with the fewest access modes. Kept in that order, the volume is found
//! without a look at all the others, however many there are.
//!
//! The order follows the watch, which may lag behind our own writes. So what is found here is
//! looked up again in the cache, and passed over when it is not free any more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use longshore_cluster::Change;
use longshore_core::model::{
    AccessMode, ObjectKey, Quantity, VolumeMode, VolumeName, VolumePhase,
    kinds::{Claim, Volume},
};
use parking_lot::Mutex;

/// What all volumes of a group have in common, beside their class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    mode: VolumeMode,
    attributes: String,
    access: BTreeSet<AccessMode>,
}

type Sorted = BTreeMap<Group, BTreeSet<(Quantity, VolumeName)>>;

/// The order.
#[derive(Default)]
pub(super) struct FreeVolumes {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_class: HashMap<String, Sorted>,
    places: HashMap<VolumeName, (String, Group, Quantity)>,
}

impl FreeVolumes {
    /// Takes a change of a volume in.
    pub(super) fn observe(&self, change: &Change<Volume>) {
        match change {
            Change::Applied { new, .. } => self.inner.lock().put(new),
            Change::Deleted { old } => self.inner.lock().remove(&old.name()),
        }
    }

    /// The best free volume of every group that may answer the claim. `get` gives a volume as it
    /// stands; a volume that is not free, or that `usable` refuses, gives way to the next one.
    pub(super) fn best(
        &self,
        claim: &Claim,
        get: impl Fn(&ObjectKey) -> Option<Arc<Volume>>,
        usable: impl Fn(&Volume) -> bool,
    ) -> Vec<Arc<Volume>> {
        let inner = self.inner.lock();
        let Some(groups) = inner.by_class.get(claim.class_name()) else { return Vec::new() };
        let attributes = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        let fits = |group: &Group| {
            group.mode == *claim.volume_mode()
                && group.attributes == attributes
                && claim.spec.access_modes.iter().all(|mode| group.access.contains(mode))
        };
        let selector = claim.spec.selector.as_ref();
        let best_of = |volumes: &BTreeSet<(Quantity, VolumeName)>| {
            let large_enough = volumes.range((claim.request(), VolumeName::default())..);
            large_enough.map(|(_, name)| ObjectKey::cluster(name)).find_map(|key| {
                get(&key).filter(|volume| {
                    is_free(volume)
                        && selector.is_none_or(|one| one.matches(&volume.metadata.labels))
                        && usable(volume)
                })
            })
        };
        groups.iter().filter(|(group, _)| fits(group)).filter_map(|(_, all)| best_of(all)).collect()
    }
}

fn is_free(volume: &Volume) -> bool {
    volume.spec.claim_ref.is_none()
        && volume.status.phase == VolumePhase::Available
        && !volume.metadata.deleting()
}

/// New volumes have their place in the order before they are free: our own write makes them so, and
/// a claim may come between that write and the watch that shows it. They are passed over until then.
fn may_be_free_next(volume: &Volume) -> bool {
    volume.spec.claim_ref.is_none()
        && (volume.status.phase.is_empty()
            || matches!(volume.status.phase, VolumePhase::Pending | VolumePhase::Available))
        && !volume.metadata.deleting()
}

impl Inner {
    fn put(&mut self, volume: &Volume) {
        self.remove(&volume.name());
        if !may_be_free_next(volume) {
            return;
        }
        let group = Group {
            mode: volume.volume_mode().clone(),
            attributes: volume.spec.volume_attributes_class_name.clone().unwrap_or_default(),
            access: volume.spec.access_modes.iter().cloned().collect(),
        };
        let (class, name, size) =
            (volume.class_name().to_owned(), volume.name(), volume.capacity());
        let sorted = self.by_class.entry(class.clone()).or_default();
        sorted.entry(group.clone()).or_default().insert((size, name.clone()));
        self.places.insert(name, (class, group, size));
    }

    fn remove(&mut self, name: &VolumeName) {
        let Some((class, group, size)) = self.places.remove(name) else { return };
        let Some(sorted) = self.by_class.get_mut(&class) else { return };
        if let Some(volumes) = sorted.get_mut(&group) {
            volumes.remove(&(size, name.clone()));
            if volumes.is_empty() {
                sorted.remove(&group);
            }
        }
        if sorted.is_empty() {
            self.by_class.remove(&class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, size: &str, spec: Value) -> Arc<Volume> {
        let mut object = json!({"metadata": {"name": name},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Available"}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn claim(size: &str, spec: Value) -> Claim {
        let mut object = json!({"metadata": {"name": "c", "namespace": "default"},
            "spec": {"resources": {"requests": {"storage": size}}, "accessModes": ["ReadWriteOnce"]}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn find(volumes: &[Arc<Volume>], claim: &Claim) -> Vec<String> {
        let free = FreeVolumes::default();
        volumes.iter().for_each(|volume| free.inner.lock().put(volume));
        let get = |key: &ObjectKey| {
            volumes.iter().find(|volume| volume.metadata.name == key.name).cloned()
        };
        let found = free.best(claim, get, |volume| volume.metadata.name != "held");
        let mut names: Vec<_> = found.iter().map(|volume| volume.metadata.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_smallest_that_is_large_enough_of_every_group() {
        let none = || json!({});
        let many = json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]});
        let volumes = [
            volume("held", "2Gi", none()),
            volume("small", "1Gi", none()),
            volume("large", "9Gi", none()),
            volume("right", "3Gi", none()),
            volume("many", "2Gi", many.clone()),
            volume("block", "2Gi", json!({"volumeMode": "Block"})),
            volume("gold", "2Gi", json!({"storageClassName": "gold"})),
            volume("fast", "2Gi", json!({"volumeAttributesClassName": "fast"})),
            volume("taken", "2Gi", json!({"claimRef": {"name": "x", "namespace": "y"}})),
        ];
        assert_eq!(find(&volumes, &claim("2Gi", none())), ["many", "right"]);
        assert_eq!(find(&volumes, &claim("2Gi", many)), ["many"]);
        assert_eq!(find(&volumes, &claim("20Gi", none())), [""; 0]);
        assert_eq!(find(&volumes, &claim("1Gi", json!({"volumeMode": "Block"}))), ["block"]);
        assert_eq!(find(&volumes, &claim("1Gi", json!({"storageClassName": "gold"}))), ["gold"]);
        let fast = json!({"volumeAttributesClassName": "fast"});
        assert_eq!(find(&volumes, &claim("1Gi", fast)), ["fast"]);
        let labelled = json!({"selector": {"matchLabels": {"a": "b"}}});
        assert_eq!(find(&volumes, &claim("1Gi", labelled)), [""; 0]);
    }

    #[test]
    fn a_volume_that_our_own_write_freed_is_found_before_the_watch_shows_it() {
        let free = FreeVolumes::default();
        let mut new = Volume::clone(&volume("small", "2Gi", json!({})));
        new.status.phase = VolumePhase::default();
        free.inner.lock().put(&new);
        free.inner.lock().put(&volume("large", "5Gi", json!({})));
        let names = |freed: bool| -> Vec<String> {
            let get = |key: &ObjectKey| match key.name.as_str() {
                "small" if freed => Some(volume("small", "2Gi", json!({}))),
                "small" => Some(Arc::new(new.clone())),
                _ => Some(volume("large", "5Gi", json!({}))),
            };
            let found = free.best(&claim("1Gi", json!({})), get, |_| true);
            found.iter().map(|volume| volume.metadata.name.clone()).collect()
        };
        assert_eq!(names(false), ["large"], "it has no phase yet");
        assert_eq!(names(true), ["small"], "its phase is written, the watch is late");
    }

    #[test]
    fn a_volume_has_one_place() {
        let free = FreeVolumes::default();
        let get = |_: &ObjectKey| Some(volume("pv", "5Gi", json!({})));
        free.inner.lock().put(&volume("pv", "1Gi", json!({})));
        free.inner.lock().put(&volume("pv", "5Gi", json!({})));
        assert_eq!(free.best(&claim("1Gi", json!({})), get, |_| true).len(), 1);
        free.inner.lock().put(&volume("pv", "5Gi", json!({"claimRef": {"name": "x"}})));
        assert!(free.best(&claim("1Gi", json!({})), get, |_| true).is_empty());
        assert!(free.inner.lock().by_class.is_empty() && free.inner.lock().places.is_empty());
    }
}
