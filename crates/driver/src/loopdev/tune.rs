//! Settings of a bound device.

use std::fs::OpenOptions;
use std::io;

use super::{LoopDevice, LoopError, backing_path, fail, ioctl, open_node};

/// Whether a device takes discards. One that once refused them does so for the rest of its days,
/// whoever binds it: the kernel has no way back (see [`renew`]).
pub fn takes_discards(device: LoopDevice) -> Result<bool, LoopError> {
    // A pool whose filesystem cannot punch holes takes none to begin with.
    Ok(limit(device.number, "discard_max_bytes")? > 0
        || limit(device.number, "discard_max_hw_bytes")? == 0)
}

/// Makes a device refuse discards.
pub fn refuse_discards(device: LoopDevice) -> Result<(), LoopError> {
    let number = device.number;
    if limit(number, "discard_max_bytes")? == 0 {
        return Ok(());
    }
    std::fs::write(file(number, "discard_max_bytes"), "0")
        .map_err(|error| fail(number, "make it refuse discards", error))
}

/// Has the kernel forget an unbound device that refuses discards, so that the next user of its
/// number gets a fresh one. A device that another process has bound meanwhile is not touched.
pub fn renew(number: u32) -> Result<(), LoopError> {
    let failed = |what| move |error: io::Error| fail(number, what, error);
    let of = |name| limit(number, name).unwrap_or(0);
    // One that was never bound takes nothing yet, and is as good as new.
    let refuses = of("discard_max_hw_bytes") > 0 && of("discard_max_bytes") == 0;
    if backing_path(number)?.is_some() || !refuses {
        return Ok(());
    }
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
    let control = control.map_err(failed("open /dev/loop-control"))?;
    match ioctl::remove(&control, number) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENODEV)) => Ok(()),
        Err(error) => Err(fail(number, "remove it", error)),
    }
}

/// Makes a device bypass the page cache of the filesystem below it, or use it.
pub fn set_direct_io(device: LoopDevice, direct: bool) -> Result<(), LoopError> {
    let file = open_node(device.number, false)?;
    let set = ioctl::set_direct_io(&file, direct);
    set.map_err(|error| fail(device.number, "switch direct I/O", error))
}

fn file(number: u32, name: &str) -> String {
    format!("/sys/block/loop{number}/queue/{name}")
}

fn limit(number: u32, name: &str) -> Result<u64, LoopError> {
    let text = std::fs::read_to_string(file(number, name))
        .map_err(|error| fail(number, "read its limits", error))?;
    Ok(text.trim().parse().unwrap_or(0))
}
