//! Reconciles one claim: provisions its volume when that is due.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Outcome, controller::note, log_result};
use longshore_core::{
    bind::edit::forget_selected_node,
    claim::selected_node,
    model::{
        ObjectKey, Uid,
        kinds::{Claim, StorageClass},
    },
    provision::{
        Choice, ChoiceView,
        attempt::{Asker, Debt, Event, Rest},
        choose,
    },
    words,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Cause, ProvisionError, ProvisionedVolume, Provisioner, Request,
    controller::{BY_UID, Inner},
};

impl<P: Provisioner> Inner<P> {
    /// Reconciles a claim; when it is gone but its storage may be on its way, what it was.
    pub(crate) async fn sync_claim(&self, uid: &Uid) -> Outcome {
        let asker = self.attempts.read(uid, |attempt| attempt.asker().cloned());
        let cached = self.claims.by_index(BY_UID, uid).into_iter().next();
        let Some(claim) = cached.or_else(|| asker.as_ref().map(|asker| asker.claim.clone())) else {
            self.attempts.forget(uid);
            return Outcome::Done;
        };
        note("claim", claim.metadata.key());
        // The class may be deleted under a request that is in flight; that request goes on.
        let class = self.classes.get(&ObjectKey::cluster(claim.class_name()));
        let class = class.or(asker.map(|asker| asker.class));
        let outcome = self.provision_if_due(&claim, class).await;
        match outcome {
            Outcome::Retry(error) => return self.claim_failed(uid, error),
            Outcome::Done => self.attempts.succeeded(uid),
            Outcome::After(_) | Outcome::Again => {}
        }
        outcome
    }

    fn claim_failed(&self, uid: &Uid, error: Cause) -> Outcome {
        if self.attempts.failed(uid, self.config.failed_provision_threshold) {
            self.attempts.apply(uid, Event::LetGo);
            tracing::error!(claim_uid = uid.as_str(), %error, "giving the claim up after too many failures");
            return Outcome::Done;
        }
        let config = &self.config;
        let now = Instant::now().into_std();
        let rest = self.attempts.read(uid, |attempt| attempt.resting().cloned());
        match rest.and_then(|rest| rest.left(&rest.class_uid, config.infeasible_pause, now)) {
            // The queue's own delay would end before the rest does, and nothing would be tried then.
            Some(left) => {
                let retry_in = words::time(left);
                let error = words::causes(error.as_ref());
                tracing::warn!(queue = "claims", retry_in, error, "work failed");
                Outcome::After(left)
            }
            None => Outcome::Retry(error),
        }
    }

    /// How much longer an infeasible claim rests. It does not once its class is made anew.
    fn rests_for(&self, uid: &Uid, class: &StorageClass) -> Option<Duration> {
        let rest = self.attempts.read(uid, |attempt| attempt.resting().cloned())?;
        let now = Instant::now().into_std();
        let left = rest.left(&class.metadata.uid, self.config.infeasible_pause, now);
        if left.is_none() {
            self.attempts.apply(uid, Event::Rested);
        }
        left
    }

    async fn provision_if_due(
        &self,
        claim: &Arc<Claim>,
        class: Option<Arc<StorageClass>>,
    ) -> Outcome {
        let uid = &claim.metadata.uid;
        if !claim.spec.volume_name.is_empty() {
            // Whatever a call without a verdict made for it is settled by whoever keeps the records.
            self.attempts.apply(uid, Event::LetGo);
            return Outcome::Done;
        }
        if !self.provisioner.should_provision(claim).await {
            return Outcome::Done;
        }
        if let Some(left) = class.as_deref().and_then(|class| self.rests_for(uid, class)) {
            return Outcome::After(left);
        }
        let volume = self.config.volume_name(uid);
        let choice = choose(&ChoiceView {
            claim,
            class: class.as_deref(),
            names: &self.names,
            made: self.volumes.get(&ObjectKey::cluster(&volume)).is_some(),
            block: self.config.block_volumes,
        });
        match (choice, class) {
            (Choice::NotOurs | Choice::Wait, _) => Outcome::Done,
            (Choice::ClassMissing(text), _) => {
                self.metrics.provision_failed(claim);
                Outcome::retry(text)
            }
            (Choice::Made, _) => {
                self.attempts.apply(uid, Event::LetGo);
                self.metrics.provision_failed(claim);
                Outcome::Done
            }
            (Choice::NoBlock(text), _) => {
                self.metrics.provision_failed(claim);
                self.recorder.warning(claim.as_ref(), "ProvisioningFailed", text);
                Outcome::Done
            }
            (Choice::Provision { node }, Some(class)) => {
                let bytes = claim.request().bytes();
                let request = Request { claim: claim.clone(), class, volume, bytes, node };
                self.provision(request).await
            }
            (Choice::ForeignClass | Choice::Provision { .. }, _) => {
                self.metrics.provision_failed(claim);
                tracing::error!(claim = %claim.metadata.key(), "class and claim name different provisioners");
                Outcome::Done
            }
        }
    }

    async fn provision(&self, request: Request) -> Outcome {
        let claim = request.claim.clone();
        if self.attempts.read(&claim.metadata.uid, |attempt| attempt.owes() == Debt::Save) {
            // Made already; the savers have it.
            return Outcome::Done;
        }
        let key = claim.metadata.key();
        let text = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.recorder.normal(claim.as_ref(), "Provisioning", text);
        let started = Instant::now();
        let (volume, driver) = (&request.volume, &request.class.provisioner);
        let result = match self.ask(&request).await {
            Ok(volume) => self.save(&claim, &volume).await,
            Err(error) => self.not_made(&claim, error).await,
        };
        match result {
            Ok(()) => {
                let took = started.elapsed();
                self.metrics.provisioned(&claim, took.as_secs_f64());
                let took = words::time(took);
                log_result!(%volume, driver, took, "volume is provisioned");
                Outcome::Done
            }
            Err(end) => {
                self.metrics.provision_failed(&claim);
                end.map_or(Outcome::Done, Outcome::Retry)
            }
        }
    }

    /// Calls the provisioner and takes in what that says about the claim's volume.
    async fn ask(&self, request: &Request) -> Result<Arc<Value>, ProvisionError> {
        let Request { claim, class, .. } = request;
        let uid = &claim.metadata.uid;
        let _lock = self.attempts.lock(uid).await;
        let result = self.call_provisioner(request).await;
        let result = result.map(|made| Arc::new(self.completed(request, made.volume)));
        let asker = || Asker { claim: claim.clone(), class: class.clone() };
        use ProvisionError::{Elsewhere, Final, Ignored, InBackground, Infeasible, Unchanged};
        let event = match &result {
            Ok(volume) => Event::Made(volume.clone(), asker()),
            Err(InBackground(_)) => Event::Kept(asker()),
            Err(Unchanged(_)) => return result,
            Err(Final(_) | Infeasible(_) | Elsewhere(_) | Ignored(_)) => Event::LetGo,
        };
        self.attempts.apply(uid, event);
        if let Err(Infeasible(_)) = &result {
            let class_uid = class.metadata.uid.clone();
            let rest = Rest { class_uid, since: Instant::now().into_std() };
            self.attempts.apply(uid, Event::Rest(rest));
        }
        result
    }

    async fn call_provisioner(
        &self,
        request: &Request,
    ) -> Result<ProvisionedVolume, ProvisionError> {
        let call = self.provisioner.provision(request);
        let Some(limit) = self.config.provision_timeout else { return call.await };
        let late = "timed out waiting for the provisioner";
        let call = tokio::time::timeout(limit, call).await;
        call.unwrap_or_else(|_| Err(ProvisionError::InBackground(late.into())))
    }

    /// `Err(None)` stops, `Err(Some)` retries.
    async fn not_made(&self, claim: &Claim, error: ProvisionError) -> Result<(), Option<Cause>> {
        let text = error.to_string();
        let warn = |text| self.recorder.warning(claim, "ProvisioningFailed", text);
        Err(match error {
            ProvisionError::Ignored(reason) => {
                log_result!(claim = %claim.metadata.key(), reason, "provisioning is ignored");
                None
            }
            ProvisionError::Infeasible(cause) => {
                warn(format!(
                    "Volume provisioning failed with infeasible error. Retries will be delayed. {text}"
                ));
                Some(cause)
            }
            ProvisionError::Final(cause)
            | ProvisionError::InBackground(cause)
            | ProvisionError::Unchanged(cause) => {
                warn(text);
                Some(cause)
            }
            ProvisionError::Elsewhere(cause) => {
                warn(text);
                (!self.reschedule(claim).await).then_some(cause)
            }
        })
    }

    /// Takes the scheduler's choice off the claim; true when it is off.
    async fn reschedule(&self, claim: &Claim) -> bool {
        if selected_node(claim).is_none() {
            return false;
        }
        let key = claim.metadata.key();
        let live = self.api.get_raw::<Claim>(&key).await;
        let Ok(Some(mut object)) = live else { return false };
        // Only the choice that failed may be taken off, not a newer one.
        if object["metadata"]["resourceVersion"] != claim.metadata.resource_version.as_str()
            || !forget_selected_node(&mut object)
        {
            return false;
        }
        match self.api.update::<Claim>(&object).await {
            Ok(written) => {
                self.claims.assume(&written);
                true
            }
            Err(error) => {
                tracing::warn!(claim = %key, %error, "the selected node stays on the claim");
                false
            }
        }
    }
}
