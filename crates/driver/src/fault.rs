//! Named points between the steps of every call, where a test can end the process.
//!
//! A driver has no hook unless it is given one, and then a point is one comparison with nothing.

use std::fmt;
use std::sync::Arc;

/// Every point, in the order in which a volume's life passes them.
pub const POINTS: [&str; 54] = [
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
    "freeze.noted",
    "holder.noted",
    "holder.frozen",
    "freeze.frozen",
    "remote.ready",
    "remote.frozen",
    "cut.copied",
    "holder.thawed",
    "freeze.thawed",
    "snapshot.recorded",
    "snapshot.image-named",
    "group.drafted",
    "group.member-saved",
    "group.recorded",
    "group.named",
    "group.retired",
    "group.member-deleted",
    "snapshot.retired",
    "snapshot.image-removed",
    "delete.retired",
    "delete.image-removed",
    "ephemeral.created",
    "ephemeral.noted",
    "ephemeral.unmounted",
    "ephemeral.forgotten",
];

/// Something that a driver can be made to forget, so that a test can see whether anybody notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leak {
    /// The image of a volume that is deleted.
    VolumeImage,
    /// The image of a snapshot that is deleted.
    SnapshotImage,
    /// The mount and the device of a volume that is unstaged.
    Device,
}

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// What happens at the points: nothing, unless a test arms them.
#[derive(Clone, Default)]
pub struct Faults {
    hook: Option<Hook>,
    #[cfg(feature = "planted-bugs")]
    leak: Option<Leak>,
}

impl Faults {
    /// Nothing happens.
    pub const NONE: Self = Self {
        hook: None,
        #[cfg(feature = "planted-bugs")]
        leak: None,
    };

    /// `hook` is called with the name of every point that is passed.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        let mut faults = Self::NONE;
        faults.hook = Some(Arc::new(hook));
        faults
    }

    /// The driver forgets something, each time.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn forgetting(self, leak: Leak) -> Self {
        Self { leak: Some(leak), ..self }
    }

    /// Passes a point.
    pub(crate) fn at(&self, point: &'static str) {
        if let Some(hook) = &self.hook {
            hook(point);
        }
    }

    /// Whether this is to be forgotten. Never, in what is shipped.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn forgets(&self, leak: Leak) -> bool {
        self.leak == Some(leak)
    }

    /// Whether this is to be forgotten. Never, in what is shipped.
    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn forgets(&self, _: Leak) -> bool {
        false
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.hook.is_some() { "Faults(a hook)" } else { "Faults(none)" })
    }
}
