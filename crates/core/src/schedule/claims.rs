//! What a pod's claims ask of the scheduler, before any node is looked at.

use crate::{
    attach::resolve::owned_by,
    model::{
        ClaimPhase, VolumeName,
        keys::annotations,
        kinds::{Claim, CsiDriver, Pod, PodVolume, StorageClass, Volume},
    },
};

/// One claim of the pod and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct ClaimFacts<'a> {
    pub claim: &'a Claim,
    /// Its class, if it names one that exists.
    pub class: Option<&'a StorageClass>,
    /// The volume it names, if there is one.
    pub volume: Option<&'a Volume>,
    /// The driver named like the class's provisioner.
    pub driver: Option<&'a CsiDriver>,
}

/// How a claim stands for the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Classified {
    /// It has its volume.
    Bound,
    /// It waits for a pod to be placed, and this is the pod.
    Delayed,
    /// The binder has to finish first.
    Immediate,
}

/// Whether the bind of a claim is complete.
#[must_use]
pub fn fully_bound(claim: &Claim) -> bool {
    let completed = claim.metadata.annotations.contains_key(annotations::BIND_COMPLETED);
    completed && !claim.spec.volume_name.is_empty()
}

/// How one claim stands.
#[must_use]
pub fn classify(facts: &ClaimFacts<'_>) -> Classified {
    let delayed = facts.class.is_some_and(StorageClass::waits_for_consumer);
    if fully_bound(facts.claim) {
        Classified::Bound
    } else if delayed && facts.claim.spec.volume_name.is_empty() {
        Classified::Delayed
    } else {
        Classified::Immediate
    }
}

/// Why no node can help this pod now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// A claim does not exist.
    #[error("persistentvolumeclaim \"{0}\" not found")]
    NoClaim(String),
    /// A claim is yet to be made for the pod.
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{0}\"")]
    NoEphemeralClaim(String),
    /// A claim lost its volume.
    #[error(
        "persistentvolumeclaim \"{claim}\" bound to non-existent persistentvolume \"{volume}\""
    )]
    Lost {
        claim: String,
        /// The volume it had.
        volume: VolumeName,
    },
    /// A claim is going away.
    #[error("persistentvolumeclaim \"{0}\" is being deleted")]
    Deleting(String),
    /// A claim under the generated name that was not made for this pod.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner {
        /// The claim, with its namespace.
        claim: String,
        /// The pod, with its namespace.
        pod: String,
    },
    /// A claim waits for the binder, not for us.
    #[error("pod has unbound immediate PersistentVolumeClaims")]
    Immediate,
}

/// The pod's claims, sorted by what has to happen to them.
#[derive(Debug, Clone, Default)]
pub struct PodClaims<'a> {
    /// Those with a volume: the node must reach it.
    pub bound: Vec<ClaimFacts<'a>>,
    /// Those that get their volume on the chosen node.
    pub delayed: Vec<ClaimFacts<'a>>,
}

impl PodClaims<'_> {
    /// Nothing has to be bound or made before the pod can go.
    #[must_use]
    pub fn all_bound(&self) -> bool {
        self.delayed.is_empty()
    }
}

/// Sorts the pod's claims. `lookup` finds a claim of the pod's namespace by name.
pub fn sort_claims<'a>(
    pod: &Pod,
    lookup: impl Fn(&str) -> Option<ClaimFacts<'a>>,
) -> Result<PodClaims<'a>, NotReady> {
    let mut sorted = PodClaims::default();
    let mut immediate = false;
    for (name, volume) in pod.claim_names() {
        let facts = usable(pod, &name, volume, lookup(&name))?;
        match classify(&facts) {
            Classified::Bound => sorted.bound.push(facts),
            Classified::Delayed => sorted.delayed.push(facts),
            Classified::Immediate => immediate = true,
        }
    }
    if immediate {
        return Err(NotReady::Immediate);
    }
    // Two volumes of the pod may name one claim; it is bound once.
    sorted.delayed.sort_by(|a, b| a.claim.metadata.name.cmp(&b.claim.metadata.name));
    sorted.delayed.dedup_by(|a, b| a.claim.metadata.name == b.claim.metadata.name);
    Ok(sorted)
}

fn usable<'a>(
    pod: &Pod,
    name: &str,
    volume: &PodVolume,
    facts: Option<ClaimFacts<'a>>,
) -> Result<ClaimFacts<'a>, NotReady> {
    let ephemeral = volume.ephemeral.is_some();
    let Some(facts) = facts else {
        let name = name.to_owned();
        return Err(if ephemeral {
            NotReady::NoEphemeralClaim(name)
        } else {
            NotReady::NoClaim(name)
        });
    };
    let claim = facts.claim;
    if ephemeral && !owned_by(claim, pod) {
        let (claim, pod) = (claim.metadata.key().to_string(), pod.metadata.key().to_string());
        return Err(NotReady::NotOwner { claim, pod });
    }
    if claim.status.phase == ClaimPhase::Lost {
        let volume = claim.spec.volume_name.clone();
        return Err(NotReady::Lost { claim: name.to_owned(), volume });
    }
    if claim.metadata.deleting() {
        return Err(NotReady::Deleting(name.to_owned()));
    }
    Ok(facts)
}
