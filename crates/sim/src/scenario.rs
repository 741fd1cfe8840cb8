//! Scenarios: what a user does with a claim, from its creation to its end.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use longshore_core::model::kinds::{Claim, Pod, VolumeSnapshot};

use crate::latency::CreateDelay;
use crate::user::{CLAIM, CLONE, SNAPSHOT, User, UserError};
use crate::{NODES, changes, snapshot_life, workload};

/// What a user does with a claim, from its creation until nothing is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scenario {
    /// A claim is bound at once and deleted.
    Immediate,
    /// A claim waits for its pod; the pod runs, goes, and the claim follows.
    FirstConsumer,
    /// A claim is deleted while the driver has not made its volume yet.
    DeletedBeforeMade,
    /// A claim is deleted when the driver has made its volume and the provisioner does not know
    /// yet.
    DeletedAfterMade,
    /// A claim is deleted while its volume is made, and created again under the same name.
    Recreated,
    /// A volume is attached to one node and then, for another pod, to the other.
    Attached,
    /// A claim is cloned, and goes before its clone does.
    Cloned,
    /// A user deletes the PersistentVolume first, and then its claim.
    VolumeFirst,
    /// Several users, volumes made by hand, pods that move and nodes that fail, all from the seed.
    Workload,
    /// A snapshot is restored into a claim, and a user deletes it meanwhile.
    Restored,
    /// A claim grows and changes its class, as a user wants who changes their mind, all from the seed.
    Changed,
    /// Snapshots and groups of them come and go and are restored, for a user without patience, all from the seed.
    Snapshots,
}

impl Scenario {
    /// The scenarios of one claim, with all that belongs to it.
    pub const ALL: [Self; 9] = [
        Self::Immediate,
        Self::FirstConsumer,
        Self::DeletedBeforeMade,
        Self::DeletedAfterMade,
        Self::Recreated,
        Self::Attached,
        Self::Cloned,
        Self::VolumeFirst,
        Self::Restored,
    ];

    /// Its name in tables and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::FirstConsumer => "first-consumer",
            Self::DeletedBeforeMade => "deleted-before-made",
            Self::DeletedAfterMade => "deleted-after-made",
            Self::Recreated => "recreated",
            Self::Attached => "attached",
            Self::Cloned => "cloned",
            Self::VolumeFirst => "volume-first",
            Self::Restored => "restored",
            Self::Workload => "workload",
            Self::Changed => "changed",
            Self::Snapshots => "snapshots",
        }
    }

    pub(crate) fn attaches(self) -> bool {
        matches!(self, Self::Attached | Self::Workload)
    }

    pub(crate) fn has_topology(self, seed: u64) -> bool {
        self == Self::FirstConsumer || (self == Self::Workload && workload::has_topology(seed))
    }

    pub(crate) fn has_many_claims(self) -> bool {
        self == Self::Workload
    }

    pub(crate) fn changes(self) -> bool {
        self == Self::Changed
    }

    pub(crate) fn has_snapshots(self) -> bool {
        self == Self::Restored
    }

    /// Whether the programs for snapshots run, with their kinds.
    pub(crate) fn takes_snapshots(self) -> bool {
        self == Self::Snapshots
    }

    pub(crate) fn binding(self) -> &'static str {
        match self {
            Self::FirstConsumer | Self::Attached => "WaitForFirstConsumer",
            _ => "Immediate",
        }
    }

    pub(crate) fn create_delay(self) -> CreateDelay {
        let slow = Duration::from_secs(3);
        match self {
            Self::DeletedBeforeMade => CreateDelay { before: slow, ..CreateDelay::default() },
            Self::DeletedAfterMade | Self::Recreated => {
                CreateDelay { after: slow, ..CreateDelay::default() }
            }
            _ => CreateDelay::default(),
        }
    }

    pub(crate) async fn play(self, user: &User, seed: u64) -> Result<(), UserError> {
        tokio::select! {
            biased;
            () = user.given_up() => {}
            lived = self.live(user, seed) => lived?,
        }
        user.leave().await
    }

    async fn live(self, user: &User, seed: u64) -> Result<(), UserError> {
        user.make_class(self.binding()).await?;
        user.make_claim().await?;
        match self {
            Self::Immediate => user.bound(CLAIM).await?,
            Self::FirstConsumer => {
                user.make_pod("first", None).await?;
                user.running("first").await?;
                // The claim stays as long as the pod does.
                user.delete::<Claim>(CLAIM).await?;
                tokio::time::sleep(Duration::from_secs(4)).await;
                user.delete::<Pod>("first").await?;
                user.gone::<Pod>("first").await?;
            }
            Self::DeletedBeforeMade | Self::DeletedAfterMade => user.being_made().await?,
            Self::Recreated => {
                user.being_made().await?;
                user.delete::<Claim>(CLAIM).await?;
                user.gone_for_certain::<Claim>(CLAIM).await?;
                user.make_claim().await?;
                user.bound(CLAIM).await?;
            }
            Self::Cloned => {
                user.bound(CLAIM).await?;
                user.make_clone().await?;
                user.bound(CLONE).await?;
                user.delete::<Claim>(CLAIM).await?;
                user.delete::<Claim>(CLONE).await?;
            }
            // It has steps of its own.
            Self::Workload => {}
            Self::Changed => changes::live(user, seed).await?,
            Self::Snapshots => snapshot_life::live(user, seed).await?,
            Self::VolumeFirst => {
                user.bound(CLAIM).await?;
                user.delete_volume_of(CLAIM).await?;
            }
            Self::Restored => {
                user.bound_for_certain(CLAIM).await?;
                user.make_snapshot().await?;
                user.make_restore().await?;
                user.bound(CLONE).await?;
                user.delete::<VolumeSnapshot>(SNAPSHOT).await?;
                user.delete::<Claim>(CLONE).await?;
            }
            Self::Attached => {
                user.make_pod("first", Some(NODES[0])).await?;
                user.running("first").await?;
                // The second pod is there before the first has gone: it must wait for the detach.
                user.make_pod("second", Some(NODES[1])).await?;
                user.delete::<Pod>("first").await?;
                user.running("second").await?;
                user.delete::<Claim>(CLAIM).await?;
                tokio::time::sleep(Duration::from_secs(4)).await;
                user.delete::<Pod>("second").await?;
            }
        }
        user.delete::<Claim>(CLAIM).await
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::ALL.into_iter().chain([Self::Workload, Self::Changed, Self::Snapshots]);
        let found = all.into_iter().find(|scenario| scenario.name() == text);
        found.ok_or_else(|| format!("no scenario is called {text:?}"))
    }
}
