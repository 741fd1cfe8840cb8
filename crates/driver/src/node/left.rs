//! Loop devices that a stop could not detach, and who holds them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use longshore_files::mounts::MountTable;

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::loopdev::{self, MAJOR};
use crate::refusal::Refusal;

/// How many holders are named; more would not fit a line.
const NAMED: usize = 5;

/// A device that is still bound to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftDevice {
    pub volume: VolumeId,
    pub device: PathBuf,
    /// Processes in whose mount tables it is, as `pid (program)`.
    pub holders: Vec<String>,
}

impl fmt::Display for LeftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of volume {}", self.device.display(), self.volume)?;
        match self.holders.as_slice() {
            [] => write!(f, ", open in some process (see `fuser -v {}`)", self.device.display()),
            holders => {
                let shown: Vec<&str> = holders.iter().take(NAMED).map(String::as_str).collect();
                write!(f, ", mounted by {}", shown.join(", "))?;
                match holders.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl Inner {
    /// Devices of this node's volumes that are bound at this moment.
    pub(crate) fn left_devices(&self) -> Result<Vec<LeftDevice>, Refusal> {
        let bound = loopdev::bound_volumes()?;
        let mut left = Vec::new();
        for pool in &self.pools {
            for id in pool.list()?.into_iter().filter(|id| bound.contains(id)) {
                // A volume that cannot be understood is out of service, not left behind.
                let Ok(observed) = self.observe(pool, &id) else { continue };
                if let Some(device) = observed.device {
                    let holders = holders(device.number);
                    left.push(LeftDevice { volume: id, device: device.path(), holders });
                }
            }
        }
        Ok(left)
    }
}

/// Processes that have a device in their mount table, one per mount namespace.
fn holders(number: u32) -> Vec<String> {
    let mut spaces = BTreeSet::new();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(table) = MountTable::of_process(pid) else { continue };
        if !table.mounts.iter().any(|mount| mount.device == (MAJOR, number)) {
            continue;
        }
        let space = fs::read_link(entry.path().join("ns/mnt")).ok();
        if space.is_none_or(|space| spaces.insert(space)) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("{pid} ({})", program.trim()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_stays_names_its_volume_and_its_holders() {
        let left = |count: u32| LeftDevice {
            volume: VolumeId::for_name("", "a"),
            device: "/dev/loop7".into(),
            holders: (1..=count).map(|pid| format!("{pid} (sh)")).collect(),
        };
        let text = left(1).to_string();
        assert!(text.starts_with("/dev/loop7 of volume vol-"), "{text}");
        assert!(text.ends_with(", mounted by 1 (sh)"), "{text}");
        assert!(left(7).to_string().ends_with("5 (sh) and 2 more"));
        assert!(left(0).to_string().contains("fuser -v /dev/loop7"));
    }
}
