//! The steps that the binder's decisions are made of.

/// Whom an event is about.
use crate::model::{ClaimPhase, VolumePhase};

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

/// One step. Steps are carried out in order; the first failure ends them, and the next look
/// decides afresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Point the volume at the claim (`spec.claimRef`).
    PointVolume {
        /// The volume.
        volume: String,
        /// Note that the binder, not a person, chose it.
        chosen_by_us: bool,
    },
    /// Set the volume's phase.
    SetVolumePhase {
        /// The volume.
        volume: String,
        /// The phase.
        phase: VolumePhase,
        /// `status.message`.
        message: String,
    },
    /// Point the claim at the volume (`spec.volumeName`) and note that the bind is complete.
    PointClaim {
        /// The volume.
        volume: String,
    },
    /// Set the claim's status to bound, with size and modes of the volume.
    SetClaimBound {
        /// The volume.
        volume: String,
    },
    /// Set the claim's phase to one without a volume, and clear the rest of its status.
    SetClaimPhase(ClaimPhase),
    /// Take the volume's pointer back.
    Unbind {
        /// The volume.
        volume: String,
    },
    /// Write the default class into the claim.
    SetClass(String),
    /// Write down on the claim who shall make a volume for it.
    AskProvisioner {
        /// The provisioner: the driver, when one took over from an in-tree plugin.
        provisioner: String,
    },
    /// Bring the claim's note of the driver that took over up to date.
    AnnealClaim {
        /// The driver; `None` removes the note.
        migrated_to: Option<String>,
    },
    /// Bring the volume's note and deletion finalizers up to date.
    AnnealVolume {
        /// The driver; `None` removes the note.
        migrated_to: Option<String>,
        /// The finalizers as they shall be.
        finalizers: Vec<String>,
    },
    /// Make a volume for the claim, by way of the plugin inside.
    MakeInside,
    /// Delete the volume and what is behind it, by way of the plugin inside.
    DeleteInside,
    /// The volume is to be deleted, by whoever can. Only who takes the time of it needs to know.
    DeletionBegins {
        /// Somebody outside deletes it; otherwise nobody does, for want of a plugin.
        external: bool,
    },
    /// Look at the claim of this volume.
    LookAtClaim,
    /// Send an event.
    Tell(Note),
    /// Nothing more can be done now; look again later.
    Fail(String),
}

impl Action {
    /// A `Normal` event about the claim.
    #[must_use]
    pub fn tell_claim(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Tell(Note { about: About::Claim, warning: false, reason, message: message.into() })
    }

    /// A `Warning` event about the claim.
    #[must_use]
    pub fn warn_claim(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Tell(Note { about: About::Claim, warning: true, reason, message: message.into() })
    }

    /// A `Normal` event about the volume.
    #[must_use]
    pub fn tell_volume(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Tell(Note { about: About::Volume, warning: false, reason, message: message.into() })
    }

    /// A `Warning` event about the volume.
    #[must_use]
    pub fn warn_volume(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Tell(Note { about: About::Volume, warning: true, reason, message: message.into() })
    }
}
