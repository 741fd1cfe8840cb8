//! What may never happen, checked at the moment it would.

use longshore_core::model::kinds::{Claim, Volume};
use longshore_csi::Call;
use longshore_csi::fake::Moment;

use crate::ledger::Ledger;
use crate::truth::Truth;
use crate::weather::Weather;
use crate::wire::field;

/// Looks at every call of the driver before it takes effect.
pub(crate) struct Checks {
    pub(crate) truth: Truth,
    pub(crate) ledger: Ledger,
    pub(crate) weather: Weather,
}

impl Checks {
    pub(crate) fn before(&self, moment: &Moment<'_>) {
        match moment.call {
            Call::DeleteVolume => self.no_claim_is_bound(&field(moment.request, "volume_id")),
            Call::ControllerPublishVolume => {
                let node = field(moment.request, "node_id");
                self.not_on_another_node(&field(moment.request, "volume_id"), &node);
            }
            _ => {}
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

    /// All volumes of this world are for one writing node.
    fn not_on_another_node(&self, handle: &str, node: &str) {
        let world = self.truth.driver().world();
        let published = world.volumes.get(handle).map(|volume| volume.published.keys());
        for other in published.into_iter().flatten().filter(|other| *other != node) {
            self.ledger.breach(format!("{handle} is sent to {node} while {other} has it"));
        }
    }
}
