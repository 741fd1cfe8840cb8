//! Garbage collection by owner references.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use longshore_core::model::keys::finalizers::{FOREGROUND, ORPHAN};

use super::target;
use crate::error::{ApiResult, Status};
use crate::heavy;
use crate::ops::{Core, DeleteOptions, Part, Propagation, Source, WriteOptions};
use crate::patch::Patch;
use crate::store::{Change, Event, Key, Stored};

/// Who owns whom.
#[derive(Default)]
pub(super) struct Index {
    /// Where objects with dependents or owners are, by uid.
    places: HashMap<String, Key>,
    /// Dependents by the owner's uid. An object can name thousands of owners: each costs little here.
    dependents: HashMap<Arc<str>, HashSet<Arc<Key>>>,
    /// Owners of each dependent, to take it out again.
    owners: BTreeMap<Arc<Key>, Vec<Arc<str>>>,
}

impl Index {
    /// Takes in a change; returns objects that have to be looked at.
    pub(super) fn observe(&mut self, event: &Event) -> Vec<Key> {
        self.forget(&event.key);
        let object = &event.object;
        if event.change == Change::Delete {
            self.places.remove(&object.uid);
            let mut suspects = self.dependents(&object.uid);
            // An owner may be waiting for this one to go.
            suspects.extend(object.owners.iter().filter_map(|o| self.places.get(o)).cloned());
            return suspects;
        }
        self.places.insert(object.uid.clone(), event.key.clone());
        if !object.owners.is_empty() {
            let key = Arc::new(event.key.clone());
            let mut owners = Vec::with_capacity(object.owners.len());
            for owner in &object.owners {
                let known = self.dependents.get_key_value(owner.as_str());
                let owner =
                    known.map_or_else(|| Arc::from(owner.as_str()), |(uid, _)| Arc::clone(uid));
                let dependents = self.dependents.entry(Arc::clone(&owner)).or_default();
                dependents.insert(Arc::clone(&key));
                owners.push(owner);
            }
            self.owners.insert(key, owners);
        }
        let mut suspects = Vec::new();
        if object.deleting || !object.owners.is_empty() {
            suspects.push(event.key.clone());
        }
        // A dependent that lost its reference, or began to go, may free its owner.
        let before = event.previous.iter().flat_map(|p| &p.owners);
        suspects.extend(before.filter_map(|o| self.places.get(o)).cloned());
        suspects
    }

    fn forget(&mut self, key: &Key) {
        for owner in self.owners.remove(key).into_iter().flatten() {
            if let Some(set) = self.dependents.get_mut(&owner) {
                set.remove(key);
                if set.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
    }

    /// Drops all objects of a resource, before they are read again.
    pub(super) fn forget_resource(&mut self, resource: &str) {
        let keys: Vec<Arc<Key>> =
            self.owners.keys().filter(|key| &*key.resource == resource).cloned().collect();
        keys.iter().for_each(|key| self.forget(key));
        self.places.retain(|_, key| &*key.resource != resource);
    }

    fn dependents(&self, uid: &str) -> Vec<Key> {
        let found = self.dependents.get(uid).into_iter().flatten();
        let mut found: Vec<Key> = found.map(|key| Key::clone(key)).collect();
        found.sort();
        found
    }
}

/// What is to be done about an object.
enum Due {
    Nothing,
    Orphan,
    Foreground,
    Delete,
    Change(Value),
}

/// Brings one object in line with its owners and dependents.
pub(super) async fn settle(core: &Core, index: &Index, key: &Key) -> ApiResult<()> {
    let Some(stored) = core.store.get(key) else { return Ok(()) };
    if !stored.deleting && stored.owners.is_empty() {
        return Ok(());
    }
    let _turn = match stored.body.len() {
        bytes if bytes > heavy::LARGE => core.heavy.turn(bytes, true).await,
        _ => None,
    };
    match due(core, key, &stored) {
        Due::Nothing => Ok(()),
        Due::Orphan => orphan(core, index, key, &stored).await,
        Due::Foreground => foreground(core, index, key, &stored).await,
        Due::Delete => delete(core, key, &stored, Propagation::Background).await,
        Due::Change(patch) => change(core, key, patch).await,
    }
}

fn due(core: &Core, key: &Key, stored: &Stored) -> Due {
    let object = stored.value();
    if stored.deleting {
        return match () {
            () if has_finalizer(&object, ORPHAN) => Due::Orphan,
            () if has_finalizer(&object, FOREGROUND) => Due::Foreground,
            () => Due::Nothing,
        };
    }
    let references = object["metadata"]["ownerReferences"].as_array();
    let (gone, staying): (Vec<&Value>, Vec<&Value>) =
        references.into_iter().flatten().partition(|reference| is_gone(core, key, reference));
    match (gone.is_empty(), staying.is_empty()) {
        (true, _) => Due::Nothing,
        (false, true) => Due::Delete,
        (false, false) => Due::Change(json!({"metadata": {
            "resourceVersion": stored.revision.to_string(), "ownerReferences": staying,
        }})),
    }
}

fn owner_references(object: &Value) -> Vec<Value> {
    object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == name))
}

/// Whether an owner is certainly not there. Owners of kinds we do not serve are never judged.
fn is_gone(core: &Core, dependent: &Key, reference: &Value) -> bool {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let registry = core.registry();
    let Some(resource) = registry.find_kind(text("apiVersion"), text("kind")) else {
        return false;
    };
    let namespace = if resource.namespaced { dependent.namespace.as_str() } else { "" };
    let found = core.store.get(&resource.key(namespace, text("name")));
    found.is_none_or(|owner| owner.uid != text("uid"))
}

/// Takes the owner out of its dependents, then lets it go.
async fn orphan(core: &Core, index: &Index, key: &Key, owner: &Stored) -> ApiResult<()> {
    for dependent in index.dependents(&owner.uid) {
        let Some(stored) = core.store.get(&dependent) else { continue };
        let mut references = owner_references(&stored.value());
        references.retain(|reference| reference["uid"] != owner.uid.as_str());
        let patch = json!({"metadata": {
            "resourceVersion": stored.revision.to_string(), "ownerReferences": references,
        }});
        change(core, &dependent, patch).await?;
    }
    drop_finalizer(core, key, owner, ORPHAN).await
}

/// Deletes the dependents and waits for those that block.
async fn foreground(core: &Core, index: &Index, key: &Key, owner: &Stored) -> ApiResult<()> {
    let mut blocked = false;
    for dependent in index.dependents(&owner.uid) {
        let Some(stored) = core.store.get(&dependent) else { continue };
        let references = owner_references(&stored.value());
        let Some(reference) = references.iter().find(|r| r["uid"] == owner.uid.as_str()) else {
            continue;
        };
        blocked |= reference["blockOwnerDeletion"] == true;
        if !stored.deleting {
            let leaf = index.dependents(&stored.uid).is_empty();
            let how = if leaf { Propagation::Background } else { Propagation::Foreground };
            delete(core, &dependent, &stored, how).await?;
            blocked &= core.store.get(&dependent).is_some() || !leaf;
        }
    }
    // Each dependent that goes brings us back here.
    if blocked { Ok(()) } else { drop_finalizer(core, key, owner, FOREGROUND).await }
}

async fn delete(core: &Core, key: &Key, stored: &Stored, how: Propagation) -> ApiResult<()> {
    let Some(target) = target(core, key) else { return Ok(()) };
    let options = DeleteOptions {
        uid: Some(stored.uid.clone()),
        propagation: Some(how),
        ..DeleteOptions::default()
    };
    done(core.delete(&target, &options).await.map(|_| ()))
}

async fn drop_finalizer(core: &Core, key: &Key, stored: &Stored, name: &str) -> ApiResult<()> {
    let mut finalizers: Vec<Value> =
        stored.value()["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.retain(|f| f != name);
    let patch = json!({"metadata": {
        "resourceVersion": stored.revision.to_string(), "finalizers": finalizers,
    }});
    change(core, key, patch).await
}

async fn change(core: &Core, key: &Key, patch: Value) -> ApiResult<()> {
    let Some(target) = target(core, key) else { return Ok(()) };
    let source = Source::Patch(Patch::Merge(patch));
    let options = WriteOptions::default();
    done(core.update(&target, Part::Main, &source, options).await.map(|_| ()))
}

/// What is gone needs no more work; a conflict comes back with the change that caused it.
fn done(result: Result<(), Status>) -> ApiResult<()> {
    match result {
        Err(status) if status.code == 404 => Ok(()),
        other => other,
    }
}
