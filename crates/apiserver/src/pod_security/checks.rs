//! The checks of each level and version.

use super::policy::{Level, LevelVersion};
use super::view::Pod;
use super::{Violation, host, privileges, profiles, volumes};

/// The newest version that any check is about; later ones are the same.
const NEWEST: u64 = 37;

/// Looks at a pod.
type Look = fn(&Pod<'_>) -> Option<Violation>;

/// A check, and how it changed: each look holds from its minor version on.
struct Check {
    id: &'static str,
    looks: &'static [(u64, Look)],
    /// The check of the baseline that this one includes.
    instead_of: &'static str,
}

const fn check(id: &'static str, looks: &'static [(u64, Look)]) -> Check {
    Check { id, looks, instead_of: "" }
}

/// In the order of the messages.
const BASELINE: &[Check] = &[
    check("appArmorProfile", &[(0, profiles::app_armor)]),
    check("capabilities_baseline", &[(0, privileges::capabilities_baseline)]),
    check("hostNamespaces", &[(0, host::namespaces)]),
    check("hostPathVolumes", &[(0, volumes::host_path)]),
    check("hostPorts", &[(0, host::ports)]),
    check("hostProbesAndHostLifecycle", &[(34, host::probes)]),
    check("privileged", &[(0, privileges::privileged)]),
    check("procMount", &[(0, profiles::proc_mount), (35, profiles::proc_mount_own_users)]),
    check("seLinuxOptions", &[(0, profiles::se_linux), (31, profiles::se_linux_31)]),
    check(
        "seccompProfile_baseline",
        &[(0, profiles::seccomp_annotations), (19, profiles::seccomp_baseline)],
    ),
    check(
        "sysctls",
        &[
            (0, profiles::sysctls),
            (27, profiles::sysctls_27),
            (29, profiles::sysctls_29),
            (32, profiles::sysctls_32),
            (37, profiles::sysctls_37),
        ],
    ),
    check("windowsHostProcess", &[(0, host::windows_process)]),
];

const RESTRICTED: &[Check] = &[
    check(
        "allowPrivilegeEscalation",
        &[(8, privileges::escalation), (25, privileges::escalation_25)],
    ),
    Check {
        id: "capabilities_restricted",
        looks: &[
            (22, privileges::capabilities_restricted),
            (25, privileges::capabilities_restricted_25),
        ],
        instead_of: "capabilities_baseline",
    },
    Check {
        id: "procMount_restricted",
        looks: &[(35, profiles::proc_mount)],
        instead_of: "procMount",
    },
    Check {
        id: "restrictedVolumes",
        looks: &[(0, volumes::restricted)],
        instead_of: "hostPathVolumes",
    },
    check("runAsNonRoot", &[(0, privileges::non_root), (35, privileges::non_root_35)]),
    check("runAsUser", &[(23, privileges::user), (35, privileges::user_35)]),
    Check {
        id: "seccompProfile_restricted",
        looks: &[(19, profiles::seccomp_restricted), (25, profiles::seccomp_restricted_25)],
        instead_of: "seccompProfile_baseline",
    },
];

impl Check {
    fn at(&self, minor: u64) -> Option<Look> {
        let held = self.looks.iter().rev().find(|(from, _)| *from <= minor);
        held.map(|(_, look)| *look)
    }
}

/// What a pod violates at a level.
pub(crate) fn evaluate(policy: LevelVersion, pod: &Pod<'_>) -> Vec<Violation> {
    let minor = policy.version.unwrap_or(NEWEST).min(NEWEST);
    let stricter: &[Check] = match policy.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => &[],
        Level::Restricted => RESTRICTED,
    };
    let included = |id: &str| stricter.iter().any(|s| s.instead_of == id && s.at(minor).is_some());
    let baseline = BASELINE.iter().filter(|check| !included(check.id));
    let looks = baseline.chain(stricter).filter_map(|check| check.at(minor));
    looks.filter_map(|look| look(pod)).collect()
}
