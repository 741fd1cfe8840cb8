//! Carries what a driver reports of volumes into the status of their claims.
//!
//! What the driver said last is remembered, so that a write that failed is made up for in the next cycle, and an event
//! is written once even where the API server does not keep the field. Nothing is remembered of healthy volumes, and
//! nothing across leaderships: the status of the claims is what a new leader begins with.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use longshore_cluster::{ApiError, Patch, clock};
use longshore_core::{
    health::{
        RECOVERED,
        conditions::{Decision, Entry, Observed, absent, begun, decide, event_text, patch, same},
    },
    model::{
        ObjectKey, Uid,
        kinds::{Claim, Volume, VolumeHealthCondition},
    },
};
use parking_lot::Mutex;
use serde::Deserialize as _;

use super::{ABNORMAL, Monitor, NORMAL, metrics::HealthMetrics};

/// Of so many cycles one tries to write while the API server drops what is written.
const TRY_EVERY: u32 = 10;
/// The word for a status that the API has none for.
const UNKNOWN: &str = "Unknown";

/// What is remembered, by the name of the volume.
pub(super) type Known = BTreeMap<String, Health>;

/// What is remembered of a volume that is not healthy, or was not when it was asked about last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) claim: ObjectKey,
    uid: Uid,
    /// What stands as far as the driver has said; the status of the claim shall say the same.
    conditions: Vec<VolumeHealthCondition>,
    /// What the driver says and the status of the claim has no words for.
    unknown: Vec<Entry>,
    /// How many complete lists in a row have left it out.
    absent: u32,
    /// For how many cycles nothing was written, because the API server drops it.
    held_back: u32,
}

impl Health {
    /// A claim that nothing is remembered of is as its status says.
    fn of(claim: &Claim) -> Self {
        Self {
            claim: claim.metadata.key(),
            uid: claim.metadata.uid.clone(),
            conditions: standing(claim).to_vec(),
            ..Self::default()
        }
    }

    fn is_healthy(&self) -> bool {
        self.conditions.is_empty() && self.unknown.is_empty()
    }

    /// Status and reason of everything that is wrong.
    pub(super) fn words(&self) -> impl Iterator<Item = (&str, &str)> {
        let known = self.conditions.iter().map(|one| (one.status.as_str(), one.reason.as_str()));
        known.chain(self.unknown.iter().map(|one| (UNKNOWN, one.reason.as_str())))
    }

    /// Takes in what a cycle has learned.
    fn learn(&mut self, observed: Observed<'_>, decision: &Decision) {
        match observed {
            Observed::Absent { .. } if !self.is_healthy() => self.absent += 1,
            Observed::Reported(_) | Observed::Partly(_) => self.absent = 0,
            // A cycle without a complete list is none: it neither counts nor ends the count.
            Observed::Absent { .. } | Observed::Failed => {}
        }
        match decision {
            Decision::Keep | Decision::Confirm => {}
            Decision::Replace(conditions) => self.conditions.clone_from(conditions),
            Decision::Clear => {
                self.conditions.clear();
                self.unknown.clear();
            }
        }
        if let Observed::Reported(report) = observed {
            self.unknown.clone_from(&report.unknown);
        }
    }
}

/// What stands in the status of a claim.
fn standing(claim: &Claim) -> &[VolumeHealthCondition] {
    &claim.status.health_status.health_conditions
}

/// The claims of the driver's volumes.
pub(super) struct Claims {
    pub(super) monitor: Arc<Monitor>,
    pub(super) metrics: HealthMetrics,
    known: Arc<Mutex<Known>>,
    /// Whether the API server drops what is written: gate `CSIVolumeHealth` is off there, or it is older than 1.37. Its
    /// schema does not tell, so the response to a write does.
    drops: AtomicBool,
    /// Whether it was said that the right to write is missing.
    forbidden: AtomicBool,
}

/// How a write ended.
enum Written {
    Claim(Box<Claim>),
    /// The claim is gone, or another one has its name.
    Gone,
    /// It is tried again in the next cycle.
    Failed,
}

impl Claims {
    pub(super) fn new(monitor: &Arc<Monitor>) -> Self {
        let metrics = HealthMetrics::of(&monitor.context.metrics);
        let known = Arc::default();
        metrics.watch(&monitor.driver, &known);
        metrics.server_drops.set(0);
        let (drops, forbidden) = Default::default();
        Self { monitor: monitor.clone(), metrics, known, drops, forbidden }
    }

    /// How many complete lists in a row have left out the volume.
    pub(super) fn absences(&self, volume: &Volume) -> u32 {
        self.known.lock().get(&volume.metadata.name).map_or(0, |health| health.absent)
    }

    pub(super) fn forget(&self, volume: &str) {
        self.known.lock().remove(volume);
    }

    /// Forgets all volumes but these.
    pub(super) fn keep_only(&self, keep: impl Fn(&str) -> bool) {
        self.known.lock().retain(|volume, _| keep(volume));
    }

    /// Carries into the claim what was learned of its volume, and returns what was decided.
    pub(super) async fn settle(&self, volume: &Volume, observed: Observed<'_>) -> Decision {
        let name = volume.metadata.name.as_str();
        let Some(claim) = self.claim_of(volume) else {
            self.forget(name);
            return Decision::Keep;
        };
        let mut health = self.remembered(name, &claim);
        let decision = match observed {
            // What has no word in the API stands as well.
            Observed::Absent { before, confirm } if !health.is_healthy() => absent(before, confirm),
            _ => decide(&health.conditions, observed),
        };
        let before = health.clone();
        health.learn(observed, &decision);
        self.tell(&claim, &before, &health);
        // Asking about the volume alone is still part of this cycle.
        let due = decision != Decision::Confirm && self.is_due(&claim, &mut health);
        self.remember(name, &claim, &health);
        if due {
            match self.write(&claim, &health.conditions).await {
                Written::Claim(claim) => self.remember(name, &claim, &health),
                Written::Gone => self.forget(name),
                Written::Failed => {}
            }
        }
        decision
    }

    /// The claim that the volume is bound to; not another one of its name.
    fn claim_of(&self, volume: &Volume) -> Option<Arc<Claim>> {
        let of = volume.spec.claim_ref.as_ref()?;
        let claim = self.monitor.claims.get(&ObjectKey::new(&of.namespace, &of.name))?;
        (claim.metadata.uid == of.uid).then_some(claim)
    }

    fn remembered(&self, volume: &str, claim: &Claim) -> Health {
        let known = self.known.lock().get(volume).cloned();
        known.filter(|health| health.uid == claim.metadata.uid).unwrap_or_else(|| Health::of(claim))
    }

    /// A healthy volume is forgotten when its claim says the same.
    fn remember(&self, volume: &str, claim: &Claim, health: &Health) {
        let mut known = self.known.lock();
        if health.is_healthy() && standing(claim).is_empty() {
            known.remove(volume);
        } else {
            known.insert(volume.to_owned(), health.clone());
        }
    }

    /// Says on the claim what begins, and when the last of it has ended.
    fn tell(&self, claim: &Claim, before: &Health, health: &Health) {
        let recorder = &self.monitor.recorder;
        for one in begun(&before.conditions, &health.conditions) {
            let text = event_text(one.status.as_str(), &one.reason, &one.message);
            recorder.warning(claim, ABNORMAL, text);
        }
        let is_new = |one: &&Entry| {
            !before.unknown.iter().any(|old| (old.status, &old.reason) == (one.status, &one.reason))
        };
        for one in health.unknown.iter().filter(is_new) {
            recorder.warning(claim, ABNORMAL, event_text(UNKNOWN, &one.reason, &one.message));
        }
        if health.is_healthy() && !before.is_healthy() {
            recorder.normal(claim, NORMAL, RECOVERED);
        }
    }

    /// Whether the claim shall be written in this cycle.
    fn is_due(&self, claim: &Claim, health: &mut Health) -> bool {
        if same(standing(claim), &health.conditions) {
            health.held_back = 0;
            return false;
        }
        if !self.drops.load(Relaxed) {
            return true;
        }
        health.held_back = (health.held_back + 1) % TRY_EVERY;
        health.held_back == 0
    }

    async fn write(&self, claim: &Claim, conditions: &[VolumeHealthCondition]) -> Written {
        let key = claim.metadata.key();
        let change = patch(&claim.metadata.uid, conditions, &clock::seconds(clock::now()));
        let api = &self.monitor.context.api;
        let error = match api.patch_status::<Claim>(&key, Patch::Merge(&change)).await {
            Ok(response) => {
                self.forbidden.store(false, Relaxed);
                self.monitor.claims.assume(&response);
                match Claim::deserialize(&response) {
                    Ok(written) => {
                        self.notice_drops(claim, &written, conditions);
                        return Written::Claim(Box::new(written));
                    }
                    Err(error) => {
                        tracing::warn!(claim = %key, %error, "own write is unreadable");
                        return Written::Failed;
                    }
                }
            }
            Err(error) => error,
        };
        match &error {
            ApiError::NotFound { .. } => return Written::Gone,
            // Another claim has taken the name; its own volume is asked about.
            ApiError::Invalid { message, .. } if message.contains("metadata.uid") => {
                return Written::Gone;
            }
            ApiError::Forbidden { .. } if !self.forbidden.swap(true, Relaxed) => {
                let text = format!(
                    "cannot write the health of the volume into the status of the claim: {error}; the health monitor \
                     needs patch on persistentvolumeclaims/status"
                );
                self.monitor.recorder.warning(claim, "VolumeHealthNotWritten", text);
            }
            _ => {}
        }
        tracing::warn!(claim = %key, %error, "cannot write the health of the volume; trying again in the next cycle");
        Written::Failed
    }

    /// Compares what the API server made of a write with what was sent.
    fn notice_drops(&self, old: &Claim, new: &Claim, sent: &[VolumeHealthCondition]) {
        let kept = same(standing(new), sent);
        // A claim that has the field may change it whatever the gate: only a new value tells.
        let tells = standing(old).is_empty() && !sent.is_empty();
        if !tells || self.drops.swap(!kept, Relaxed) != kept {
            return;
        }
        self.metrics.server_drops.set(i64::from(!kept));
        if kept {
            tracing::info!("the API server keeps the health of volumes now");
        } else {
            tracing::warn!(
                "the API server does not keep the health of volumes in the status of claims: it is older than \
                 Kubernetes 1.37, or its gate CSIVolumeHealth is off; events and metrics go on"
            );
        }
    }
}
