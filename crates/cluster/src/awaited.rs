//! Wakes a pass when an object that it lacked appears or changes.
//!
//! A pass that fails because a Secret is not there would wait for its backoff, which grows to minutes.
//! Whoever reads such an object says so with [`Api::wake_on_change`]. It knows the pass it runs in
//! ([`with_wake`]; every [`crate::Loop`] does that), so nothing has to be handed through. One watch of
//! the object by its name serves all that wait for it, and ends with the first change.
//! `docs/decisions/wake-ups.md` says what this costs on a large cluster.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use longshore_core::model::{Kind, ObjectKey};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::api::{Api, ListParams};
use crate::error::ApiError;

/// How many objects are watched at once; passes that lack another one wait for their backoff.
const MOST: usize = 64;
/// How long an object is watched. A pass that still lacks it says so again at its next attempt,
/// and backoffs are shorter than this.
const LIFE: Duration = Duration::from_secs(600);
/// Pause between reads where watching is not permitted or fails.
const POLL: Duration = Duration::from_secs(10);

tokio::task_local! {
    static PASS: Wake;
}

/// Starts a pass again, without its backoff. Cheap to clone.
#[derive(Clone)]
pub struct Wake {
    /// Two of the same pass are one.
    id: u64,
    call: Arc<dyn Fn() + Send + Sync>,
}

impl Wake {
    /// `pass` distinguishes it from those of other passes.
    pub fn new(pass: impl Hash, call: impl Fn() + Send + Sync + 'static) -> Self {
        let mut hasher = DefaultHasher::new();
        pass.hash(&mut hasher);
        Self { id: hasher.finish(), call: Arc::new(call) }
    }
}

/// Runs a pass that `wake` starts again when something that it lacked appears.
pub async fn with_wake<F: Future>(wake: Wake, pass: F) -> F::Output {
    PASS.scope(wake, pass).await
}

/// The objects that passes wait for, with the passes.
#[derive(Default)]
pub(crate) struct Awaited {
    waiting: Mutex<HashMap<(&'static str, ObjectKey), Vec<Wake>>>,
}

impl Awaited {
    /// Adds a pass; true when nobody waited for the object before.
    fn add(&self, kind: &'static str, key: &ObjectKey, wake: Wake) -> bool {
        let mut waiting = self.waiting.lock();
        let full = waiting.len() >= MOST;
        match waiting.get_mut(&(kind, key.clone())) {
            Some(wakes) => {
                wakes.retain(|one| one.id != wake.id);
                wakes.push(wake);
                false
            }
            None if full => false,
            None => {
                waiting.insert((kind, key.clone()), vec![wake]);
                true
            }
        }
    }

    fn take(&self, kind: &'static str, key: &ObjectKey) -> Vec<Wake> {
        self.waiting.lock().remove(&(kind, key.clone())).unwrap_or_default()
    }
}

impl Api {
    /// Starts the current pass again as soon as the object exists in another version than `seen`;
    /// `None` when it was not there. Does nothing outside of a pass.
    pub fn wake_on_change<T: Kind + 'static>(&self, key: &ObjectKey, seen: Option<&str>) {
        let Ok(wake) = PASS.try_with(Clone::clone) else { return };
        if !self.awaited().add(T::KIND, key, wake) {
            return;
        }
        let (api, key, seen) = (self.clone(), key.clone(), seen.map(str::to_owned));
        tokio::spawn(async move {
            let changed = wait::<T>(&api, &key, seen.as_deref());
            let changed = tokio::time::timeout(LIFE, changed).await.is_ok();
            let wakes = api.awaited().take(T::KIND, &key);
            if changed {
                tracing::debug!(kind = T::KIND, %key, waiting = wakes.len(), "what was missing is there");
                wakes.iter().for_each(|wake| (wake.call)());
            }
        });
    }
}

/// Waits until the object exists in another version.
async fn wait<T: Kind>(api: &Api, key: &ObjectKey, seen: Option<&str>) {
    loop {
        match watch::<T>(api, key, seen).await {
            Ok(true) => return,
            // The server ends watches from time to time.
            Ok(false) => continue,
            Err(error) => {
                tracing::debug!(kind = T::KIND, %key, %error, "not watched; read instead")
            }
        }
        tokio::time::sleep(POLL).await;
        let found = api.get_raw::<T>(key).await.ok().flatten();
        let version = found.as_ref().and_then(|one| one["metadata"]["resourceVersion"].as_str());
        if version.is_some() && version != seen {
            return;
        }
    }
}

/// Watches one object by its name; false when the watch ended without a change.
async fn watch<T: Kind>(api: &Api, key: &ObjectKey, seen: Option<&str>) -> Result<bool, ApiError> {
    let name = format!("metadata.name={}", key.name);
    let params = ListParams { field_selector: Some(name), ..ListParams::default() };
    let namespace = T::NAMESPACED.then_some(key.namespace.as_str());
    let extra = [
        ("sendInitialEvents", "true"),
        ("resourceVersionMatch", "NotOlderThan"),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", "300"),
    ];
    let mut lines = api.watch::<T>(namespace, &params, &extra).await?;
    while let Some(line) = lines.next().await? {
        let Ok(event) = serde_json::from_slice::<Event>(&line) else { continue };
        let exists = matches!(event.kind.as_str(), "ADDED" | "MODIFIED");
        let meta = event.object.metadata;
        if exists && meta.name == key.name && Some(meta.resource_version.as_str()) != seen {
            return Ok(true);
        }
        if event.kind == "ERROR" {
            break;
        }
    }
    // A server that ends watches at once must not be asked again at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(false)
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Meta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    resource_version: String,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use longshore_apiserver::{ApiServer, Config};
    use longshore_core::model::kinds::{ConfigMap, Secret};
    use longshore_testing::eventually;
    use serde_json::json;

    use super::*;
    use crate::api::Patch;
    use crate::secrets::read_secret;

    fn counting(pass: &str) -> (Wake, Arc<AtomicU32>) {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let call = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (Wake::new(pass, call), count)
    }

    async fn until(count: &AtomicU32, wanted: u32) {
        eventually("a pass is woken", || count.load(Ordering::Relaxed) >= wanted).await;
    }

    #[tokio::test]
    async fn secret_that_appears_wakes_each_pass_that_lacked_it_once() {
        let server = ApiServer::open(Config::memory()).await.unwrap();
        let api = Api::new(server.client());
        let key = ObjectKey::new("default", "creds");
        let (first, woken) = counting("first");
        let (second, also) = counting("second");
        for wake in [&first, &first, &second] {
            let read = with_wake(wake.clone(), read_secret(&api, &key)).await;
            assert!(read.is_err(), "not there yet");
        }
        let other = json!({"metadata": {"name": "other", "namespace": "default"}});
        api.create::<Secret>(&other).await.unwrap();
        assert_eq!(woken.load(Ordering::Relaxed), 0, "another secret is none of its business");
        let object = json!({"metadata": {"name": "creds", "namespace": "default"}});
        api.create::<Secret>(&object).await.unwrap();
        until(&woken, 1).await;
        until(&also, 1).await;
        assert_eq!(woken.load(Ordering::Relaxed), 1, "one pass is woken once");
        assert!(api.awaited().waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn object_that_was_seen_wakes_when_it_changes_and_a_reader_without_a_pass_does_not_wait()
    {
        let server = ApiServer::open(Config::memory()).await.unwrap();
        let api = Api::new(server.client());
        let key = ObjectKey::new("default", "map");
        api.wake_on_change::<ConfigMap>(&key, None);
        assert!(api.awaited().waiting.lock().is_empty());
        let object = json!({"metadata": {"name": "map", "namespace": "default"}});
        let made = api.create::<ConfigMap>(&object).await.unwrap();
        let version = made["metadata"]["resourceVersion"].as_str().unwrap();
        let (wake, woken) = counting("pass");
        with_wake(wake, async { api.wake_on_change::<ConfigMap>(&key, Some(version)) }).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(woken.load(Ordering::Relaxed), 0, "the version that was seen");
        let patch = json!({"data": {"key": "value"}});
        api.patch::<ConfigMap>(&key, Patch::Merge(&patch)).await.unwrap();
        until(&woken, 1).await;
    }

    #[tokio::test]
    async fn reader_that_may_not_watch_reads_the_named_object_now_and_then() {
        let server = ApiServer::open(Config::memory()).await.unwrap();
        let admin = Api::new(server.client());
        let rule = |kind: &str, more: serde_json::Value| {
            let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"name": "reader", "namespace": "default"}});
            object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            object
        };
        let role = rule(
            "Role",
            json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}),
        );
        let binding = rule(
            "RoleBinding",
            json!({"subjects": [{"kind": "User", "name": "reader",
            "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}}),
        );
        for (plural, object) in [("roles", role), ("rolebindings", binding)] {
            let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{plural}");
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(serde_json::to_vec(&object).unwrap()).unwrap();
            server.client().request::<serde_json::Value>(request).await.unwrap();
        }
        let api = Api::new(server.client_as("reader", std::iter::empty::<&str>()));
        let key = ObjectKey::new("default", "creds");
        let (wake, woken) = counting("pass");
        assert!(with_wake(wake, read_secret(&api, &key)).await.is_err());
        let object = json!({"metadata": {"name": "creds", "namespace": "default"}});
        admin.create::<Secret>(&object).await.unwrap();
        until(&woken, 1).await;
    }
}
