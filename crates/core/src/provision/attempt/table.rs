//! Which event leads from which state to which.

use std::sync::Arc;

use super::{Attempt, Call, Event, Misplaced, Refusal};
use crate::provision::{
    Plan,
    uncertain::{RefusalView, refusal_is_conclusive},
};

/// No volume of ours exists any more; the record goes next.
const SETTLED: Attempt = Attempt::Settled { rest: None };

impl Attempt {
    /// Takes one event in.
    ///
    /// # Errors
    /// [`Misplaced`] hands both back when the state does not allow the event.
    pub fn after(self, event: Event) -> Result<Self, Box<Misplaced>> {
        use Attempt::{Abandoned, Asked, Idle, Made, Resting, Settled, Uncertain};
        use Call::{CreateVolume, Request};
        use Event as E;

        Ok(match (self, event) {
            // Before the call. Uncertain without a plan: what the earlier plan made was deleted.
            (Idle(_) | Uncertain { call: Request, .. }, E::Recorded(plan)) => Asked { plan },
            (Idle(_) | Resting(_) | Uncertain { call: Request, .. }, E::Recovered(plan)) => {
                uncertain(plan, 0)
            }
            // This process knows more than the record.
            (same @ (Asked { .. } | Uncertain { .. } | Abandoned { .. }), E::Recovered(_)) => same,

            // The claim wants the volume of the plan, or does not want it any more.
            (same @ Uncertain { call: CreateVolume(_), .. }, E::Resumed) => same,
            (Abandoned { plan, refusals }, E::Resumed) => uncertain(plan, refusals),
            (Asked { plan }, E::Abandoned) => Abandoned { plan, refusals: 0 },
            (
                Uncertain { call: CreateVolume(plan), refusals, .. } | Abandoned { plan, refusals },
                E::Abandoned,
            ) => Abandoned { plan, refusals },

            // After the call. Refusals count in a row only.
            // Whether a call that is taken up again was sent is not known.
            (Asked { plan }, E::NoVerdict | E::Resumed) => uncertain(plan, 0),
            (Uncertain { call: call @ CreateVolume(_), asker, .. }, E::NoVerdict) => {
                Uncertain { call, refusals: 0, asker }
            }
            (Abandoned { plan, .. }, E::NoVerdict) => Abandoned { plan, refusals: 0 },
            // Only a call without a verdict leaves doubt, and there was none.
            (Asked { .. }, E::Refused(_)) => SETTLED,
            (
                state @ (Uncertain { call: CreateVolume(_), .. } | Abandoned { .. }),
                E::Refused(refusal),
            ) => state.doubted(refusal),
            (
                Asked { .. }
                | Uncertain { call: CreateVolume(_), .. }
                | Abandoned { .. }
                | Made { call: CreateVolume(_), .. },
                E::Absent | E::Saved,
            ) => SETTLED,

            // What the provisioner told the claim queue. Whatever has a plan and no asker is left to
            // the resolver of intents once the claim is gone.
            (Idle(_), E::Kept(asker)) => {
                Uncertain { call: Request, refusals: 0, asker: Some(asker) }
            }
            (Asked { plan }, E::Kept(asker)) => {
                Uncertain { call: CreateVolume(plan), refusals: 0, asker: Some(asker) }
            }
            (Uncertain { call, refusals, .. }, E::Kept(asker)) => {
                Uncertain { call, refusals, asker: Some(asker) }
            }
            (same @ (Abandoned { .. } | Settled { .. }), E::Kept(_)) => same,
            (Uncertain { call: Request, .. }, E::LetGo) => Self::default(),
            (Uncertain { call, refusals, .. }, E::LetGo) => {
                Uncertain { call, refusals, asker: None }
            }
            (same, E::LetGo) => same,

            // From the volume to its PersistentVolume.
            (Idle(_), E::Made(volume, asker)) => Made { call: Request, volume, asker },
            (Asked { plan }, E::Made(volume, asker)) => {
                Made { call: CreateVolume(plan), volume, asker }
            }
            (Uncertain { call, .. }, E::Made(volume, asker)) => Made { call, volume, asker },
            (Made { call: Request, .. }, E::Saved | E::Absent | E::NotSaved) => Self::default(),
            (Made { call: CreateVolume(plan), .. }, E::NotSaved) => uncertain(plan, 0),
            (Settled { rest: None }, E::RecordDropped) => Self::default(),
            (Settled { rest: Some(rest) }, E::RecordDropped) => Resting(rest),

            // Infeasible claims. A rest that has begun is not prolonged.
            (Idle(_), E::Rest(rest)) => Resting(rest),
            (Settled { rest: None }, E::Rest(rest)) => Settled { rest: Some(rest) },
            (same @ (Resting(_) | Settled { rest: Some(_) }), E::Rest(_)) => same,
            (Resting(_), E::Rested) => Self::default(),
            (Settled { .. }, E::Rested) => SETTLED,
            (same, E::Rested) => same,

            (state, event) => return Err(Box::new(Misplaced { state, event })),
        })
    }

    /// After a refusal that may hide a volume.
    fn doubted(self, refusal: Refusal) -> Self {
        let Refusal { infeasible, claim_waits, guarded } = refusal;
        let seen = self.refusals() + 1;
        let view =
            RefusalView { guarded, uncertain: true, refusals: seen, infeasible, claim_waits };
        match self {
            _ if refusal_is_conclusive(view) => SETTLED,
            Self::Uncertain { call, asker, .. } => Self::Uncertain { call, refusals: seen, asker },
            Self::Abandoned { plan, .. } => Self::Abandoned { plan, refusals: seen },
            same @ (Self::Idle(_)
            | Self::Resting(_)
            | Self::Asked { .. }
            | Self::Made { .. }
            | Self::Settled { .. }) => same,
        }
    }
}

fn uncertain(plan: Arc<Plan>, refusals: u32) -> Attempt {
    Attempt::Uncertain { call: Call::CreateVolume(plan), refusals, asker: None }
}
