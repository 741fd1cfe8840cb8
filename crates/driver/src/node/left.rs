//! Loop devices that a stop could not detach, and who holds them.

use std::fmt;
use std::path::PathBuf;

use longshore_files::holders::{self, Holder};

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::loopdev::{self, MAJOR};
use crate::refusal::Refusal;

/// A device that is still bound to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftDevice {
    pub volume: VolumeId,
    pub device: PathBuf,
    pub holders: Vec<Holder>,
}

impl fmt::Display for LeftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of volume {}", self.device.display(), self.volume)?;
        match holders::name(&self.holders) {
            None => write!(f, ", open in some process (see `fuser -v {}`)", self.device.display()),
            Some(names) => write!(f, ", held by {names}"),
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
                    let holders = holders::of_device((MAJOR, device.number), &device.path());
                    left.push(LeftDevice { volume: id, device: device.path(), holders });
                }
            }
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_stays_names_its_volume_and_its_holders() {
        let left = |count: u32| LeftDevice {
            volume: VolumeId::for_name("", "a"),
            device: "/dev/loop7".into(),
            holders: (1..=count)
                .map(|pid| Holder::Process { pid, program: "sh".to_owned() })
                .collect(),
        };
        let text = left(1).to_string();
        assert!(text.starts_with("/dev/loop7 of volume vol-"), "{text}");
        assert!(text.ends_with(", held by pid 1 (sh)"), "{text}");
        assert!(left(7).to_string().ends_with("pid 5 (sh) and 2 more"));
        assert!(left(0).to_string().contains("fuser -v /dev/loop7"));
    }
}
