//! Takes, renews and releases the Lease object.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Lease;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ElectionConfig;
use crate::api::{Api, ListParams};
use crate::clock;
use crate::error::ApiError;

/// The lease as last seen or written, and when that was by our own clock.
struct Observed {
    object: Value,
    at: Instant,
    /// Whether the record changed under this candidate's eyes: its holder lives.
    changed: bool,
}

impl Observed {
    fn holder(&self) -> &str {
        self.object["spec"]["holderIdentity"].as_str().unwrap_or_default()
    }

    fn renew_time(&self) -> &str {
        self.object["spec"]["renewTime"].as_str().unwrap_or_default()
    }

    fn seconds(&self) -> u64 {
        self.object["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0)
    }

    /// When the holder loses the lease unless it renews.
    fn expiry(&self) -> Instant {
        self.at + Duration::from_secs(self.seconds())
    }

    /// Whether the holder gave the lease back, which it does with a duration of one second. Where only
    /// the name was taken out, by hand, the holder may not know yet that it holds it no longer.
    fn is_released(&self) -> bool {
        self.holder().is_empty() && self.seconds() <= 1
    }
}

pub(super) struct Lock {
    api: Api,
    key: ObjectKey,
    identity: String,
    lease_seconds: u64,
    labels: BTreeMap<String, String>,
    observed: Option<Observed>,
    /// How long a record under our own name that we did not write is watched before it is ours.
    own_name_patience: Duration,
    /// Until when the last record that this process stored is valid, unless another's came after it.
    held_until: Option<Instant>,
    /// Times in the records that this process sent, from the last that is known to be stored. They
    /// tell its own records from those of another process of the same name.
    sent: Vec<String>,
    slow_path: Option<Counter>,
}

impl Lock {
    pub(super) fn new(config: &ElectionConfig) -> Self {
        Self {
            api: config.api.clone(),
            key: ObjectKey::new(config.namespace.clone(), config.name.clone()),
            identity: config.identity.clone(),
            lease_seconds: config.lease_duration.as_secs(),
            labels: config.labels.clone(),
            observed: None,
            own_name_patience: config.retry_period.mul_f64(1.1),
            held_until: None,
            sent: Vec::new(),
            slow_path: config.metrics.as_ref().map(|m| m.slow_path(&config.name)),
        }
    }

    fn holder(&self) -> &str {
        self.observed.as_ref().map_or("", Observed::holder)
    }

    /// Who holds the lease instead of this candidate.
    pub(super) fn other_holder(&self) -> String {
        match self.holder() {
            name if name == self.identity => format!("another process named {name}"),
            name => name.to_owned(),
        }
    }

    /// When the lease, held by another, runs out as far as we have seen.
    pub(super) fn expiry(&self) -> Option<Instant> {
        let observed = self.observed.as_ref().filter(|observed| !observed.is_released())?;
        // Left by this container before its restart, most likely: who lives renews within a retry
        // period, and then it is another process of the same name.
        if observed.holder() == self.identity && !self.is_ours() && !observed.changed {
            return Some(observed.expiry().min(observed.at + self.own_name_patience));
        }
        Some(observed.expiry())
    }

    /// Whether this very process wrote the record.
    fn is_ours(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| {
            observed.holder() == self.identity
                && self.sent.iter().any(|time| time == observed.renew_time())
        })
    }

    /// Takes or renews the lease; false if another holds it.
    pub(super) async fn try_hold(&mut self) -> Result<bool, ApiError> {
        if let Some(observed) = &self.observed
            && self.is_ours()
            && Instant::now() < observed.expiry()
        {
            let held = observed.object.clone();
            let renewed = self.record(&held, false);
            match self.put(renewed).await {
                Ok(()) => return Ok(true),
                Err(error) => {
                    tracing::debug!(%error, "reading the lease again");
                    if let Some(slow_path) = &self.slow_path {
                        slow_path.inc();
                    }
                }
            }
        }
        match self.api.get_raw::<Lease>(&self.key).await {
            // Deleted by hand: the holder makes it anew, at its next renewal at the latest.
            Ok(None) if self.is_held() && !self.is_ours() => Ok(false),
            Ok(None) => self.create().await,
            Ok(Some(object)) => self.take(object).await,
            Err(error) => {
                self.blind();
                Err(error)
            }
        }
    }

    /// Starts the watch over a record under our own name again: while the server does not answer
    /// us, it may not answer the holder either.
    fn blind(&mut self) {
        if self.holder() == self.identity
            && !self.is_ours()
            && let Some(observed) = &mut self.observed
        {
            observed.at = Instant::now();
        }
    }

    async fn create(&mut self) -> Result<bool, ApiError> {
        let at = Instant::now();
        let fresh = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.key.name, "namespace": self.key.namespace},
            "spec": {"leaseTransitions": 0},
        });
        let object = self.record(&fresh, true);
        let object = self.api.create::<Lease>(&object).await?;
        self.stored(object, at);
        Ok(true)
    }

    /// Whether the record as observed keeps others from taking the lease.
    fn is_held(&self) -> bool {
        self.expiry().is_some_and(|expiry| Instant::now() < expiry)
    }

    async fn take(&mut self, object: Value) -> Result<bool, ApiError> {
        self.observe(object.clone());
        // Emptied by hand while it was ours: nobody else takes it before it runs out.
        let emptied =
            self.holder().is_empty() && self.held_until.is_some_and(|until| Instant::now() < until);
        if self.is_held() && !self.is_ours() && !emptied {
            return Ok(false);
        }
        // As the Go clients: a holder of the same name is the same holder.
        let from_another = self.holder() != self.identity;
        let mut object = self.record(&object, from_another);
        if from_another {
            let transitions = object["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
            object["spec"]["leaseTransitions"] = (transitions + 1).into();
        }
        self.put(object).await?;
        Ok(true)
    }

    /// Keeps what was read; the time counts from when a record was first seen.
    fn observe(&mut self, object: Value) {
        match &mut self.observed {
            Some(observed) if observed.object["spec"] == object["spec"] => observed.object = object,
            before => {
                let changed = before.is_some();
                if object["spec"]["holderIdentity"].as_str().is_some_and(|name| !name.is_empty()) {
                    self.held_until = None;
                }
                self.observed = Some(Observed { object, at: Instant::now(), changed });
            }
        }
    }

    fn stored(&mut self, object: Value, at: Instant) {
        self.sent.drain(..self.sent.len().saturating_sub(1));
        self.held_until = Some(at + Duration::from_secs(self.lease_seconds));
        self.observed = Some(Observed { object, at, changed: false });
    }

    async fn put(&mut self, object: Value) -> Result<(), ApiError> {
        // Counted from before the write: the server cannot have stored it earlier.
        let at = Instant::now();
        let object = self.api.update::<Lease>(&object).await?;
        self.stored(object, at);
        Ok(())
    }

    /// `object` with ourselves as holder, renewed now; unknown fields stay.
    fn record(&mut self, object: &Value, acquired: bool) -> Value {
        let now = clock::micros(clock::now());
        self.sent.push(now.clone());
        let mut object = object.clone();
        let spec = &mut object["spec"];
        spec["holderIdentity"] = self.identity.as_str().into();
        spec["leaseDurationSeconds"] = self.lease_seconds.into();
        spec["renewTime"] = now.as_str().into();
        if acquired {
            spec["acquireTime"] = now.into();
        }
        for (name, value) in &self.labels {
            object["metadata"]["labels"][name] = value.as_str().into();
        }
        object
    }

    /// Frees the lease, if it is ours: no holder, and a duration of one second.
    pub(super) async fn release(&mut self) -> Result<(), ApiError> {
        if !self.is_ours() {
            return Ok(());
        }
        let Some(observed) = self.observed.take() else { return Ok(()) };
        self.held_until = None;
        let now = clock::micros(clock::now());
        let mut object = observed.object;
        let spec = &mut object["spec"];
        spec["holderIdentity"] = "".into();
        spec["leaseDurationSeconds"] = 1.into();
        spec["renewTime"] = now.as_str().into();
        spec["acquireTime"] = now.into();
        self.api.update::<Lease>(&object).await.map(drop)
    }
}

/// Watches one lease until it has no holder.
pub(super) struct Watcher {
    api: Api,
    namespace: String,
    params: ListParams,
}

impl Watcher {
    pub(super) fn new(config: &ElectionConfig) -> Self {
        let selector = format!("metadata.name={}", config.name);
        Self {
            api: config.api.clone(),
            namespace: config.namespace.clone(),
            params: ListParams { field_selector: Some(selector), label_selector: None },
        }
    }

    /// Notifies `freed` each time; returns when the watch ends.
    pub(super) async fn run(&self, freed: &Notify) -> Result<(), ApiError> {
        let timeout = [("timeoutSeconds", "200")];
        let mut lines =
            self.api.watch::<Lease>(Some(&self.namespace), &self.params, &timeout).await?;
        while let Some(line) = lines.next().await? {
            let event: Value = serde_json::from_slice(&line)
                .map_err(|source| ApiError::Decode { at: lines.at().clone(), source })?;
            let holder = event["object"]["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if event["type"] == "DELETED" || holder.is_empty() {
                freed.notify_one();
            }
        }
        Ok(())
    }
}
