//! Named points between the steps of a component, where a test can end the process.
//!
//! A component has no hook unless a test gives it one, and then a point is one comparison with
//! nothing. Driver and node agent share this; each has its own list of points.

use std::fmt;
use std::sync::Arc;

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// What happens at the points: nothing, unless a test says otherwise. `Bug` lists what the component
/// can be made to forget, so that a test can prove that it would notice.
#[derive(Clone)]
pub struct Faults<Bug> {
    hook: Option<Hook>,
    forgets: Option<Bug>,
}

impl<Bug: Copy + PartialEq> Faults<Bug> {
    /// Nothing happens.
    pub const NONE: Self = Self { hook: None, forgets: None };

    /// `hook` is called with the name of every point that is passed.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self { hook: Some(Arc::new(hook)), forgets: None }
    }

    /// The component forgets something, each time.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn forgetting(self, bug: Bug) -> Self {
        Self { forgets: Some(bug), ..self }
    }

    /// Passes a point.
    pub fn at(&self, point: &'static str) {
        if let Some(hook) = &self.hook {
            hook(point);
        }
    }

    /// Whether this is to be forgotten. Never, in what is shipped: there nothing can set it.
    #[must_use]
    pub fn forgets(&self, bug: Bug) -> bool {
        self.forgets == Some(bug)
    }
}

impl<Bug> fmt::Debug for Faults<Bug> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.hook.is_some() { "Faults(a hook)" } else { "Faults(none)" })
    }
}
