//! Bugs on purpose: they show that the tests of the provisioner would see one. No program has them.

use super::Config;
use crate::planted::plantable;

/// A bug on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// No intents, and calls without a verdict are forgotten.
    Leak,
    /// Every attempt asks for a volume under a name of its own.
    NewNames,
    /// Volumes are saved without our finalizer.
    NoFinalizer,
    /// A volume is deleted as soon as somebody wants to delete its claim.
    #[cfg(any(test, feature = "planted-bugs"))]
    EarlyDelete,
}

plantable!(Config, Planted);

/// Plants [`Planted::EarlyDelete`].
#[cfg(any(test, feature = "planted-bugs"))]
pub(super) fn delete_early(
    provisioner: &std::sync::Arc<super::make::CsiProvisioner>,
) -> Option<longshore_cluster::Subscription> {
    use longshore_core::model::ObjectKey;
    use longshore_provisioner::Provisioner as _;

    if !provisioner.config.has(Planted::EarlyDelete) {
        return None;
    }
    let weak = std::sync::Arc::downgrade(provisioner);
    Some(provisioner.parts.claims.subscribe(move |change| {
        let claim = change.object();
        let volume = ObjectKey::cluster(&claim.spec.volume_name);
        if let Some(provisioner) = weak.upgrade().filter(|_| claim.metadata.deleting())
            && let Some(volume) = provisioner.parts.volumes.get(&volume)
        {
            tokio::spawn(async move { provisioner.delete(&volume).await });
        }
    }))
}
