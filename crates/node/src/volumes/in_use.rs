//! The lists of the node object: what is attached to the node, and what it uses.

use std::collections::BTreeSet;

use longshore_cluster::{ApiError, Patch};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Node;
use longshore_core::names::UniqueName;

use super::{State, VolumeManager};

impl VolumeManager {
    /// Reads the lists of the node object.
    pub(super) fn observe_node(&self, state: &mut State) {
        let Some(node) = self.deps.node.get(&ObjectKey::cluster(&self.deps.node_name)) else {
            return;
        };
        state.world.node.attached =
            node.status.volumes_attached.iter().map(|volume| volume.name.clone()).collect();
        if state.in_use_written.is_none() {
            state.world.node.in_use = node.status.volumes_in_use.iter().cloned().collect();
        }
    }

    /// Writes to the node object which volumes are in use, as soon as the list changes.
    pub(super) async fn write_in_use(&self) -> Result<(), ApiError> {
        let list = {
            let mut state = self.state();
            let Some(list) = state.world.volumes_in_use(self.deps.list_staged) else {
                return Ok(());
            };
            if self.is_written(&state, &list) {
                return Ok(());
            }
            // What leaves the list counts as left from now on: the write may land at any moment.
            state.world.node.in_use.retain(|name| list.contains(name));
            list
        };
        let patch = serde_json::json!({"status": {"volumesInUse": list}});
        let key = ObjectKey::cluster(&self.deps.node_name);
        self.deps.api.patch_status::<Node>(&key, Patch::Merge(&patch)).await?;
        self.deps.faults.at("in-use.written");
        {
            let mut state = self.state();
            state.world.node.in_use = list.iter().cloned().collect();
            state.in_use_written = Some(list);
        }
        self.enqueue();
        Ok(())
    }

    fn is_written(&self, state: &State, list: &[UniqueName]) -> bool {
        match &state.in_use_written {
            Some(written) => written == list,
            None => {
                let in_use: BTreeSet<&UniqueName> = state.world.node.in_use.iter().collect();
                self.deps.node.get(&ObjectKey::cluster(&self.deps.node_name)).is_some()
                    && in_use == list.iter().collect()
            }
        }
    }
}
