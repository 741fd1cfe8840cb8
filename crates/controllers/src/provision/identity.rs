//! Which cluster this is, for the intent records: the UID of its namespace `kube-system`.

use longshore_cluster::{Api, ApiError};
use longshore_core::{
    backoff::Backoff,
    model::{ObjectKey, Uid, kinds::Namespace},
    words,
};

const NAMESPACE: &str = "kube-system";

/// The UID of this cluster; `None` where it may not be read. Other failures are waited for.
pub(super) async fn of_cluster(api: &Api, pauses: Backoff) -> Option<Uid> {
    let mut pauses = pauses.series();
    loop {
        let error = match api.get::<Namespace>(&ObjectKey::cluster(NAMESPACE)).await {
            Ok(Some(namespace)) => return Some(namespace.metadata.uid),
            Ok(None) => {
                tracing::warn!(
                    "there is no namespace {NAMESPACE}: intent records do not say which cluster wrote them"
                );
                return None;
            }
            Err(error @ ApiError::Forbidden { .. }) => {
                tracing::warn!(
                    %error,
                    "intent records do not say which cluster wrote them, so a record that a backup brings elsewhere is \
                     carried out there; grant the right as in deploy/rbac/leak-guard.yaml"
                );
                return None;
            }
            Err(error) => error,
        };
        let pause = pauses.pause();
        tracing::warn!(%error, retry_in = words::time(pause), "cannot ask which cluster this is");
        tokio::time::sleep(pause).await;
    }
}
