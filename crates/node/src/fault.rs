//! Named points between the steps of the agent, where a test can end the process.
//!
//! An agent has no hook unless it is given one, and then a point is one comparison with nothing.

use std::fmt;
use std::sync::Arc;

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

/// Something that an agent can be made to forget, so that a test can see whether anybody notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgets {
    /// Volumes that are staged and that no pod has, found at the start.
    Staged,
    /// Directories of pods that are gone, found at the start.
    Orphans,
}

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// What happens at the points: nothing, unless a test says otherwise.
#[derive(Clone, Default)]
pub struct Faults {
    hook: Option<Hook>,
    #[cfg(feature = "planted-bugs")]
    forgets: Option<Forgets>,
}

impl Faults {
    /// Nothing happens.
    pub const NONE: Self = Self {
        hook: None,
        #[cfg(feature = "planted-bugs")]
        forgets: None,
    };

    /// `hook` is called with the name of every point that is passed.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        let mut faults = Self::NONE;
        faults.hook = Some(Arc::new(hook));
        faults
    }

    /// The agent forgets something, each time.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn forgetting(self, what: Forgets) -> Self {
        Self { forgets: Some(what), ..self }
    }

    /// Passes a point.
    pub(crate) fn at(&self, point: &'static str) {
        if let Some(hook) = &self.hook {
            hook(point);
        }
    }

    /// Whether this is to be forgotten. Never, in what is shipped.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn forgets(&self, what: Forgets) -> bool {
        self.forgets == Some(what)
    }

    /// Whether this is to be forgotten. Never, in what is shipped.
    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn forgets(&self, _: Forgets) -> bool {
        false
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.hook.is_some() { "Faults(a hook)" } else { "Faults(none)" })
    }
}
