//! Loop devices, known by what they are bound to and never by number or path.
//!
//! A device is ours when its backing file is (device, inode) of the image in question *and* it
//! carries our tag. Devices of others are not even opened: sysfs names the backing file, and only
//! a file name of ours is worth a closer look.

mod ioctl;
pub mod tune;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use longshore_core::backoff::Backoff;
use longshore_files::holders::{self, Holder};
use sha2::{Digest, Sha256};

use crate::id::VolumeId;
use crate::pool::names;

/// Major number of every loop device.
pub const MAJOR: u32 = 7;
/// Losing the race for a free device this often in a row means something else is wrong.
const ATTEMPTS: u32 = 64;
/// How long a detached device may take to disappear.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// After which time the holders of a device are looked for: those of a pod that was just ended are
/// gone by then.
const HOLDERS_AFTER: Duration = Duration::from_secs(2);

/// Why a loop device could not be had or given back.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The kernel refused a step.
    #[error("loop device{}: cannot {what}: {source}", number.map(|n| format!(" {n}")).unwrap_or_default())]
    Io {
        /// The device, once there is one.
        number: Option<u32>,
        what: &'static str,
        source: io::Error,
    },
    /// No free device could be taken.
    #[error("no free loop device could be taken in {ATTEMPTS} attempts")]
    NoneFree,
    /// It was detached and is still there.
    #[error("loop device {number} is still in use, {}", held_by(.holders))]
    StillInUse { number: u32, holders: Vec<Holder> },
}

/// An image file, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// Device of the filesystem it is on.
    pub dev: u64,
    pub ino: u64,
}

impl From<(u64, u64)> for Backing {
    fn from((dev, ino): (u64, u64)) -> Self {
        Self { dev, ino }
    }
}

/// Whose device it is: written into the device, read back before anything is done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// The tag of a volume on a node. Nodes that share a kernel get different tags, and so do
    /// volumes of one name in different pools (each known by device and inode).
    #[must_use]
    pub fn new(id: &VolumeId, node_id: &str, pool: (u64, u64)) -> Self {
        let owner = format!("{node_id}\0{}:{}", pool.0, pool.1);
        let owner = hex::encode(Sha256::digest(owner.as_bytes()));
        Self(format!("longshore:{id}:{}", &owner[..16]))
    }
}

/// How a device is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    pub read_only: bool,
    /// Let go by itself when the last user is gone. Right for a filesystem, whose mount is the
    /// user; wrong for a raw device, which must outlive each opener.
    pub autoclear: bool,
}

/// A device that is bound to one of our images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopDevice {
    /// N of `/dev/loopN`; also its minor number.
    pub number: u32,
    /// It was bound for reading only.
    pub read_only: bool,
}

impl LoopDevice {
    /// Path of its device node.
    #[must_use]
    pub fn path(self) -> PathBuf {
        node_path(self.number)
    }
}

/// A bound device with the descriptor that keeps an autoclear device alive until it is mounted.
#[derive(Debug)]
pub struct Held {
    pub device: LoopDevice,
    _open: File,
}

impl Held {
    /// Closes the device and waits until it has let go of its file; for autoclear devices that
    /// nothing else has open.
    pub fn release(self) -> Result<(), LoopError> {
        let number = self.device.number;
        let bound = backing_path(number)?;
        drop(self._open);
        if bound.is_some() {
            wait_until(number, || Ok(backing_path(number)? != bound))
        } else {
            Ok(())
        }
    }
}

/// Binds a free device to a file that is no volume (yet), for as long as the device is open. Such
/// a device belongs to this call, and no other call searches for it.
pub fn attach_scratch(file: &File) -> Result<Held, LoopError> {
    let tag = Tag("longshore:scratch".to_owned());
    attach(file, &tag, Binding { read_only: false, autoclear: true })
}

/// The device through which this node has `backing`, if any.
pub fn find(id: &VolumeId, backing: Backing, tag: &Tag) -> Result<Option<LoopDevice>, LoopError> {
    for number in candidates(id)? {
        let Some(file) = open_existing(number)? else { continue };
        if let Some(device) = ours(&file, number, backing, tag)? {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// The device with this tag and what it is bound to, for a volume whose image has lost its name.
pub fn find_tagged(id: &VolumeId, tag: &Tag) -> Result<Option<(LoopDevice, Backing)>, LoopError> {
    for number in candidates(id)? {
        let Some(file) = open_existing(number)? else { continue };
        let info = ioctl::status(&file).map_err(|e| fail(number, "ask for its status", e))?;
        let Some(info) = info else { continue };
        let backing = Backing { dev: info.lo_device, ino: info.lo_inode };
        if let Some(device) = ours(&file, number, backing, tag)? {
            return Ok(Some((device, backing)));
        }
    }
    Ok(None)
}

/// Whether any device at all, of this node or of another, is bound to `backing`.
pub fn is_bound(id: &VolumeId, backing: Backing) -> Result<bool, LoopError> {
    for number in candidates(id)? {
        let Some(file) = open_existing(number)? else { continue };
        let info = ioctl::status(&file).map_err(|e| fail(number, "ask for its status", e))?;
        if info.is_some_and(|info| (info.lo_device, info.lo_inode) == (backing.dev, backing.ino)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Volumes whose image name is behind some device. A hint by name only; [`find`] knows.
pub fn bound_volumes() -> Result<HashSet<VolumeId>, LoopError> {
    let mut ids = HashSet::new();
    for number in numbers()? {
        let name = backing_name(number)?;
        if let Some(names::Entry::Image(id)) = name.as_deref().map(names::parse) {
            ids.insert(id);
        }
    }
    Ok(ids)
}

/// Binds a free device to `image`.
pub fn attach(image: &File, tag: &Tag, binding: Binding) -> Result<Held, LoopError> {
    let no_number = |what| move |source| LoopError::Io { number: None, what, source };
    let stat = image.metadata().map_err(no_number("look at the image"))?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")
        .map_err(no_number("open /dev/loop-control"))?;
    let mut flags = 0;
    flags |= if binding.read_only { ioctl::READ_ONLY } else { 0 };
    flags |= if binding.autoclear { ioctl::AUTOCLEAR } else { 0 };
    for _ in 0..ATTEMPTS {
        let number = ioctl::get_free(&control).map_err(no_number("find a free one"))?;
        let device = match open_node(number, !binding.read_only) {
            // Free a moment ago, and removed since.
            Err(LoopError::Io { source, .. })
                if matches!(source.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) =>
            {
                continue;
            }
            opened => opened?,
        };
        match ioctl::configure(&device, image.as_raw_fd(), flags, &tag.0) {
            Ok(()) => {}
            // Free a moment ago, bound by another process now.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(error) => return Err(fail(number, "bind it", error)),
        }
        // A read-only mark outlives the binding it was set for, whoever set it.
        if !binding.read_only {
            let cleared = ioctl::set_read_only(&device, false);
            cleared.map_err(|e| fail(number, "set its access", e))?;
        }
        let backing = Backing { dev: stat.dev(), ino: stat.ino() };
        return match ours(&device, number, backing, tag)? {
            Some(found) => Ok(Held { device: found, _open: device }),
            None => Err(fail(
                number,
                "recognise it after binding it",
                io::Error::other("it is bound to another file"),
            )),
        };
    }
    Err(LoopError::NoneFree)
}

/// Whether something has the device to itself: a mounted filesystem in any mount namespace.
pub fn is_claimed(device: LoopDevice) -> Result<bool, LoopError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device.path());
    match opened {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        Err(error) => Err(fail(device.number, "open it", error)),
    }
}

/// Unbinds the device if it still is what `find` saw, and waits until it is gone.
pub fn detach(id: &VolumeId, backing: Backing, tag: &Tag) -> Result<(), LoopError> {
    while let Some(device) = find(id, backing, tag)? {
        let Some(file) = open_existing(device.number)? else { continue };
        // While the descriptor is open the binding cannot change, so this check holds below.
        if ours(&file, device.number, backing, tag)?.is_none() {
            continue;
        }
        if !device.read_only {
            let cleared = ioctl::set_read_only(&file, false);
            cleared.map_err(|e| fail(device.number, "set its access", e))?;
        }
        match ioctl::clear(&file) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            Err(error) => return Err(fail(device.number, "unbind it", error)),
        }
        drop(file);
        wait_gone(id, device)?;
    }
    Ok(())
}

/// Waits until sysfs no longer shows the volume behind the device.
pub fn wait_gone(id: &VolumeId, device: LoopDevice) -> Result<(), LoopError> {
    wait_until(device.number, || Ok(!is_candidate(id, device.number)?))
}

fn wait_until(
    number: u32,
    mut done: impl FnMut() -> Result<bool, LoopError>,
) -> Result<(), LoopError> {
    let since = Instant::now();
    let mut pauses = Backoff::new(Duration::from_micros(200), Duration::from_millis(20)).series();
    let mut asked = false;
    while !done()? {
        let late = since.elapsed() > GONE_WITHIN;
        if late || (!asked && since.elapsed() > HOLDERS_AFTER) {
            asked = true;
            let holders = holders::of_device((MAJOR, number), &node_path(number));
            // What is mounted elsewhere stays until somebody unmounts it: waiting does not help.
            if late || !holders.is_empty() {
                return Err(LoopError::StillInUse { number, holders });
            }
        }
        // The kernel has no event for this that does not need a netlink socket per call.
        std::thread::sleep(pauses.pause());
    }
    Ok(())
}

fn held_by(holders: &[Holder]) -> String {
    match holders::name(holders) {
        Some(names) => format!("held by {names}"),
        None => "perhaps by a mount in another mount namespace".to_owned(),
    }
}

/// Makes a raw device refuse or take writes.
pub fn set_read_only(device: LoopDevice, read_only: bool) -> Result<(), LoopError> {
    let file = open_node(device.number, false)?;
    ioctl::set_read_only(&file, read_only).map_err(|e| fail(device.number, "set its access", e))
}

/// Lets a device have the size that its file has grown to.
pub fn update_size(device: LoopDevice) -> Result<(), LoopError> {
    let file = open_node(device.number, false)?;
    ioctl::set_capacity(&file).map_err(|e| fail(device.number, "update its size", e))
}

/// Writes back whatever users of a raw device have written to it.
pub fn flush(device: LoopDevice) -> Result<(), LoopError> {
    let file = open_node(device.number, false)?;
    file.sync_all().map_err(|e| fail(device.number, "flush it", e))
}

pub fn size_bytes(device: LoopDevice) -> Result<u64, LoopError> {
    let file = open_node(device.number, false)?;
    ioctl::size_bytes(&file).map_err(|e| fail(device.number, "measure it", e))
}

/// Opens the device node, making it where the device filesystem lags or is a plain directory.
fn open_node(number: u32, write: bool) -> Result<File, LoopError> {
    let path = node_path(number);
    let open = || OpenOptions::new().read(true).write(write).open(&path);
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_node(number).map_err(|e| fail(number, "make its device node", e))?;
            open()
        }
        opened => opened,
    };
    let file = file.map_err(|e| fail(number, "open it", e))?;
    let meta = file.metadata().map_err(|e| fail(number, "look at its device node", e))?;
    let want = rustix::fs::makedev(MAJOR, number);
    if !meta.file_type().is_block_device() || meta.rdev() != want {
        return Err(fail(
            number,
            "trust its device node",
            io::Error::other("it is another device"),
        ));
    }
    Ok(file)
}

/// Opens a device that sysfs showed; `None` when it vanished meanwhile.
fn open_existing(number: u32) -> Result<Option<File>, LoopError> {
    match open_node(number, false) {
        Err(LoopError::Io { source, .. })
            if matches!(source.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) =>
        {
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn make_node(number: u32) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode};
    let dev = rustix::fs::makedev(MAJOR, number);
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    match rustix::fs::mknodat(CWD, node_path(number), FileType::BlockDevice, mode, dev) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn ours(
    file: &File,
    number: u32,
    backing: Backing,
    tag: &Tag,
) -> Result<Option<LoopDevice>, LoopError> {
    let info = ioctl::status(file).map_err(|e| fail(number, "ask for its status", e))?;
    let Some(info) = info else { return Ok(None) };
    let name = info.lo_file_name.split(|&b| b == 0).next().unwrap_or_default();
    let same =
        (info.lo_device, info.lo_inode) == (backing.dev, backing.ino) && name == tag.0.as_bytes();
    let read_only = info.lo_flags & ioctl::READ_ONLY != 0;
    Ok(same.then_some(LoopDevice { number, read_only }))
}

/// Devices whose backing file has the name of the volume's image, wherever it lies.
fn candidates(id: &VolumeId) -> Result<Vec<u32>, LoopError> {
    let mut found = Vec::new();
    for number in numbers()? {
        if is_candidate(id, number)? {
            found.push(number);
        }
    }
    Ok(found)
}

/// All loop devices there are.
fn numbers() -> Result<Vec<u32>, LoopError> {
    let fail = |source| LoopError::Io { number: None, what: "read /sys/block", source };
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir("/sys/block").map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        numbers.extend(number.and_then(|digits| digits.parse::<u32>().ok()));
    }
    Ok(numbers)
}

fn is_candidate(id: &VolumeId, number: u32) -> Result<bool, LoopError> {
    Ok(backing_name(number)?.is_some_and(|name| name == names::image(id)))
}

/// File name of what a device is bound to; `None` when it is bound to nothing.
fn backing_name(number: u32) -> Result<Option<String>, LoopError> {
    Ok(backing_path(number)?.map(|path| file_name(&path)))
}

/// Path of what a device is bound to, as sysfs has it.
fn backing_path(number: u32) -> Result<Option<Vec<u8>>, LoopError> {
    match std::fs::read(format!("/sys/block/loop{number}/loop/backing_file")) {
        Ok(path) => Ok(Some(path)),
        // Unbound devices do not have the attribute, and ones just removed have no directory.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) =>
        {
            Ok(None)
        }
        Err(error) => Err(fail(number, "read its backing file", error)),
    }
}

fn file_name(path: &[u8]) -> String {
    let path = path.strip_suffix(b"\n").unwrap_or(path);
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn node_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

fn fail(number: u32, what: &'static str, source: io::Error) -> LoopError {
    LoopError::Io { number: Some(number), what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backing_files_are_recognized_by_name() {
        let id = VolumeId::for_name("", "a");
        let other = VolumeId::for_name("", "b");
        let cases = [
            (format!("/pool/{id}.img\n"), true),
            (format!("/pool/{id}.img (deleted)\n"), true),
            (format!("{id}.img\n"), true),
            (format!("/pool/{other}.img\n"), false),
            (format!("/pool/{id}.img/inner\n"), false),
            (format!("/pool/x{id}.img\n"), false),
            ("\n".to_owned(), false),
        ];
        for (path, want) in cases {
            assert_eq!(file_name(path.as_bytes()) == names::image(&id), want, "{path:?}");
        }
    }

    #[test]
    fn a_tag_fits_into_the_device() {
        let id = VolumeId::for_name("", "a");
        let tag = Tag::new(&id, "n1", (1, 2));
        assert!(tag.0.len() <= 63);
        assert_ne!(tag, Tag::new(&id, "n2", (1, 2)));
        assert_ne!(tag, Tag::new(&id, "n1", (1, 3)));
    }
}
