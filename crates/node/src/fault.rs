//! Named points between the steps of the agent, where a test can end the process.

/// What happens at the points of an agent.
pub type Faults = longshore_files::fault::Faults<Forgets>;

/// Every point, in the order in which a pod's life passes them.
pub const POINTS: [&str; 22] = [
    "start.announced",
    "start.reconstructed",
    "stage.recorded",
    "stage.answered",
    "publish.recorded",
    "publish.answered",
    "in-use.written",
    "pod.mounted",
    "shim.started",
    "container.told",
    "container.started",
    "status.written",
    "pod.stopped",
    "unpublish.begun",
    "unpublish.answered",
    "unpublish.cleaned",
    "unstage.begun",
    "unstage.answered",
    "unstage.cleaned",
    "pod.unmounted",
    "pod.directory-removed",
    "pod.deleted",
];

/// The points of an expansion.
pub const EXPAND_POINTS: [&str; 3] = ["expand.recorded", "expand.answered", "expand.claim-written"];

/// What a test can make an agent forget, to prove that the test would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgets {
    /// Volumes that are staged and that no pod has, found at the start.
    Staged,
    /// Directories of pods that are gone, found at the start.
    Orphans,
}
