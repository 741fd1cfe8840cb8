//! Carries out one CreateVolume plan: to a volume, or to the certainty that there is none.

use std::sync::Arc;

use longshore_cluster::{Api, ApiError};
use longshore_core::{
    model::{Uid, kinds::SecretRef},
    provision::{
        Created, Plan, Useless,
        attempt::{Debt, Event, Next, Refusal},
        migration,
    },
};
use longshore_csi::{Client, CsiError, Verdict, code_name, v1};
use longshore_provisioner::{ProvisionError, ProvisionedVolume, Request};

use super::{
    Planted,
    call::{Content, NoSecret, create_request, created, read_secret},
    guard::NotRecorded,
    make::CsiProvisioner,
};

/// How often a volume that is of no use is deleted before that is left to the next attempt.
const CLEANUP_TRIES: u32 = 5;

/// What became of one CreateVolume.
pub(super) enum CreateOutcome {
    Created(Created),
    /// The driver refused: nothing is running, nothing will be.
    Refused(CsiError),
    /// The call may have happened, or may happen yet.
    NoVerdict(CsiError),
    /// The response has no volume in it.
    MissingVolume,
}

impl CsiProvisioner {
    /// Finds what to ask for: the earlier call that has no outcome yet, or a new one, written down.
    pub(super) async fn begin(&self, request: &Request) -> Result<Arc<Plan>, ProvisionError> {
        let Request { claim, class, node, .. } = request;
        let uid = &claim.metadata.uid;
        let node = node.as_ref();
        self.recover(uid).await.map_err(ProvisionError::unchanged)?;
        loop {
            match self.attempts.read(uid, |attempt| attempt.next(node)) {
                Next::Repeat(plan) => {
                    self.attempts.apply(uid, Event::Resumed);
                    return Ok(plan);
                }
                // What was begun on the other node comes to its end first, or it would be left there.
                Next::Abandon(plan) => {
                    let abandoned = self.abandon(&plan, true).await;
                    abandoned.map_err(|error| ProvisionError::InBackground(error.into()))?;
                }
                Next::DropRecord => {
                    let dropped = self.drop_record(uid, &self.parts.api).await;
                    dropped.map_err(ProvisionError::unchanged)?;
                }
                Next::Plan => {
                    let plan = Arc::new(self.plan_for(claim, class, node).await?);
                    if self.record(&plan).await.map_err(ProvisionError::unchanged)? {
                        return Ok(plan);
                    }
                }
                Next::Wait => return Err(ProvisionError::unchanged("the volume is being saved")),
            }
        }
    }

    /// Takes up a call of an earlier process. It comes first, also when it could not be planned any
    /// more: the source of a clone may be going by now.
    async fn recover(&self, uid: &Uid) -> Result<(), ApiError> {
        let Some(intents) = &self.intents else { return Ok(()) };
        let unknown = self.attempts.read(uid, |attempt| attempt.next(None) == Next::Plan);
        if unknown
            && intents.seems_open(uid)
            && let Some(plan) = intents.open(uid).await?
        {
            self.attempts.apply(uid, Event::Recovered(plan));
        }
        Ok(())
    }

    /// Writes the plan down, before the call goes out. False when there is a record of an earlier one,
    /// which comes first.
    async fn record(&self, plan: &Arc<Plan>) -> Result<bool, NotRecorded> {
        let earlier = match &self.intents {
            Some(intents) => intents.begin(plan).await?,
            None => None,
        };
        let recorded = earlier.is_none();
        let event = earlier.map_or_else(|| Event::Recorded(plan.clone()), Event::Recovered);
        self.attempts.apply(&plan.claim.uid, event);
        Ok(recorded)
    }

    /// Calls the driver, and takes in what its response says about the volume.
    pub(super) async fn create_planned(
        &self,
        plan: &Plan,
    ) -> Result<ProvisionedVolume, ProvisionError> {
        let uid = &plan.claim.uid;
        let secrets = self.content(plan.secrets.provisioner.as_ref()).await;
        let secrets = secrets.map_err(ProvisionError::unchanged)?;
        match self.create(plan, secrets.clone()).await {
            CreateOutcome::Created(created) => match plan.useless(&created) {
                None => self.finished(plan, &created, secrets).await,
                Some(useless) => Err(self.clean_up(plan, &created, secrets, useless).await),
            },
            CreateOutcome::NoVerdict(error) if self.config.has(Planted::Leak) => {
                self.settle(uid, Event::Absent).await;
                Err(ProvisionError::Final(error.into()))
            }
            CreateOutcome::NoVerdict(error) => {
                self.attempts.apply(uid, Event::NoVerdict);
                Err(ProvisionError::InBackground(error.into()))
            }
            CreateOutcome::MissingVolume => {
                self.settle(uid, Event::Absent).await;
                let text = "the driver answered CreateVolume without a volume";
                Err(ProvisionError::Final(text.into()))
            }
            CreateOutcome::Refused(error) => {
                // Otherwise the record stays: also when the claim goes, the call is repeated.
                if self.refusal_settles(plan, &error, true) {
                    self.drop_settled(uid).await;
                }
                let movable = plan.topology_in_use && plan.selected_node.is_some();
                Err(refusal(error, movable))
            }
        }
    }

    /// Takes a refusal in; true when it proves that there is no volume.
    pub(super) fn refusal_settles(&self, plan: &Plan, error: &CsiError, claim_waits: bool) -> bool {
        let uid = &plan.claim.uid;
        let (infeasible, guarded) = (error.is_infeasible(), self.intents.is_some());
        let refusal = Refusal { infeasible, claim_waits, guarded };
        self.attempts.apply(uid, Event::Refused(refusal));
        let (debt, refusals) = self.attempts.read(uid, |now| (now.owes(), now.refusals()));
        if debt != Debt::DropRecord {
            tracing::info!(
                volume = plan.volume.as_str(),
                refusals,
                %error,
                "the driver says no, but may have made the volume before; it will be asked again"
            );
        }
        debt == Debt::DropRecord
    }

    async fn settle(&self, uid: &Uid, event: Event) {
        self.attempts.apply(uid, event);
        self.drop_settled(uid).await;
    }

    /// Deletes the record of a settled attempt; when that fails, the resolver does it later.
    pub(super) async fn drop_settled(&self, uid: &Uid) {
        if let Err(error) = self.drop_record(uid, &self.parts.api).await {
            tracing::warn!(claim_uid = uid.as_str(), %error, "intent record not deleted yet");
            if let Some(intents) = &self.intents {
                intents.resolve_later(uid);
            }
        }
    }

    pub(super) async fn drop_record(&self, uid: &Uid, api: &Api) -> Result<(), ApiError> {
        if let Some(intents) = &self.intents {
            intents.end(api, uid).await?;
        }
        self.attempts.apply(uid, Event::RecordDropped);
        Ok(())
    }

    /// Calls CreateVolume exactly as planned.
    pub(super) async fn create(&self, plan: &Plan, secrets: Content) -> CreateOutcome {
        let csi = self.labelled(plan.in_tree);
        let mut request = create_request(plan, secrets);
        if self.config.has(Planted::NewNames) {
            request.name = format!("{}-{}", request.name, fastrand::u32(..));
        }
        match csi.create_volume(request).await {
            Ok(response) => response.volume.map_or(CreateOutcome::MissingVolume, |volume| {
                CreateOutcome::Created(created(volume))
            }),
            Err(error) if error.is_final() => CreateOutcome::Refused(error),
            Err(error) => CreateOutcome::NoVerdict(error),
        }
    }

    pub(super) async fn delete_handle(
        &self,
        handle: &str,
        secrets: Content,
        in_tree: bool,
    ) -> Result<(), CsiError> {
        let request = v1::DeleteVolumeRequest { volume_id: handle.into(), secrets };
        self.labelled(in_tree).delete_volume(request).await.map(|_| ())
    }

    /// The driver's client. Where the driver took over from an in-tree plugin, calls are counted by
    /// the form of the object they are about.
    fn labelled(&self, in_tree: bool) -> Client {
        let took_over = migration::plugin_of(&self.driver.name).is_some();
        self.parts.csi.with_migrated(took_over.then_some(in_tree))
    }

    pub(super) async fn content(&self, reference: Option<&SecretRef>) -> Result<Content, NoSecret> {
        match reference {
            Some(reference) => read_secret(&self.parts.api, reference).await,
            None => Ok(Content::new()),
        }
    }

    /// The volume in the form that is saved. One that has none is deleted again.
    async fn finished(
        &self,
        plan: &Plan,
        created: &Created,
        secrets: Content,
    ) -> Result<ProvisionedVolume, ProvisionError> {
        let mut volume = plan.volume(created, &self.identity);
        let translate = plan.in_tree.then_some(migration::volume_to_in_tree);
        let Some(Err(error)) = translate.map(|to_in_tree| to_in_tree(&mut volume)) else {
            return Ok(ProvisionedVolume { volume });
        };
        match self.delete_handle(&created.handle, secrets, true).await {
            Ok(()) => {
                self.settle(&plan.claim.uid, Event::Absent).await;
                Err(ProvisionError::Final(error.into()))
            }
            Err(failed) => {
                tracing::warn!(volume = plan.volume.as_str(), %failed, "a volume without an in-tree form stays for now");
                self.attempts.apply(&plan.claim.uid, Event::NoVerdict);
                Err(ProvisionError::InBackground(error.into()))
            }
        }
    }

    /// Deletes a volume that is not what was asked for. The same call is repeated later, so the
    /// record stays as long as the volume may.
    async fn clean_up(
        &self,
        plan: &Plan,
        created: &Created,
        secrets: Content,
        useless: Useless,
    ) -> ProvisionError {
        let Useless { problem, removal } = useless;
        let mut error = String::new();
        for _ in 0..CLEANUP_TRIES {
            let deleted = self.delete_handle(&created.handle, secrets.clone(), plan.in_tree).await;
            let Err(failed) = deleted else {
                self.settle(&plan.claim.uid, Event::Absent).await;
                return ProvisionError::InBackground(problem.into());
            };
            error = failed.to_string();
        }
        let name = &plan.volume;
        self.attempts.apply(&plan.claim.uid, Event::NoVerdict);
        let text =
            format!("{problem}. {removal} of volume {name} failed, volume is orphaned: {error}");
        ProvisionError::InBackground(text.into())
    }
}

/// What a refusal means for the claim. A full node is left for another one, where the scheduler can
/// choose.
pub(super) fn refusal(error: CsiError, movable: bool) -> ProvisionError {
    let exhausted = code_name(error.code()) == "ResourceExhausted";
    match error.verdict() {
        Verdict::Infeasible => ProvisionError::Infeasible(error.into()),
        _ if exhausted && movable => ProvisionError::Elsewhere(error.into()),
        _ => ProvisionError::Final(error.into()),
    }
}
