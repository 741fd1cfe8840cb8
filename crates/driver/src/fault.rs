//! Named points between the steps of every call, where a test can end the process.
//!
//! A driver has no hook unless it is given one, and then a point is one comparison with nothing.

use std::fmt;
use std::sync::Arc;

/// Every point, in the order in which a volume's life passes them.
pub const POINTS: [&str; 38] = [
    "create.reserved",
    "create.image-made",
    "create.image-filled",
    "create.record-written",
    "create.image-named",
    "create.record-named",
    "record.temporary-written",
    "record.named",
    "attach.recorded",
    "modify.recorded",
    "stage.noted",
    "stage.scratch-made",
    "stage.formatted",
    "stage.scratch-flushed",
    "stage.image-replaced",
    "stage.record-replaced",
    "stage.attached",
    "stage.mounted",
    "publish.target-made",
    "publish.mounted",
    "expand.reserved",
    "expand.recorded",
    "expand.stretched",
    "expand.device-grown",
    "unpublish.unmounted",
    "unstage.unmounted",
    "unstage.detached",
    "detach.recorded",
    "snapshot.drafted",
    "snapshot.recorded",
    "snapshot.image-named",
    "snapshot.retired",
    "delete.retired",
    "delete.image-removed",
    "ephemeral.created",
    "ephemeral.noted",
    "ephemeral.unmounted",
    "ephemeral.forgotten",
];

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// What happens at the points: nothing, unless a test says otherwise.
#[derive(Clone, Default)]
pub struct Faults(Option<Hook>);

impl Faults {
    /// Nothing happens.
    pub const NONE: Self = Self(None);

    /// `hook` is called with the name of every point that is passed.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// Passes a point.
    pub(crate) fn at(&self, point: &'static str) {
        if let Some(hook) = &self.0 {
            hook(point);
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Faults(a hook)" } else { "Faults(none)" })
    }
}
