//! Named points between the steps of every call, where a test can end the process.

/// What happens at the points of a driver.
pub type Faults = longshore_files::fault::Faults<Leak>;

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
