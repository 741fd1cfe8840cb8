//! A whole loop: it keeps the label `example.com/volume` of every claim equal to the name of the
//! volume that the claim is bound to.
//!
//! Run it against any cluster: `KUBECONFIG=… cargo run -p longshore-cluster --example label_claims`.

use std::sync::Arc;

use longshore_cluster::{
    ApiError, Cache, Change, ClientConfig, Context, Loop, Metrics, ObjectKey, Outcome, Patch,
    QueueOptions, Reconciler, Sources, Subject, api::Api, shutdown,
};
use longshore_core::model::kinds::Claim;
use serde_json::json;

const LABEL: &str = "example.com/volume";

/// The rule. It sees the claim and nothing else, so a table of cases can test it.
fn label_to_write(claim: &Claim) -> Option<&str> {
    let bound_to = claim.spec.volume_name.as_str();
    let label = claim.metadata.labels.get(LABEL).map_or("", String::as_str);
    (!claim.metadata.deleting() && label != bound_to).then_some(bound_to)
}

struct LabelClaims {
    api: Api,
    claims: Cache<Claim>,
}

impl Reconciler for LabelClaims {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.claims, |_, change| match change {
                Change::Applied { new, .. } => Some(new.metadata.key()),
                Change::Deleted { .. } => None,
            })
            .on_resync(&self.claims, |_, claim| [claim.metadata.key()]);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    /// Look, decide, act.
    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let Some(claim) = self.claims.get(key) else { return Outcome::Done };
        let Some(volume) = label_to_write(&claim) else { return Outcome::Done };
        match self.write(key, volume).await {
            Ok(()) => Outcome::Done,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }
}

impl LabelClaims {
    async fn write(&self, key: &ObjectKey, volume: &str) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"labels": {LABEL: volume}}});
        let written = self.api.patch::<Claim>(key, Patch::Merge(&patch)).await?;
        // The next pass must not be older than this write, however late the watch is.
        self.claims.assume(&written);
        tracing::info!(volume, "claim labelled");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    longshore_cluster::telemetry::init_logging(&Default::default())?;
    let shutdown = shutdown::on_signals()?;
    let api = Api::new(ClientConfig::default().client().await?);
    let context = Context::new(api, Metrics::new(), &shutdown);
    let queue = context.queue("label-claims", QueueOptions::default());
    let reconciler = LabelClaims { claims: context.cache(), api: context.api };
    Loop::new("label", Arc::new(reconciler), queue).workers(4).run(&shutdown).await;
    Ok(())
}
