//! From a claim and its class to the plan of one CreateVolume.

use std::{borrow::Cow, sync::Arc};

use longshore_cluster::Cache;
use longshore_core::{
    model::{
        NodeName, ObjectKey,
        kinds::{Claim, ReferenceGrant, StorageClass, VolumeAttributesClass},
    },
    provision::{
        NotPlanned, Plan, PlanView, attributes_class, check, migration, plan,
        topology::{Requirement, TopologyError},
    },
};
use longshore_provisioner::ProvisionError;

use super::{make::CsiProvisioner, places::Manner};
use crate::driver;

/// Grants by their namespace.
const BY_NAMESPACE: &str = "grants-by-namespace";

/// Lets grants be found by their namespace.
pub(super) fn index_grants(grants: &Cache<ReferenceGrant>) {
    grants.index(BY_NAMESPACE, |grant: &ReferenceGrant| vec![grant.metadata.namespace.clone()]);
}

/// The grants that can matter to a claim: those of the namespace where its source is.
fn grants_for(grants: &Cache<ReferenceGrant>, claim: &Claim) -> Vec<Arc<ReferenceGrant>> {
    let source = claim.spec.data_source_ref.as_ref();
    let namespace = source.and_then(|source| source.namespace.as_deref());
    namespace.map(|name| grants.by_index(BY_NAMESPACE, name)).unwrap_or_default()
}

impl CsiProvisioner {
    /// Plans the call, and marks what it is filled from as being in use.
    pub(super) async fn plan_for(
        &self,
        claim: &Claim,
        class: &StorageClass,
        node: Option<&NodeName>,
    ) -> Result<Plan, ProvisionError> {
        let (class, in_tree) = self.csi_class(class)?;
        let capabilities = driver::capabilities(&self.parts.csi).await;
        let capabilities = capabilities.map_err(ProvisionError::unchanged)?;
        let grants = self.parts.grants.as_ref().map(|grants| grants_for(grants, claim));
        let mut view = PlanView {
            claim,
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
        let not_planned = |why| self.not_planned(claim, why);
        if let Some(source) = check(&view).map_err(not_planned)? {
            view.content = Some(self.fill(claim, &class, &source).await?);
        }
        view.topology = self.topology_in_use().then(|| self.requirement(claim, &class, node));
        let plan = plan(&view).map_err(not_planned)?;
        match attributes_class(claim, &self.config.plan) {
            Some(class) => self.tune(claim, plan, class).await,
            None => Ok(plan),
        }
    }

    async fn tune(&self, claim: &Claim, plan: Plan, name: &str) -> Result<Plan, ProvisionError> {
        let key = ObjectKey::cluster(name);
        let found = self.parts.api.get::<VolumeAttributesClass>(&key).await;
        let secret = plan.secrets.provisioner.clone();
        let tuned = match found {
            Ok(Some(class)) => plan.tuned(&class).map_err(|why| self.not_planned(claim, why)),
            Ok(None) => {
                self.parts.api.wake_on_change::<VolumeAttributesClass>(&key, None);
                let text = format!("volumeattributesclasses.storage.k8s.io \"{name}\" not found");
                Err(ProvisionError::unchanged(text))
            }
            Err(error) => Err(ProvisionError::unchanged(error)),
        };
        if tuned.is_err() {
            // Upstream reads the secret before the class: of two faults the same one is told.
            self.content(secret.as_ref()).await.map_err(ProvisionError::unchanged)?;
        }
        tuned
    }

    fn not_planned(&self, claim: &Claim, why: NotPlanned) -> ProvisionError {
        match why {
            NotPlanned::Final(text) => ProvisionError::Final(text.into()),
            NotPlanned::Unchanged(text) => ProvisionError::Unchanged(text.into()),
            NotPlanned::Elsewhere(text) => ProvisionError::Elsewhere(text.into()),
            NotPlanned::Populator => {
                let text = "Assuming an external populator will provision the volume";
                self.parts.recorder.normal(claim, "Provisioning", text);
                ProvisionError::Ignored("the data source is filled by an external populator".into())
            }
        }
    }

    pub(super) fn topology_in_use(&self) -> bool {
        self.config.topology && self.driver.capabilities.topology && self.places.known()
    }

    /// The topology requirement, from what was observed for the claim and is still there.
    pub(super) fn requirement(
        &self,
        claim: &Claim,
        class: &StorageClass,
        node: Option<&NodeName>,
    ) -> Result<Option<Requirement>, TopologyError> {
        let uid = &claim.metadata.uid;
        let manner = Manner {
            strict: self.config.strict_topology,
            immediate: self.config.immediate_topology,
        };
        let mut observed =
            self.attempts.draft(uid, |draft| draft.observed.take()).unwrap_or_default();
        let result = self.places.requirement(&mut observed, claim, class, node, manner);
        self.attempts.draft(uid, |draft| draft.observed = Some(observed));
        result
    }

    /// The class as the driver understands it, and whether it had to be translated.
    fn csi_class<'a>(
        &self,
        class: &'a StorageClass,
    ) -> Result<(Cow<'a, StorageClass>, bool), ProvisionError> {
        if migration::plugin_of(&self.driver.name) != Some(class.provisioner.as_str()) {
            return Ok((Cow::Borrowed(class), false));
        }
        let new = migration::class_to_csi(class).map_err(|error| {
            ProvisionError::Final(format!("failed to translate storage class: {error}").into())
        })?;
        Ok((Cow::Owned(new), true))
    }
}
