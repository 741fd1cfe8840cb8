//! The steps that the binder's decisions are made of.

/// Whom an event is about.
use crate::model::{ClaimPhase, VolumeName, VolumePhase};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The claim.
    Claim,
    /// The volume.
    Volume,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whom it is about.
    pub about: About,
    /// `Warning` rather than `Normal`.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// One write to the claim or the volume at hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Point the volume at the claim (`spec.claimRef`).
    PointVolume {
        volume: VolumeName,
        /// Note that the binder, not a person, chose it.
        chosen_by_us: bool,
    },
    /// Set the phase of the volume.
    SetVolumePhase {
        volume: VolumeName,
        phase: VolumePhase,
        /// `status.message`.
        message: String,
    },
    /// Point the claim at the volume (`spec.volumeName`) and note that the bind is complete.
    PointClaim { volume: VolumeName },
    /// Set the claim's status to bound, with size and modes of the volume.
    SetClaimBound { volume: VolumeName },
    /// Set the claim's phase to one without a volume, and clear the rest of its status.
    SetClaimPhase(ClaimPhase),
    /// Take the volume's pointer back.
    Unbind { volume: VolumeName },
    /// Write the default class into the claim.
    SetClass(String),
    /// Write down on the claim who shall provision a volume for it.
    AskProvisioner {
        /// The driver, when one took over from an in-tree plugin.
        provisioner: String,
    },
    /// Bring the claim's migration annotation up to date; `None` removes it.
    SyncClaimMigration { migrated_to: Option<String> },
    /// Bring the volume's migration annotation and deletion finalizers up to date.
    SyncVolumeMigration { migrated_to: Option<String>, finalizers: Vec<String> },
}

/// One step. Steps are carried out in order; the first failure ends them, and the next pass decides
/// afresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Write(Write),
    /// Provision a volume for the claim with the in-tree plugin.
    ProvisionInTree,
    /// Delete the volume and its storage with the in-tree plugin.
    DeleteInTree,
    /// The volume's deletion is due. Only the metrics of deletions need to know.
    DeletionBegins {
        /// An external provisioner deletes it; otherwise no plugin can.
        external: bool,
    },
    /// Enqueue the claim of this volume.
    EnqueueClaim,
    /// Send an event.
    Event(Note),
    /// End the pass with this error; the queue tries again.
    Fail(String),
}

impl From<Write> for Action {
    fn from(write: Write) -> Self {
        Self::Write(write)
    }
}

impl Action {
    /// A `Normal` event about the claim.
    #[must_use]
    pub fn tell_claim(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Event(Note { about: About::Claim, warning: false, reason, message: message.into() })
    }

    /// A `Warning` event about the claim.
    #[must_use]
    pub fn warn_claim(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Event(Note { about: About::Claim, warning: true, reason, message: message.into() })
    }

    /// A `Normal` event about the volume.
    #[must_use]
    pub fn tell_volume(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Event(Note { about: About::Volume, warning: false, reason, message: message.into() })
    }

    /// A `Warning` event about the volume.
    #[must_use]
    pub fn warn_volume(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Event(Note { about: About::Volume, warning: true, reason, message: message.into() })
    }
}
