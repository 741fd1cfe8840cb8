//! Puts the certificate of the API server's CA into every namespace, for the pods there.
//!
//! [`longshore_core::root_ca`] decides. In a cluster this is kube-controller-manager's
//! `root-ca-certificate-publisher-controller`; it runs where the API server is ours.

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Context, Loop, Outcome, Patch, QueueOptions, Reconciler, Scope, Sources,
    Subject, WorkQueue,
};
use longshore_core::{
    model::{
        HasMeta as _, ObjectKey,
        kinds::{ConfigMap, Namespace},
    },
    root_ca::{self, CONFIG_MAP, Step},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// The name of the loop's lease.
pub const NAME: &str = "root-ca-certificate-publisher-controller";

/// The publisher; its keys are names of namespaces.
pub struct RootCa {
    api: Api,
    namespaces: Cache<Namespace>,
    /// Of config maps only those that are published.
    maps: Cache<ConfigMap>,
    queue: WorkQueue<String>,
    /// PEM.
    ca: String,
}

impl Reconciler for RootCa {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.namespaces, |_, change| Some(change.object().metadata.name.clone()));
        sources.on(&self.maps, |_, change| Some(change.object().key().namespace));
    }

    fn subject(&self, key: &String) -> Subject {
        Subject::key(key)
    }

    async fn reconcile(&self, namespace: &String) -> Outcome {
        match self.publish(namespace).await {
            Ok(()) => Outcome::Done,
            // The namespace has just gone.
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }
}

impl RootCa {
    /// A loop that does nothing until [`Self::run`]. Its cache ends with `shutdown`.
    #[must_use]
    pub fn new(context: &Context, ca: &str, shutdown: &CancellationToken) -> Self {
        let ours = Scope::fields(format!("metadata.name={CONFIG_MAP}"));
        Self {
            api: context.api.clone(),
            namespaces: context.cache(),
            maps: Cache::start(&context.api, ours, shutdown).0,
            queue: context.queue("root_ca_cert_publisher", QueueOptions::controller()),
            ca: ca.to_owned(),
        }
    }

    /// Publishes until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("root-ca", Arc::new(self), queue).run(&shutdown).await;
    }

    async fn publish(&self, namespace: &str) -> Result<(), ApiError> {
        let key = ObjectKey::new(namespace, CONFIG_MAP);
        let (living, map) =
            (self.namespaces.get(&ObjectKey::cluster(namespace)), self.maps.get(&key));
        let step = root_ca::decide(living.as_deref(), map.as_deref(), &self.ca);
        let (annotations, data) = (root_ca::annotations(), root_ca::data(&self.ca));
        match step {
            Step::Nothing => Ok(()),
            Step::Create => {
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": CONFIG_MAP, "namespace": namespace, "annotations": annotations},
                    "data": data,
                });
                match self.api.create::<ConfigMap>(&object).await {
                    Err(error) if !error.is_already_exists() => Err(error),
                    _ => Ok(()),
                }
            }
            Step::Replace => {
                let mut patch = json!({"metadata": {"annotations": annotations}, "data": data});
                // A merge leaves what others have put into it, unless it is named.
                let foreign = map.iter().flat_map(|map| map.data.keys());
                for key in foreign.filter(|key| *key != root_ca::KEY) {
                    patch["data"][key] = serde_json::Value::Null;
                }
                self.api.patch::<ConfigMap>(&key, Patch::Merge(&patch)).await.map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_cluster::DeleteParams;
    use longshore_core::model::kinds::{ConfigMap, Namespace};

    use super::*;
    use crate::testing::Bench;

    fn key() -> ObjectKey {
        ObjectKey::new("team", CONFIG_MAP)
    }

    async fn published(bench: &Bench, ca: &str) {
        bench.until::<ConfigMap>(&key(), |map| map.data == root_ca::data(ca)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn every_namespace_has_the_certificate_and_keeps_it() {
        let bench = Bench::start().await;
        let mut process = bench.process();
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let publisher = RootCa::new(&process.context, "CA", &stop);
        process.spawn(publisher.run(stop.clone()));
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
        bench.create::<Namespace>(namespace).await;
        published(&bench, "CA").await;
        bench.merge::<ConfigMap>(&key(), json!({"data": {"ca.crt": "changed", "x": "y"}})).await;
        published(&bench, "CA").await;
        bench.api.delete::<ConfigMap>(&key(), &DeleteParams::default()).await.expect("deleted");
        published(&bench, "CA").await;
    }
}
