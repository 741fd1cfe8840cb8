//! NodeExpandVolume, and the growth that waited for the next stage.

use std::fs::File;
use std::os::fd::AsFd;

use longshore_core::words;
use longshore_csi::v1::{NodeExpandVolumeRequest, NodeExpandVolumeResponse};
use longshore_files::mounts::Mount;

use super::{Observed, show};
use crate::access::Access;
use crate::config::{DriverKind, FsType};
use crate::controller::expand::{grow as grow_volume, size_to_grow_to};
use crate::controller::size::Range;
use crate::driver::Inner;
use crate::format::{self, grow};
use crate::loopdev::{self, LoopDevice};
use crate::mount::checked_path::{CheckedPath, PathError, same_text};
use crate::pool::Pool;
use crate::pool::record::Record;
use crate::refusal::Refusal;

impl Inner {
    /// Grows what a pod sees of a volume. It succeeds only when the size can be seen.
    pub(crate) fn node_expand(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Refusal> {
        let given = request.volume_path.as_str();
        let id = self.node_volume(&request.volume_id, &[("volume_path", given)])?;
        let range = Range::parse(request.capacity_range.as_ref())?;
        let (pool, record) = self.need(&id)?;
        if request.volume_capability.is_some() {
            let access = Access::parse(request.volume_capability.as_ref(), self.config.kind)?;
            if let Some(conflict) = access.conflict_with(&record) {
                return Err(Refusal::Invalid(conflict));
            }
        }
        let observed = self.observe(pool, &id)?;
        let (device, entry) = shown_at(&observed, given)?;
        if observed.staged.as_ref().is_some_and(|staged| staged.read_only) {
            let text = format!("volume {id} is staged for reading only and cannot grow");
            return Err(Refusal::Precondition(text));
        }
        let record = self.size_for_node(pool, record, range)?;
        pool.stretch(&record)?;
        loopdev::update_size(device)?;
        let has = loopdev::size_bytes(device)?;
        if has < record.capacity_bytes {
            return Err(waits(&record, &format!("its device has {}", words::size(has))));
        }
        self.fault("expand.device-grown");
        if let Some(entry) = entry.filter(|entry| observed.is_filesystem(entry)) {
            grow_seen(device, entry, &record)?;
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes: record.capacity_bytes.cast_signed() })
    }

    /// The size to grow to. A `local` node decides it; a `shared` one follows the controller.
    fn size_for_node(&self, pool: &Pool, record: Record, range: Range) -> Result<Record, Refusal> {
        let wanted = size_to_grow_to(range, &record)?;
        if wanted <= record.capacity_bytes {
            return Ok(record);
        }
        match self.config.kind {
            DriverKind::Local => grow_volume(pool, &record, wanted),
            DriverKind::Shared => Err(Refusal::OutOfRange(format!(
                "volume {} has {}; it is grown by the controller first",
                record.id,
                words::size(record.capacity_bytes)
            ))),
        }
    }

    /// Growth that could not happen while the filesystem was mounted. A failure is logged and does
    /// not keep the volume from its pod: at its old size it works as before.
    pub(super) fn grow_before_mount(&self, image: &File, record: &Record, fstype: FsType) {
        let grown = || {
            if !grow::grows_unmounted(fstype) || grow::fills(image, fstype, record.capacity_bytes)?
            {
                return Ok(());
            }
            grow::grow_unmounted(image)
        };
        log_failure(record, grown());
    }

    /// As [`Inner::grow_before_mount`], for filesystems that only grow when mounted.
    pub(super) fn grow_after_mount(
        &self,
        device: LoopDevice,
        checked: &CheckedPath,
        record: &Record,
        fstype: FsType,
    ) {
        let grown = || {
            let file = open_device(device)?;
            let opened = checked.open()?;
            if grow::grows_unmounted(fstype)
                || grow::mounted_fills(&file, opened.as_fd(), fstype, record.capacity_bytes)?
            {
                return Ok::<_, Refusal>(());
            }
            Ok(grow::grow_mounted(&device.path(), checked.path(), fstype)?)
        };
        log_failure(record, grown());
    }
}

fn log_failure<E: std::fmt::Display>(record: &Record, grown: Result<(), E>) {
    if let Err(error) = grown {
        tracing::warn!(volume = %record.id, %error, "the filesystem did not grow; it keeps its size");
    }
}

/// The device, and the mount at the path that was asked about; a raw volume may also be named by
/// its staging path, where nothing is mounted.
fn shown_at<'a>(
    observed: &'a Observed,
    given: &str,
) -> Result<(LoopDevice, Option<&'a Mount>), Refusal> {
    let absent = || Refusal::NotFound(format!("volume {} is not at {given}", observed.id));
    let device = observed.device.ok_or_else(absent)?;
    if observed.staged.as_ref().is_some_and(|note| note.block && same_text(&note.path, given)) {
        return Ok((device, None));
    }
    let checked = match CheckedPath::resolve(given) {
        Ok(checked) => checked,
        Err(PathError::NoParent(_) | PathError::Bad { .. }) => return Err(absent()),
        Err(error) => return Err(error.into()),
    };
    let entry = observed.at(&checked).filter(|entry| observed.shows(entry)).ok_or_else(absent)?;
    Ok((device, Some(entry)))
}

fn grow_seen(device: LoopDevice, entry: &Mount, record: &Record) -> Result<(), Refusal> {
    let fstype: FsType = entry.fstype.parse().map_err(Refusal::Precondition)?;
    let file = open_device(device)?;
    let at = CheckedPath::resolve(&show(&entry.path))?.open()?;
    let seen = || grow::mounted_fills(&file, at.as_fd(), fstype, record.capacity_bytes);
    if seen()? {
        return Ok(());
    }
    // What the tool says counts for the explanation; what can be observed counts for the result.
    let grown = grow::grow_mounted(&device.path(), &entry.path, fstype);
    if seen()? {
        return Ok(());
    }
    let why = grown.err().map_or_else(|| "nothing changed".to_owned(), |error| error.to_string());
    Err(waits(record, &why))
}

fn open_device(device: LoopDevice) -> Result<File, Refusal> {
    let failed = |source| format::FormatError::Superblock { what: "open the device", source };
    Ok(File::open(device.path()).map_err(failed)?)
}

fn waits(record: &Record, why: &str) -> Refusal {
    Refusal::Precondition(format!(
        "volume {} has {}, but its user cannot see them yet ({why}); it grows when the pod restarts",
        record.id,
        words::size(record.capacity_bytes)
    ))
}
