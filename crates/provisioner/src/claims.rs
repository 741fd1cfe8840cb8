//! One look at a claim.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{EventType, Outcome};
use longshore_core::{
    bind::edit::forget_selected_node,
    claim::selected_node,
    model::{
        ObjectKey,
        kinds::{Claim, StorageClass},
    },
    provision::{Choice, ChoiceView, choose},
};
use tokio::time::Instant;

use crate::{
    Cause, Made, NotMade, Provisioner, Request,
    controller::{BY_UID, Inner},
    memory::Begun,
};

/// How one look ended.
enum End {
    /// Nothing more to do until something changes.
    Done,
    /// Try again after a pause.
    Failed(Cause),
    /// Nothing to do before this much time has passed.
    Rest(Duration),
}

impl<P: Provisioner> Inner<P> {
    /// Looks at a claim; when it is gone but its storage may be on its way, at what it was.
    pub(crate) async fn sync_claim(&self, uid: &str) -> Outcome {
        let begun = self.memory.begun(uid);
        let cached = self.parts.claims.by_index(BY_UID, uid).into_iter().next();
        let Some(claim) = cached.or_else(|| begun.as_ref().map(|begun| begun.claim.clone())) else {
            self.memory.claim_done(uid);
            self.memory.wake(uid);
            return Outcome::Done;
        };
        // The class may be deleted under a request that is on its way; that request goes on.
        let class = self.class_of(claim.class_name()).or(begun.map(|begun| begun.class));
        match self.provision_if_due(&claim, class).await {
            End::Done => {
                self.memory.claim_done(uid);
                Outcome::Done
            }
            End::Rest(left) => Outcome::After(left),
            End::Failed(error) => self.claim_failed(uid, error),
        }
    }

    fn claim_failed(&self, uid: &str, error: Cause) -> Outcome {
        if self.memory.claim_failed(uid, self.config.failed_provision_threshold) {
            self.memory.settle(uid);
            tracing::error!(claim_uid = uid, %error, "giving the claim up after too many failures");
            return Outcome::Done;
        }
        Outcome::Retry(error)
    }

    async fn provision_if_due(&self, claim: &Arc<Claim>, class: Option<Arc<StorageClass>>) -> End {
        let uid = &claim.metadata.uid;
        let class_uid = class.as_ref().map(|class| class.metadata.uid.as_str());
        let bound = !claim.spec.volume_name.is_empty();
        if bound || !self.provisioner.should_provision(claim).await {
            return End::Done;
        }
        if let Some(left) = self.memory.rests_for(uid, class_uid, self.config.infeasible_pause) {
            return End::Rest(left);
        }
        let volume = self.provisioner.volume_name(claim);
        let choice = choose(&ChoiceView {
            claim,
            class: class.as_deref(),
            names: &self.names,
            made: self.parts.volumes.get(&ObjectKey::cluster(&volume)).is_some(),
            block: self.provisioner.supports_block(),
        });
        match (choice, class) {
            (Choice::NotOurs | Choice::Wait, _) => End::Done,
            (Choice::ClassMissing(text), _) => {
                self.parts.metrics.provision_failed(claim);
                End::Failed(text.into())
            }
            (Choice::Made, _) => {
                self.memory.settle(uid);
                self.parts.metrics.provision_failed(claim);
                End::Done
            }
            (Choice::NoBlock(text), _) => {
                self.parts.metrics.provision_failed(claim);
                self.tell(claim, EventType::Warning, "ProvisioningFailed", text);
                End::Done
            }
            (Choice::Provision { node }, Some(class)) => {
                let bytes = claim.request().bytes();
                let request = Request { claim: claim.clone(), class, volume, bytes, node };
                self.provision(request).await
            }
            (Choice::ForeignClass | Choice::Provision { .. }, _) => {
                self.parts.metrics.provision_failed(claim);
                tracing::error!(claim = %claim.metadata.key(), "class and claim name different provisioners");
                End::Done
            }
        }
    }

    async fn provision(&self, request: Request) -> End {
        if self.memory.unsaved(&request.volume).is_some() {
            // Made already; the savers have it.
            return End::Done;
        }
        let claim = request.claim.clone();
        let key = claim.metadata.key();
        let text = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.tell(&claim, EventType::Normal, "Provisioning", text);
        let started = Instant::now();
        let result = match self.call_provisioner(&request).await {
            Ok(made) => {
                self.memory.settle(&claim.metadata.uid);
                self.memory.wake(&claim.metadata.uid);
                self.save(&request, made).await
            }
            Err(error) => self.not_made(&request, error).await,
        };
        match result {
            Ok(()) => {
                self.parts.metrics.provisioned(&claim, started.elapsed().as_secs_f64());
                End::Done
            }
            Err(end) => {
                self.parts.metrics.provision_failed(&claim);
                end.map_or(End::Done, End::Failed)
            }
        }
    }

    async fn call_provisioner(&self, request: &Request) -> Result<Made, NotMade> {
        let call = self.provisioner.provision(request);
        let Some(limit) = self.config.provision_timeout else { return call.await };
        match tokio::time::timeout(limit, call).await {
            Ok(result) => result,
            Err(_) => Err(NotMade::InBackground("timed out waiting for the provisioner".into())),
        }
    }

    /// `Err(None)` stops, `Err(Some)` retries.
    async fn not_made(&self, request: &Request, error: NotMade) -> Result<(), Option<Cause>> {
        let claim = &request.claim;
        let uid = &claim.metadata.uid;
        let text = error.to_string();
        let warn = |text| self.tell(claim, EventType::Warning, "ProvisioningFailed", text);
        match error {
            NotMade::Ignored(reason) => {
                tracing::info!(claim = %claim.metadata.key(), reason, "provisioning is ignored");
                self.memory.settle(uid);
                Err(None)
            }
            NotMade::Infeasible(cause) => {
                self.memory.rest(uid, &request.class.metadata.uid);
                self.memory.settle(uid);
                warn(format!(
                    "Volume provisioning failed with infeasible error. Retries will be delayed. {text}"
                ));
                Err(Some(cause))
            }
            NotMade::Final(cause) => {
                self.memory.settle(uid);
                warn(text);
                Err(Some(cause))
            }
            NotMade::InBackground(cause) => {
                let begun = Begun { claim: claim.clone(), class: request.class.clone() };
                self.memory.begin(uid, begun);
                warn(text);
                Err(Some(cause))
            }
            NotMade::Unchanged(cause) => {
                warn(text);
                Err(Some(cause))
            }
            NotMade::Elsewhere(cause) => {
                self.memory.settle(uid);
                warn(text);
                match self.reschedule(claim).await {
                    true => Err(None),
                    false => Err(Some(cause)),
                }
            }
        }
    }

    /// Takes the scheduler's choice off the claim; true when it is off.
    async fn reschedule(&self, claim: &Claim) -> bool {
        if selected_node(claim).is_none() {
            return false;
        }
        let key = claim.metadata.key();
        let live = self.parts.api.get_raw::<Claim>(&key).await;
        let Ok(Some(mut object)) = live else { return false };
        // Only the choice that failed may be taken off, not a newer one.
        if object["metadata"]["resourceVersion"] != claim.metadata.resource_version.as_str()
            || !forget_selected_node(&mut object)
        {
            return false;
        }
        match self.parts.api.update::<Claim>(&object).await {
            Ok(written) => {
                self.parts.claims.assume(&written);
                true
            }
            Err(error) => {
                tracing::warn!(claim = %key, %error, "the selected node stays on the claim");
                false
            }
        }
    }
}
