//! Writes the attached volumes into the node's `status.volumesAttached`.

use longshore_cluster::{ApiError, OptionalExt as _, Patch};
use longshore_core::{
    attach::Reported,
    model::{NodeName, ObjectKey, kinds::Node},
};
use serde_json::{Value, json};

use super::Controller;

impl Controller {
    /// Writes a node's report if it has to be written. On failure it has to be written again.
    pub(super) async fn report(&self, node: &NodeName) -> Result<(), ApiError> {
        // Two writers of one node would overtake each other.
        let lock = self.state.report_lock(node);
        let _held = lock.lock().await;
        let Some(list) = self.state.lock().actual.take_report(node) else { return Ok(()) };
        let key = ObjectKey::cluster(node);
        if self.nodes.get(&key).is_none() {
            return Ok(());
        }
        let patch = report_patch(&list);
        let written = self.api.patch_status::<Node>(&key, Patch::Strategic(&patch)).await;
        match written.optional() {
            Ok(written) => written.iter().for_each(|node| self.nodes.assume(node)),
            Err(error) => {
                self.state.change(|state| state.actual.rewrite_report(node));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// The whole list is replaced; an empty one is taken off the object.
fn report_patch(list: &[Reported]) -> Value {
    let entry =
        |volume: &Reported| json!({"name": volume.name.as_str(), "devicePath": volume.device_path});
    let list: Vec<Value> = list.iter().map(entry).collect();
    let list = if list.is_empty() { Value::Null } else { Value::Array(list) };
    json!({"status": {"volumesAttached": list}})
}
