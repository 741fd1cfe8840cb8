//! The policy that the labels of a namespace set.

use std::fmt;

use serde_json::Value;

use crate::error::Cause;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// How much a pod may do, from most to least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Level {
    /// Everything.
    #[default]
    Privileged,
    /// Nothing that is known to reach beyond the pod.
    Baseline,
    /// As little as a hardened pod needs.
    Restricted,
}

impl Level {
    /// The level as labels name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|l| l.name() == text)
    }
}

/// A level as a minor version of Kubernetes understood it; `None` is the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LevelVersion {
    pub level: Level,
    /// Minor version.
    pub version: Option<u64>,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            None => write!(f, "{}:latest", self.level.name()),
            Some(minor) => write!(f, "{}:v1.{minor}", self.level.name()),
        }
    }
}

/// What is refused, noted and warned of. Without labels everything is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Policy {
    /// What is refused.
    pub enforce: LevelVersion,
    /// What is noted.
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    /// Reads the labels of a namespace, and says what is wrong with them. A level that cannot be read
    /// is enforced as the strictest one, and neither noted nor warned of.
    pub(crate) fn of(labels: &Value) -> (Self, Vec<Cause>) {
        let mut policy = Self::default();
        let mut causes = Vec::new();
        let get = |name: &str| labels[format!("{PREFIX}{name}")].as_str();
        let mut level = |mode: &mut LevelVersion, name: &str, otherwise: Level| {
            let text = get(name)?;
            let known = Level::parse(text);
            mode.level = known.unwrap_or(otherwise);
            if known.is_none() {
                causes.push(refuse(name, text, "must be one of privileged, baseline, restricted"));
            }
            known
        };
        let enforced = level(&mut policy.enforce, "enforce", Level::Restricted);
        level(&mut policy.audit, "audit", Level::Privileged);
        level(&mut policy.warn, "warn", Level::Privileged);
        for (mode, name) in [
            (&mut policy.enforce, "enforce-version"),
            (&mut policy.audit, "audit-version"),
            (&mut policy.warn, "warn-version"),
        ] {
            let Some(text) = get(name) else { continue };
            match version(text) {
                Some(version) => mode.version = version,
                None => causes.push(refuse(name, text, "must be \"latest\" or \"v1.x\"")),
            }
        }
        // Who enforces a level also wants to hear of what it forbids.
        if get("warn").is_none() && enforced.is_some_and(|level| level > policy.warn.level) {
            policy.warn.level = policy.enforce.level;
            if get("warn-version").is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        causes.sort_by_key(|cause| rank(&cause.field));
        (policy, causes)
    }

    /// Whether no mode has anything against anything.
    pub(crate) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|mode| mode.level == Level::Privileged)
    }
}

/// Mode by mode, as the labels are read upstream.
fn rank(field: &str) -> usize {
    let order = ["enforce]", "enforce-version]", "audit]", "audit-version]", "warn]"];
    order.iter().position(|end| field.ends_with(end)).unwrap_or(order.len())
}

fn refuse(name: &str, value: &str, why: &str) -> Cause {
    Cause::invalid(format!("metadata.labels[{PREFIX}{name}]"), &value.into(), why)
}

/// A version; the outer `None` when it is none.
fn version(text: &str) -> Option<Option<u64>> {
    if text == "latest" {
        return Some(None);
    }
    let minor = text.strip_prefix("v1.")?;
    let plain = minor == "0" || (!minor.starts_with('0') && !minor.is_empty());
    let digits = minor.bytes().all(|byte| byte.is_ascii_digit());
    let number = minor.parse::<i64>().ok()?;
    (plain && digits).then(|| u64::try_from(number).ok())
}
