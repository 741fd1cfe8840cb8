//! Which kinds are served now: the built-in ones and those of definitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::crd;
use crate::registry::{Registry, Resource};

/// A definition that is served.
struct Served {
    uid: Value,
    spec: Value,
    deleting: bool,
    resources: Vec<Arc<Resource>>,
    /// Ends with the definition, not with a change of it.
    end: CancellationToken,
}

/// The registry, replaced as a whole when a definition comes, changes or goes.
pub(super) struct Kinds {
    registry: ArcSwap<Registry>,
    served: Mutex<BTreeMap<String, Served>>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self {
            registry: ArcSwap::from_pointee(Registry::builtin()),
            served: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Kinds {
    pub(super) fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// Serves these definitions and no others. What has not changed is not compiled again.
    pub(super) fn serve<'a>(&self, definitions: impl Iterator<Item = &'a Value>) {
        let mut served = self.served.lock();
        let mut before = std::mem::take(&mut *served);
        let mut changed = false;
        for definition in definitions {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            let deleting = !definition["metadata"]["deletionTimestamp"].is_null();
            let uid = &definition["metadata"]["uid"];
            let known = before.remove(name).filter(|known| {
                known.uid == *uid || {
                    known.end.cancel();
                    false
                }
            });
            let entry = match known {
                Some(same) if same.deleting == deleting && same.spec == definition["spec"] => same,
                other => {
                    changed = true;
                    let end = other.map(|known| known.end).unwrap_or_default();
                    Served {
                        uid: uid.clone(),
                        spec: definition["spec"].clone(),
                        deleting,
                        resources: compile(definition, &end),
                        end,
                    }
                }
            };
            served.insert(name.to_owned(), entry);
        }
        if !changed && before.is_empty() {
            return;
        }
        let mut all: Vec<Arc<Resource>> =
            served.values().flat_map(|entry| entry.resources.iter().cloned()).collect();
        all.sort_by_cached_key(|r| {
            (r.group.clone(), crd::version_rank(&r.version), r.plural.clone())
        });
        self.registry.store(Arc::new(self.registry.load().with_custom(all)));
        // The watches of a kind that is gone end.
        before.values().for_each(|gone| gone.end.cancel());
    }
}

/// The kinds of a definition. Whatever is stored, the server starts, and its other kinds are served.
fn compile(definition: &Value, end: &CancellationToken) -> Vec<Arc<Resource>> {
    let compiled = std::panic::AssertUnwindSafe(|| crd::resources(definition, end));
    std::panic::catch_unwind(compiled).unwrap_or_else(|_| {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        tracing::error!(name, "the definition cannot be served; change or delete it");
        Vec::new()
    })
}
