//! Invariants, checked at the moment they would break.

use std::collections::BTreeMap;

use longshore_core::model::Kind;
use longshore_core::model::keys::annotations;
use longshore_core::model::kinds::{Claim, Volume};
use longshore_csi::Call;
use longshore_csi::fake::CallEvent;
use serde_json::Value;

use crate::changes::Memory;
use crate::latency::Latency;
use crate::ledger::Ledger;
use crate::power::Power;
use crate::snapshot_life;
use crate::truth::Truth;
use crate::wire::field;

/// Prefix of the driver's names of volumes that an administrator has made.
pub(crate) const BY_HAND: &str = "by-hand-";

/// Checks every call of the driver before it takes effect.
#[derive(Clone)]
pub(crate) struct Checks {
    pub(crate) truth: Truth,
    pub(crate) ledger: Ledger,
    pub(crate) latency: Latency,
    pub(crate) power: Power,
    /// Where claims grow and change their class.
    pub(crate) changes: Option<Memory>,
}

impl Checks {
    pub(crate) fn before(&self, moment: &CallEvent<'_>) {
        match moment.call {
            Call::ControllerModifyVolume => {
                let (handle, class) =
                    (field(moment.request, "volume_id"), field(moment.request, "tier"));
                let wrong = self.changes.as_ref().and_then(|memory| memory.asked(&handle, &class));
                wrong.into_iter().for_each(|wrong| self.ledger.breach(wrong));
            }
            Call::DeleteVolume => {
                let handle = field(moment.request, "volume_id");
                self.no_claim_is_bound(&handle);
                self.not_made_by_hand(&handle);
            }
            Call::DeleteSnapshot => {
                let handle = field(moment.request, "snapshot_id");
                self.snapshot_life_is_over("DeleteSnapshot", &handle);
            }
            Call::DeleteVolumeGroupSnapshot => {
                let handle = field(moment.request, "group_snapshot_id");
                self.snapshot_life_is_over("DeleteVolumeGroupSnapshot", &handle);
            }
            Call::NodeStageVolume | Call::NodePublishVolume => {
                self.no_other_node_uses(&field(moment.request, "volume_id"), moment.node);
            }
            Call::ControllerPublishVolume => {
                let node = field(moment.request, "node_id");
                self.not_on_another_node(&field(moment.request, "volume_id"), &node);
            }
            _ => {}
        }
    }

    pub(crate) fn after(&self, moment: &CallEvent<'_>) {
        if moment.call == Call::CreateVolume {
            self.one_for_each_claim();
        }
        if let Some(memory) = &self.changes
            && matches!(moment.call, Call::NodeStageVolume | Call::NodeExpandVolume)
        {
            memory.shows(self.truth.driver(), &field(moment.request, "volume_id"));
        }
    }

    /// Nothing is made twice: every volume is for one claim, and no other is.
    fn one_for_each_claim(&self) {
        let volumes = self.truth.driver().volumes();
        let mut made: Vec<&str> = volumes.values().map(|volume| volume.name.as_str()).collect();
        made.retain(|name| !name.starts_with(BY_HAND));
        for claim in self.ledger.claims() {
            let for_it = made.iter().filter(|name| name.contains(&claim)).count();
            if for_it > 1 {
                self.ledger.breach(format!("{for_it} volumes were made for claim {claim}"));
            }
            made.retain(|name| !name.contains(&claim));
        }
        if !made.is_empty() {
            self.ledger.breach(format!("volumes that no claim asks for: {}", made.join(", ")));
        }
    }

    /// A volume is never deleted while a claim is bound to it.
    fn no_claim_is_bound(&self, handle: &str) {
        let volumes = self.truth.list::<Volume>();
        let names = volumes.iter().filter(|pv| pv["spec"]["csi"]["volumeHandle"] == handle);
        for volume in names {
            for claim in self.truth.list::<Claim>() {
                if claim["spec"]["volumeName"] == volume["metadata"]["name"]
                    && claim["metadata"]["uid"] == volume["spec"]["claimRef"]["uid"]
                {
                    let name = &claim["metadata"]["name"];
                    self.ledger.breach(format!("DeleteVolume of {handle}: claim {name} has it"));
                }
            }
        }
    }

    /// A snapshot is never deleted that somebody still has.
    fn snapshot_life_is_over(&self, call: &str, handle: &str) {
        if let Some(holder) = snapshot_life::holder(&self.truth, handle) {
            self.ledger.breach(format!("{call} of {handle}: {holder} has it"));
        }
    }

    /// Only an administrator deletes what an administrator has made.
    fn not_made_by_hand(&self, handle: &str) {
        let world = self.truth.driver().state();
        if world.volumes.get(handle).is_some_and(|volume| volume.name.starts_with(BY_HAND)) {
            self.ledger
                .breach(format!("DeleteVolume of {handle}, which an administrator has made"));
        }
    }

    /// Two nodes never write to one volume.
    fn no_other_node_uses(&self, handle: &str, node: &str) {
        let world = self.truth.driver().state();
        for other in world.used_on(handle).into_iter().filter(|other| *other != node) {
            self.ledger
                .breach(format!("{handle} is mounted on {node} while {other} has it mounted"));
        }
    }

    /// All volumes of the simulator are for one writing node.
    fn not_on_another_node(&self, handle: &str, node: &str) {
        let world = self.truth.driver().state();
        let published = world.volumes.get(handle).map(|volume| volume.published.keys());
        for other in published.into_iter().flatten().filter(|other| *other != node) {
            self.ledger.breach(format!("{handle} is sent to {node} while {other} has it"));
        }
    }

    /// Checks a request to delete a PersistentVolume.
    pub(crate) fn before_write(&self, point: &str, object: &str) {
        if point != "api delete persistentvolumes" {
            return;
        }
        let Some(volume) = self.truth.get::<Volume>(object) else { return };
        if let Some(claim) = self.truth.list::<Claim>().iter().find(|claim| is_pair(claim, &volume))
        {
            let claim = &claim["metadata"]["name"];
            self.ledger.breach(format!("volume {object} is reclaimed while claim {claim} has it"));
        }
    }

    /// Checks claims and volumes after a write to either.
    pub(crate) fn after_write(&self, point: &str) {
        let kind = point.rsplit(' ').next().unwrap_or_default();
        let kind = kind.split('/').next().unwrap_or_default();
        if kind != Volume::PLURAL && kind != Claim::PLURAL {
            return;
        }
        let wrong = self.changes.as_ref().and_then(|memory| memory.says_too_much(&self.truth));
        wrong.into_iter().for_each(|wrong| self.ledger.breach(wrong));
        let (volumes, claims) = (self.truth.list::<Volume>(), self.truth.list::<Claim>());
        self.one_claim_for_each_volume(&claims);
        self.one_volume_for_each_claim(&volumes);
        for volume in volumes.iter().filter(|volume| volume["status"]["phase"] == "Released") {
            if let Some(claim) = claims.iter().find(|claim| is_pair(claim, volume)) {
                let (volume, claim) = (&volume["metadata"]["name"], &claim["metadata"]["name"]);
                self.ledger
                    .breach(format!("volume {volume} is released while claim {claim} has it"));
            }
        }
    }

    fn one_claim_for_each_volume(&self, claims: &[Value]) {
        let bound = |claim: &&Value| {
            claim["status"]["phase"] == "Bound"
                && !claim["metadata"]["annotations"][annotations::BIND_COMPLETED].is_null()
        };
        let mut owners: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for claim in claims.iter().filter(bound) {
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
            owners.entry(volume).or_default().push(&claim["metadata"]["name"]);
        }
        for (volume, names) in owners.iter().filter(|(_, names)| names.len() > 1) {
            self.ledger.breach(format!("volume {volume} is bound to two claims: {names:?}"));
        }
    }

    fn one_volume_for_each_claim(&self, volumes: &[Value]) {
        let mut owned: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for volume in volumes.iter().filter(|volume| volume["status"]["phase"] == "Bound") {
            let claim = volume["spec"]["claimRef"]["uid"].as_str().unwrap_or_default();
            owned.entry(claim).or_default().push(&volume["metadata"]["name"]);
        }
        for (claim, names) in owned.iter().filter(|(_, names)| names.len() > 1) {
            self.ledger.breach(format!("claim {claim} is bound to two volumes: {names:?}"));
        }
    }
}

/// Whether claim and volume point at each other.
fn is_pair(claim: &Value, volume: &Value) -> bool {
    claim["spec"]["volumeName"] == volume["metadata"]["name"]
        && claim["metadata"]["uid"] == volume["spec"]["claimRef"]["uid"]
}
