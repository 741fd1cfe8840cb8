//! The CSI provisioner: one claim to one CreateVolume, one volume to one DeleteVolume.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use longshore_cluster::{EventType, clock};
use longshore_core::{
    claim::storage_provisioner,
    model::{
        ObjectKey, ObjectRef,
        keys::annotations,
        kinds::{
            Claim, SecretRef, StorageClass, Volume, VolumeAttributesClass, VolumeNodeAffinity,
        },
    },
    provision::{
        Created, DeletionSecret, NotPlanned, Plan, PlanView, RefusalView, Useless,
        attributes_class, check, deletion_secret, migration, name::volume_name, plan,
        proves_nothing_made,
    },
};
use longshore_csi::{Client, CsiError, Verdict, code_name, v1};
use longshore_provisioner::{Made, NotDeleted, NotMade, Provisioner, Request};
use parking_lot::Mutex;
use serde::Deserialize;

use super::{
    Config, Driver, Parts, Planted,
    call::{Content, create_request, created, read_secret},
    distributed::Contests,
    driver,
    guard::{Begun, Intents},
    in_use::InUse,
    places::{Manner, Map, Places},
};
use crate::capacity::CapacityWaker;

/// How often a volume that is of no use is deleted before that is left to the next attempt.
const CLEANUP_TRIES: u32 = 5;

pub(super) struct CsiProvisioner {
    pub(super) config: Config,
    pub(super) parts: Parts,
    pub(super) driver: Driver,
    pub(super) intents: Option<Intents>,
    /// Calls without a verdict, by claim UID: repeated as they were, also when nodes or the class
    /// have changed meanwhile.
    unsettled: Mutex<HashMap<String, Plan>>,
    /// How often the driver has refused, in a row, what it may have made before; by claim UID.
    refusals: Mutex<HashMap<String, u32>>,
    pub(super) places: Places,
    /// Fights for claims that name no node.
    pub(super) contests: Contests,
    /// Who publishes how much room there is.
    capacity: Option<CapacityWaker>,
    identity: String,
    in_use: Option<InUse>,
}

/// What became of one CreateVolume.
pub(super) enum Answer {
    Made(Created),
    /// The driver said no: nothing is running, nothing will be.
    No(CsiError),
    /// Nobody knows.
    NoVerdict(CsiError),
    /// It answered without a volume.
    Nonsense,
}

/// Which call for a volume this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Nothing was asked before.
    First,
    /// There was one without a verdict; a claim waits for the outcome.
    Repeated,
    /// The same, and the claim is gone.
    Abandoned,
}

impl CsiProvisioner {
    pub(super) fn new(
        config: Config,
        mut parts: Parts,
        driver: Driver,
        intents: Option<Intents>,
        capacity: Option<CapacityWaker>,
    ) -> Self {
        parts.csi = parts.csi.with_timeout(Some(config.timeout));
        let millis = clock::now().as_millisecond();
        let mut identity = format!("{millis}-{}-{}", fastrand::u32(0..10_000), driver.name);
        let map = match (&config.deployment, &parts.nodes) {
            (Some(deployment), _) => {
                identity = format!("{identity}-{}", deployment.node);
                let (node, segments) = (deployment.node.clone(), deployment.segments.clone());
                Map::Fixed { node, segments }
            }
            (None, Some((nodes, csi_nodes))) => Map::Watched(nodes.clone(), csi_nodes.clone()),
            (None, None) => Map::Unknown,
        };
        let places = Places::new(&driver.name, map);
        let in_use = parts.nodes.as_ref().map(|(nodes, _)| InUse::follow(nodes));
        let (unsettled, refusals) = (Mutex::default(), Mutex::default());
        let contests = Contests::default();
        Self {
            config,
            parts,
            driver,
            intents,
            in_use,
            unsettled,
            refusals,
            places,
            contests,
            capacity,
            identity,
        }
    }

    pub(super) async fn wait_for_caches(&self) {
        if let Some((nodes, csi_nodes)) = &self.parts.nodes {
            nodes.synced().await;
            csi_nodes.synced().await;
        }
        if let Some(attachments) = &self.parts.attachments {
            attachments.synced().await;
        }
        if let Some(grants) = &self.parts.grants {
            grants.synced().await;
        }
        if let Some(intents) = &self.intents {
            intents.records().synced().await;
        }
    }

    /// Calls CreateVolume exactly as planned.
    pub(super) async fn create(&self, plan: &Plan, secrets: Content) -> Answer {
        let csi = self.labelled(plan.in_tree);
        let mut request = create_request(plan, secrets);
        if self.config.has(Planted::NewNames) {
            request.name = format!("{}-{}", request.name, fastrand::u32(..));
        }
        match csi.create_volume(request).await {
            Ok(answer) => answer.volume.map_or(Answer::Nonsense, |v| Answer::Made(created(v))),
            Err(error) if error.is_final() => Answer::No(error),
            Err(error) => Answer::NoVerdict(error),
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

    pub(super) async fn content(&self, reference: Option<&SecretRef>) -> Result<Content, String> {
        match reference {
            Some(reference) => read_secret(&self.parts.api, reference).await,
            None => Ok(Content::new()),
        }
    }

    /// Whether a refusal means that there is no volume. Without the guard it always does, as
    /// upstream sees it: nothing would be there to ask again.
    pub(super) fn believes(&self, plan: &Plan, error: &CsiError, attempt: Attempt) -> bool {
        if self.intents.is_none() {
            return true;
        }
        let mut all = self.refusals.lock();
        let refusals = all.entry(plan.claim.uid.clone()).or_default();
        *refusals += 1;
        let believed = proves_nothing_made(RefusalView {
            in_doubt: attempt != Attempt::First,
            refusals: *refusals,
            infeasible: error.is_infeasible(),
            claim_waits: attempt != Attempt::Abandoned,
        });
        match believed {
            true => drop(all.remove(&plan.claim.uid)),
            false => tracing::info!(
                volume = plan.volume,
                refusals = *refusals,
                %error,
                "the driver says no, but may have made the volume before; it will be asked again"
            ),
        }
        believed
    }

    /// Refusals count in a row only.
    pub(super) fn forget_refusals(&self, uid: &str) {
        self.refusals.lock().remove(uid);
    }

    /// The outcome is known: neither memory nor record is needed.
    async fn settle(&self, uid: &str) {
        self.forget(uid);
        let Some(intents) = &self.intents else { return };
        if let Err(error) = intents.end(uid).await {
            // The resolver drops it later: the watch still shows the record.
            tracing::warn!(claim_uid = uid, %error, "an intent outlives its outcome");
        }
        intents.set_owned(uid, false);
    }

    fn forget(&self, uid: &str) {
        self.unsettled.lock().remove(uid);
        self.forget_refusals(uid);
        self.places.forget(uid);
    }

    /// Plans the call, and marks what it is filled from as being in use.
    pub(super) async fn plan_afresh(&self, request: &Request) -> Result<Plan, NotMade> {
        let node = request.node.as_deref();
        let (class, in_tree) = self.csi_class(&request.class)?;
        let capabilities = driver::capabilities(&self.parts.csi).await;
        let capabilities = capabilities.map_err(|error| NotMade::Unchanged(error.into()))?;
        let grants = self.parts.grants.as_ref().map(|grants| grants.list());
        let mut view = PlanView {
            claim: &request.claim,
            class: &class,
            in_tree,
            driver: &self.driver.name,
            capabilities,
            settings: &self.config.plan,
            selected_node: node,
            grants: grants.as_deref(),
            content: None,
            topology: None,
        };
        let not_planned = |why| self.not_planned(&request.claim, why);
        if let Some(source) = check(&view).map_err(not_planned)? {
            view.content = Some(self.fill(request, &class, &source).await?);
        }
        view.topology = self
            .topology_in_use()
            .then(|| self.places.requirement(&request.claim, &class, node, self.manner()));
        let plan = plan(&view).map_err(not_planned)?;
        match attributes_class(&request.claim, &self.config.plan) {
            Some(class) => self.tune(&request.claim, plan, class).await,
            None => Ok(plan),
        }
    }

    async fn tune(&self, claim: &Claim, plan: Plan, name: &str) -> Result<Plan, NotMade> {
        let found = self.parts.api.get::<VolumeAttributesClass>(&ObjectKey::cluster(name)).await;
        let secret = plan.secrets.provisioner.clone();
        let tuned = match found {
            Ok(Some(class)) => plan.tuned(&class).map_err(|why| self.not_planned(claim, why)),
            Ok(None) => {
                let text = format!("volumeattributesclasses.storage.k8s.io \"{name}\" not found");
                Err(NotMade::Unchanged(text.into()))
            }
            Err(error) => Err(NotMade::Unchanged(error.into())),
        };
        if tuned.is_err() {
            // Upstream reads the secret before the class: of two faults the same one is told.
            self.content(secret.as_ref()).await.map_err(|why| NotMade::Unchanged(why.into()))?;
        }
        tuned
    }

    fn not_planned(&self, claim: &Claim, why: NotPlanned) -> NotMade {
        match why {
            NotPlanned::Final(text) => NotMade::Final(text.into()),
            NotPlanned::Unchanged(text) => NotMade::Unchanged(text.into()),
            NotPlanned::Elsewhere(text) => NotMade::Elsewhere(text.into()),
            NotPlanned::Populator => self.leave_to_populator(claim),
        }
    }

    fn leave_to_populator(&self, claim: &Claim) -> NotMade {
        let object = ObjectRef::of::<Claim>(&claim.metadata);
        let text = "Assuming an external populator will provision the volume";
        self.parts.recorder.event(&object, EventType::Normal, "Provisioning", text);
        NotMade::Ignored("the data source is filled by an external populator".into())
    }

    pub(super) fn topology_in_use(&self) -> bool {
        self.config.topology && self.driver.capabilities.topology && self.places.known()
    }

    fn manner(&self) -> Manner {
        Manner { strict: self.config.strict_topology, immediate: self.config.immediate_topology }
    }

    /// Whether a class lets volumes be made on a node.
    pub(super) fn requirement_on(&self, claim: &Claim, class: &StorageClass, node: &str) -> bool {
        self.places.requirement(claim, class, Some(node), self.manner()).is_ok()
    }

    /// The class as the driver understands it, and whether it had to be translated.
    fn csi_class<'a>(
        &self,
        class: &'a StorageClass,
    ) -> Result<(Cow<'a, StorageClass>, bool), NotMade> {
        if migration::plugin_of(&self.driver.name) != Some(class.provisioner.as_str()) {
            return Ok((Cow::Borrowed(class), false));
        }
        let new = migration::class_to_csi(class).map_err(|error| {
            NotMade::Final(format!("failed to translate storage class: {error}").into())
        })?;
        Ok((Cow::Owned(new), true))
    }

    /// Finds what to ask for: an earlier call without an outcome, or a new one, written down.
    async fn begin(&self, request: &Request) -> Result<(Plan, Attempt), NotMade> {
        let uid = &request.claim.metadata.uid;
        let mut earlier = self.unsettled.lock().get(uid).cloned();
        // A call of an earlier process comes first, also when it could not be planned any more:
        // the source of a clone may be going by now.
        if let Some(intents) = self.intents.as_ref().filter(|_| earlier.is_none())
            && intents.seems_open(uid)
        {
            let open = intents.open(uid).await;
            earlier = open.map_err(|error| NotMade::Unchanged(error.into()))?;
        }
        loop {
            if let Some(plan) = earlier {
                if plan.selected_node == request.node {
                    return Ok((plan, Attempt::Repeated));
                }
                // The scheduler has chosen anew. What was begun elsewhere comes to its end first,
                // or it would be left there.
                if let Err(error) = self.abandon(&plan, Attempt::Repeated).await {
                    self.unsettled.lock().insert(uid.clone(), plan);
                    return Err(NotMade::InBackground(error.into()));
                }
                self.unsettled.lock().remove(uid);
            }
            let plan = self.plan_afresh(request).await?;
            let Some(intents) = &self.intents else { return Ok((plan, Attempt::First)) };
            match intents.begin(&plan).await {
                Ok(Begun::New) => return Ok((plan, Attempt::First)),
                Ok(Begun::Earlier(found)) => earlier = Some(*found),
                Err(error) => return Err(NotMade::Unchanged(error.into())),
            }
        }
    }

    async fn provision_planned(
        &self,
        request: &Request,
        plan: Plan,
        attempt: Attempt,
    ) -> Result<Made, NotMade> {
        let uid = &request.claim.metadata.uid;
        let secrets = self
            .content(plan.secrets.provisioner.as_ref())
            .await
            .map_err(|error| NotMade::Unchanged(error.into()))?;
        match self.create(&plan, secrets.clone()).await {
            Answer::Made(created) => match plan.useless(&created) {
                None => self.finished(plan, &created, secrets).await,
                Some(useless) => Err(self.clean_up(plan, &created, secrets, useless).await),
            },
            Answer::NoVerdict(error) if self.config.has(Planted::Leak) => {
                Err(NotMade::Final(error.into()))
            }
            Answer::NoVerdict(error) => {
                self.forget_refusals(uid);
                self.unsettled.lock().insert(uid.clone(), plan);
                Err(NotMade::InBackground(error.into()))
            }
            Answer::Nonsense => {
                self.settle(uid).await;
                Err(NotMade::Final("the driver answered CreateVolume without a volume".into()))
            }
            Answer::No(error) => {
                let movable = plan.topology_in_use && plan.selected_node.is_some();
                match self.believes(&plan, &error, attempt) {
                    true => self.settle(uid).await,
                    // The record stays, and so does the call: also when the claim goes, somebody
                    // asks again.
                    false => drop(self.unsettled.lock().insert(uid.clone(), plan)),
                }
                Err(refusal(error, movable))
            }
        }
    }

    /// The volume in the form that is saved. One that has none is deleted again.
    async fn finished(
        &self,
        plan: Plan,
        created: &Created,
        secrets: Content,
    ) -> Result<Made, NotMade> {
        let mut volume = plan.volume(created, &self.identity);
        if !plan.in_tree {
            return Ok(Made { volume });
        }
        let Err(error) = migration::volume_to_in_tree(&mut volume) else {
            return Ok(Made { volume });
        };
        match self.delete_handle(&created.handle, secrets, true).await {
            Ok(()) => {
                self.settle(&plan.claim.uid).await;
                Err(NotMade::Final(error.into()))
            }
            Err(failed) => {
                tracing::warn!(volume = plan.volume, %failed, "a volume without an in-tree form stays for now");
                self.unsettled.lock().insert(plan.claim.uid.clone(), plan);
                Err(NotMade::InBackground(error.into()))
            }
        }
    }

    /// Deletes a volume that is not what was asked for. The same call is repeated later, so the
    /// record stays as long as the volume may.
    async fn clean_up(
        &self,
        plan: Plan,
        created: &Created,
        secrets: Content,
        useless: Useless,
    ) -> NotMade {
        let Useless { problem, removal } = useless;
        let mut last = None;
        for _ in 0..CLEANUP_TRIES {
            match self.delete_handle(&created.handle, secrets.clone(), plan.in_tree).await {
                Ok(()) => {
                    self.settle(&plan.claim.uid).await;
                    return NotMade::InBackground(problem.into());
                }
                Err(error) => last = Some(error),
            }
        }
        let error = last.map(|error| error.to_string()).unwrap_or_default();
        let name = plan.volume.clone();
        self.unsettled.lock().insert(plan.claim.uid.clone(), plan);
        let text =
            format!("{problem}. {removal} of volume {name} failed, volume is orphaned: {error}");
        NotMade::InBackground(text.into())
    }

    /// The secret for DeleteVolume; one that cannot be read is left out, as the volume must go.
    async fn deletion_content(
        &self,
        volume: &Volume,
        in_tree: bool,
    ) -> Result<Content, NotDeleted> {
        let class = self.parts.classes.get(&ObjectKey::cluster(volume.class_name()));
        let name = &volume.metadata.name;
        let class = match class {
            Some(class) if in_tree => Some(Arc::new(
                migration::class_to_csi(&class)
                    .map_err(|error| NotDeleted::Failed(error.into()))?,
            )),
            other => other,
        };
        let found = deletion_secret(volume, class.as_deref()).map_err(|error| {
            NotDeleted::Failed(
                format!("failed to get secretreference for volume {name}: {error}").into(),
            )
        })?;
        let DeletionSecret::From(reference) = found else { return Ok(Content::new()) };
        Ok(read_secret(&self.parts.api, &reference).await.unwrap_or_else(|error| {
            tracing::warn!(volume = name, error, "deleting the volume without its secret");
            Content::new()
        }))
    }

    /// What became of a claim says something about the room there is.
    fn tell_room(&self, class: &str, result: &Result<Made, NotMade>) {
        let Some(capacity) = &self.capacity else { return };
        match result {
            Ok(made) => {
                let affinity = &made.volume["spec"]["nodeAffinity"];
                let affinity = VolumeNodeAffinity::deserialize(affinity).unwrap_or_default();
                capacity.made(class, &affinity);
            }
            Err(NotMade::Unchanged(_) | NotMade::Ignored(_)) => {}
            Err(_) => capacity.not_made(class),
        }
    }

    /// Whether this provisioner is the one to delete the volume.
    fn is_in_scope(&self, volume: &Volume) -> bool {
        let Some(scope) = &self.config.node else { return true };
        let Some((nodes, _)) = &self.parts.nodes else { return false };
        // Another node's driver would not know the volume, and "unknown" reads as "deleted".
        nodes
            .get(&ObjectKey::cluster(&scope.node))
            .is_some_and(|node| volume.reachable_from(&scope.node, &node.metadata.labels))
    }

    fn attached_to(&self, volume: &str) -> Option<String> {
        let attachments = self.parts.attachments.as_ref()?.list();
        let holds = |source: &Option<String>| source.as_deref() == Some(volume);
        let found =
            attachments.iter().find(|one| holds(&one.spec.source.persistent_volume_name))?;
        Some(found.spec.node_name.clone())
    }
}

/// What a final "no" means for the claim. A full place is left for another one, where the
/// scheduler can choose.
pub(super) fn refusal(error: CsiError, movable: bool) -> NotMade {
    let exhausted = code_name(error.code()) == "ResourceExhausted";
    match error.verdict() {
        Verdict::Infeasible => NotMade::Infeasible(error.into()),
        _ if exhausted && movable => NotMade::Elsewhere(error.into()),
        _ => NotMade::Final(error.into()),
    }
}

impl Provisioner for CsiProvisioner {
    async fn provision(&self, request: &Request) -> Result<Made, NotMade> {
        self.check_node(request).await?;
        let uid = &request.claim.metadata.uid;
        let _taken = match &self.intents {
            Some(intents) => Some(intents.take(uid).await),
            None => None,
        };
        let result = match self.begin(request).await {
            Ok((plan, attempt)) => self.provision_planned(request, plan, attempt).await,
            Err(error) => Err(error),
        };
        if let Some(intents) = &self.intents {
            match &result {
                // What is made stays ours until it is saved; what may be, as long as the claim's
                // turns go on even without the claim.
                Ok(_) => intents.set_owned(uid, true),
                Err(NotMade::InBackground(_)) => {
                    intents.set_owned(uid, self.unsettled.lock().contains_key(uid));
                }
                // Nothing has changed, so neither does this.
                Err(NotMade::Unchanged(_)) => {}
                Err(_) => intents.set_owned(uid, false),
            }
        }
        self.tell_room(&request.class.metadata.name, &result);
        result
    }

    async fn delete(&self, volume: &Volume) -> Result<(), NotDeleted> {
        let failed = |text: String| NotDeleted::Failed(text.into());
        let translated =
            migration::volume_to_csi(volume).map_err(|error| NotDeleted::Failed(error.into()))?;
        let in_tree = translated.is_some();
        let volume = translated.as_ref().unwrap_or(volume);
        let Some(source) = &volume.spec.csi else { return Err(failed("invalid CSI PV".into())) };
        if source.driver != self.driver.name {
            return Err(NotDeleted::Ignored(format!("the volume is of driver {}", source.driver)));
        }
        if !self.is_on_this_node(volume) {
            return Err(NotDeleted::Ignored("PV was not provisioned on this node".into()));
        }
        let capabilities = driver::capabilities(&self.parts.csi).await;
        let capabilities = capabilities.map_err(|error| NotDeleted::Failed(error.into()))?;
        if let Some(missing) = capabilities.missing() {
            return Err(failed(missing.into()));
        }
        let secrets = self.deletion_content(volume, in_tree).await?;
        let name = &volume.metadata.name;
        if let Some(node) = self.attached_to(name) {
            return Err(failed(format!(
                "persistentvolume {name} is still attached to node {node}"
            )));
        }
        if let Some(node) = self.in_use.as_ref().and_then(|in_use| in_use.user(source)) {
            return Err(failed(format!(
                "persistentvolume {name} is still in use on node {node}; it is deleted once that node has unmounted it"
            )));
        }
        let deleted = self.delete_handle(&source.volume_handle, secrets, in_tree).await;
        deleted.map_err(|error| NotDeleted::Failed(error.into()))?;
        if let Some(capacity) = &self.capacity {
            capacity.deleted(&volume.spec.node_affinity);
        }
        Ok(())
    }

    async fn should_provision(&self, claim: &Claim) -> bool {
        let ours = Some(self.driver.name.as_str());
        let asked = storage_provisioner(claim) == ours
            || claim.metadata.annotation(annotations::MIGRATED_TO) == ours;
        if !asked || !self.config.node.as_ref().is_none_or(|scope| scope.answers(claim)) {
            return false;
        }
        self.is_ours_to_make(claim, None).await.unwrap_or_else(|error| {
            // The attempt fails the same way, and says so where the user looks.
            tracing::warn!(claim = %claim.metadata.key(), error, "whose claim it is cannot be found out");
            true
        })
    }

    async fn should_delete(&self, volume: &Volume) -> bool {
        if !self.is_in_scope(volume) {
            return false;
        }
        if let (Some(in_use), Some(source)) = (&self.in_use, &volume.spec.csi) {
            in_use.released(source).await;
        }
        true
    }

    fn supports_block(&self) -> bool {
        true
    }

    fn volume_name(&self, claim: &Claim) -> String {
        let settings = &self.config.plan;
        let name =
            volume_name(&settings.name_prefix, &claim.metadata.uid, settings.name_uuid_length);
        // A name that cannot be made is reported when the volume is planned.
        name.unwrap_or_default()
    }

    async fn saved(&self, request: &Request) {
        let uid = &request.claim.metadata.uid;
        match self.intents.as_ref().is_some_and(|intents| intents.finish_later(uid)) {
            true => self.forget(uid),
            false => self.settle(uid).await,
        }
        self.release_snapshot(&request.claim).await;
    }
}
