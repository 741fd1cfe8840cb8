//! Writes the driver's GetCapacity response into one CSIStorageCapacity.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{ApiError, Outcome, Patch};
use longshore_core::{
    model::{ObjectKey, Quantity, kinds::CsiStorageCapacity},
    provision::capacity::{DRIVER_LABEL, Item, MANAGER_LABEL, Room, is_current, is_owned_by},
};
use longshore_csi::{
    CsiError,
    v1::{GetCapacityRequest, Topology},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Inner;

/// How long the watch may take to show an object that we made.
const WATCH_DELAY: Duration = Duration::from_secs(10);
/// When to look again while it takes.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Inner {
    pub(super) async fn refresh(&self, item: &Item) -> Outcome {
        let known = self.book.lock().object(item);
        match known {
            None => return Outcome::Done,
            Some(None) if self.is_expected(item) => return Outcome::After(LOOK_AGAIN),
            Some(_) => {}
        }
        let Some(class) = self.classes.get(&ObjectKey::cluster(&item.class)) else {
            return Outcome::Done;
        };
        let room = match self.ask(item, class.parameters.clone()).await {
            Ok(room) => room,
            Err(error) => return Outcome::retry(error),
        };
        // The world may have moved on while the driver thought.
        let Some(object) = self.book.lock().object(item) else { return Outcome::Done };
        let written = match object {
            None => self.make(item, room).await,
            Some(object) if is_current(&object, room, self.config.owner.as_ref()) => Ok(()),
            Some(object) => self.correct(&object, room).await,
        };
        written.into()
    }

    fn is_expected(&self, item: &Item) -> bool {
        let mut expected = self.expected.lock();
        let waits = expected.get(item).is_some_and(|until| *until > Instant::now());
        if !waits {
            expected.remove(item);
        }
        waits
    }

    /// The parameters are passed as the class has them, with what is meant for us.
    async fn ask(
        &self,
        item: &Item,
        parameters: std::collections::BTreeMap<String, String>,
    ) -> Result<Room, CsiError> {
        let request = GetCapacityRequest {
            parameters,
            accessible_topology: Some(Topology { segments: item.segment.clone() }),
            ..GetCapacityRequest::default()
        };
        let answer = self.csi.get_capacity(request).await?;
        Ok(Room { capacity: answer.available_capacity, maximum: answer.maximum_volume_size })
    }

    async fn make(&self, item: &Item, room: Room) -> Result<(), ApiError> {
        let config = &self.config;
        let mut object = json!({
            "metadata": {
                "generateName": "csisc-",
                "namespace": config.namespace,
                "labels": {DRIVER_LABEL: self.driver, MANAGER_LABEL: config.manager},
            },
            "storageClassName": item.class,
            "nodeTopology": {"matchLabels": item.segment},
            "capacity": quantity(room.capacity),
        });
        if item.segment.is_empty() {
            object["nodeTopology"] = json!({});
        }
        if let Some(maximum) = room.maximum {
            object["maximumVolumeSize"] = quantity(maximum);
        }
        if let Some(owner) = &config.owner {
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        self.api.create::<CsiStorageCapacity>(&object).await?;
        // What the book knows comes from the watch alone, so until that shows the object another
        // turn would make a second one.
        let seen = self.book.lock().object(item).is_none_or(|object| object.is_some());
        if !seen {
            self.expected.lock().insert(item.clone(), Instant::now() + WATCH_DELAY);
        }
        Ok(())
    }

    async fn correct(&self, object: &Arc<CsiStorageCapacity>, room: Room) -> Result<(), ApiError> {
        let meta = &object.metadata;
        let mut patch = json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "capacity": quantity(room.capacity),
            "maximumVolumeSize": room.maximum.map(quantity),
        });
        if let Some(owner) = self.config.owner.as_ref().filter(|owner| !is_owned_by(object, owner))
        {
            let mut owners = meta.owner_references.clone();
            owners.push(owner.clone());
            patch["metadata"]["ownerReferences"] = json!(owners);
        }
        let patch = Patch::Merge(&patch);
        self.api.patch::<CsiStorageCapacity>(&meta.key(), patch).await.map(drop)
    }
}

fn quantity(bytes: i64) -> Value {
    json!(Quantity::from_bytes(bytes).to_string())
}
