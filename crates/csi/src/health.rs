//! From which calls the health of volumes is learned.
//!
//! Up to CSI 1.12 a driver gives volumes a condition, as a field of other responses. CSI 1.13 removed it and has calls of
//! its own for health. A driver that serves callers of both ages advertises both.

use crate::capabilities::{ControllerCapabilities, ControllerCapability};

/// How a caller learns about the health of volumes from the Controller service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthSource {
    /// ControllerListVolumeHealth.
    HealthList {
        /// Whether ControllerGetVolumeHealth can confirm that a volume that is no longer listed is healthy.
        confirm: bool,
    },
    /// ControllerGetVolumeHealth, volume by volume.
    HealthGet,
    /// The volume condition in ListVolumes.
    ConditionList,
    /// The volume condition in ControllerGetVolume, volume by volume.
    ConditionGet,
    /// The driver does not report health.
    None,
}

impl HealthSource {
    /// Chooses the calls: never both ages at once, or one fault would be reported twice.
    pub fn of(advertised: &ControllerCapabilities) -> Self {
        use ControllerCapability as C;
        let has = |capability| advertised.has(capability);
        let (list, get) = (has(C::ListVolumeHealth), has(C::GetVolumeHealth));
        let condition = has(C::VolumeCondition);
        if list {
            // Listing obliges a driver to have the other call too, but there is no use in insisting.
            Self::HealthList { confirm: get }
        } else if get {
            Self::HealthGet
        } else if condition && has(C::ListVolumes) {
            Self::ConditionList
        } else if condition && has(C::GetVolume) {
            Self::ConditionGet
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_1_13_win_over_the_condition() {
        let table: [(&[i32], HealthSource); 11] = [
            (&[], HealthSource::None),
            (&[3, 12], HealthSource::None),
            (&[11], HealthSource::None),
            (&[11, 3], HealthSource::ConditionList),
            (&[11, 12], HealthSource::ConditionGet),
            (&[11, 3, 12], HealthSource::ConditionList),
            // case: csi-1.13/C11
            (&[16], HealthSource::HealthGet),
            (&[16, 17], HealthSource::HealthList { confirm: true }),
            // case: csi-1.13/C10
            (&[17], HealthSource::HealthList { confirm: false }),
            (&[11, 3, 16, 17], HealthSource::HealthList { confirm: true }),
            // case: csi-1.13/C4
            (&[3, 11, 16, 99], HealthSource::HealthGet),
        ];
        for (numbers, expected) in table {
            let advertised: ControllerCapabilities = numbers.iter().copied().collect();
            assert_eq!(HealthSource::of(&advertised), expected, "{numbers:?}");
        }
    }
}
