//! Service account tokens: for drivers, which want to see them at publish, and for the pods themselves.

use std::collections::BTreeMap;

use jiff::Timestamp;
use longshore_cluster::clock;
use longshore_core::model::kinds::{CsiDriver, Pod, ServiceAccount, TokenRequest};
use longshore_core::model::{ObjectKey, Uid};
use longshore_core::stage::tokens::{Token, renew_at, to_json};
use longshore_core::stage::verdict::Failure;
use parking_lot::Mutex;
use serde_json::json;

use super::{OpCause, OpError, VolumeManager};

/// Pod, audience and lifetime.
type Slot = (Uid, String, Option<i64>);

/// Tokens, each with the time from which on it is not used any more.
#[derive(Default)]
pub(super) struct Tokens {
    kept: Mutex<BTreeMap<Slot, (Token, Timestamp)>>,
}

impl Tokens {
    pub(super) fn forget(&self, uid: &Uid) {
        self.kept.lock().retain(|(pod, ..), _| pod != uid);
    }
}

/// The account that a pod runs as.
pub(super) fn account(pod: &Pod) -> &str {
    match pod.spec.service_account_name.as_str() {
        "" => "default",
        name => name,
    }
}

impl VolumeManager {
    /// The text for a driver that asks for tokens.
    pub(super) async fn token_text(
        &self,
        step: &'static str,
        pod: &Pod,
        driver: Option<&CsiDriver>,
    ) -> Result<Option<String>, OpError> {
        let wanted = driver.map(|driver| driver.spec.token_requests.as_slice()).unwrap_or_default();
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut tokens = BTreeMap::new();
        for one in wanted {
            let token = self.pod_token(pod, one).await;
            let token = token.map_err(|cause| OpError::new(step, Failure::Transient, cause))?;
            tokens.insert(one.audience.clone(), token);
        }
        Ok(Some(to_json(&tokens)))
    }

    /// A token of the pod's account that is bound to the pod, kept until it has to be replaced; or why
    /// there is none.
    pub(crate) async fn pod_token(
        &self,
        pod: &Pod,
        wanted: &TokenRequest,
    ) -> Result<Token, OpCause> {
        let slot = (pod.metadata.uid.clone(), wanted.audience.clone(), wanted.expiration_seconds);
        let now = clock::now();
        let kept = self.tokens.kept.lock().get(&slot).cloned();
        if let Some((token, _)) = kept.filter(|(_, renew)| now < *renew) {
            return Ok(token);
        }
        let audiences: Vec<&str> = Some(wanted.audience.as_str())
            .filter(|audience| !audience.is_empty())
            .into_iter()
            .collect();
        let mut spec = json!({"audiences": audiences, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1",
            "name": pod.metadata.name, "uid": pod.metadata.uid}});
        if let Some(seconds) = wanted.expiration_seconds {
            spec["expirationSeconds"] = seconds.into();
        }
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let key = ObjectKey::new(&pod.metadata.namespace, account(pod));
        let granted =
            self.deps.api.create_subresource::<ServiceAccount>(&key, "token", &request).await;
        let granted = granted.map_err(OpCause::Token)?;
        let text = |field: &str| granted["status"][field].as_str().unwrap_or_default().to_owned();
        let token =
            Token { token: text("token"), expiration_timestamp: text("expirationTimestamp") };
        let expires = token.expiration_timestamp.parse::<Timestamp>();
        let expires = expires.map_err(OpCause::TokenEnd)?;
        self.tokens.kept.lock().insert(slot, (token.clone(), renew_at(now, expires)));
        Ok(token)
    }
}
