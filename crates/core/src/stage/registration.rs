//! Rules of driver registration.

use std::cmp::Ordering;

/// A version of the form `v1.2.3`, as drivers announce them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads a dotted version with an optional leading `v`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse::<u32>().ok());
        let version = Self(
            parts.next()??,
            parts.next().unwrap_or(Some(0))?,
            parts.next().unwrap_or(Some(0))?,
        );
        parts.next().is_none().then_some(version)
    }
}

/// Why a driver is not let in.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// It announces no version.
    #[error("the driver {0} supports no versions")]
    NoVersions(String),
    /// It announces no version of the first major.
    #[error("none of the versions {1:?} of driver {0} is supported: at least one 1.x is needed")]
    NoSupported(String, Vec<String>),
    /// A driver of that name is registered, and not with a lower version.
    #[error("driver {0} is already registered with a version that is not lower")]
    AlreadyRegistered(String),
}

/// The highest usable version of a new driver, given that of a registered one of the same name.
///
/// # Errors
/// The driver must not be registered.
pub fn validate(
    name: &str,
    versions: &[String],
    registered: Option<Version>,
) -> Result<Version, Refusal> {
    if versions.is_empty() {
        return Err(Refusal::NoVersions(name.to_owned()));
    }
    let highest = versions
        .iter()
        .filter_map(|text| Version::parse(text))
        .filter(|version| version.0 < 2)
        .max()
        .filter(|version| version.0 == 1)
        .ok_or_else(|| Refusal::NoSupported(name.to_owned(), versions.to_vec()))?;
    match registered.map(|old| old.cmp(&highest)) {
        None | Some(Ordering::Less) => Ok(highest),
        Some(Ordering::Equal | Ordering::Greater) => {
            Err(Refusal::AlreadyRegistered(name.to_owned()))
        }
    }
}

/// `CSINode.spec.drivers[].allocatable.count` for a driver's `max_volumes_per_node`.
#[must_use]
pub fn allocatable_count(max_volumes: i64) -> Option<i32> {
    (max_volumes > 0).then(|| i32::try_from(max_volumes).unwrap_or(i32::MAX))
}

/// Labels to add to the node for a driver's topology.
///
/// # Errors
/// The key of a label that already has another value.
pub fn topology_labels<'a>(
    present: impl Fn(&str) -> Option<&'a str>,
    segments: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<(&'a str, &'a str)>, String> {
    let mut missing = Vec::new();
    for (key, value) in segments {
        match present(key) {
            None => missing.push((key, value)),
            Some(old) if old == value => {}
            Some(old) => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{old:?}"
                ));
            }
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(versions: &[&str]) -> Vec<String> {
        versions.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_driver_registers_with_a_supported_version() {
        // case: node/N39
        for (given, ok) in [
            (&["v1.2.3", "v0.3.0", "2.0.1"][..], true),
            (&["0.3.0"], false),
            (&["4.9.12", "2.0.1"], false),
            (&[], false),
            (&["rubbish", "1.0.0"], true),
        ] {
            assert_eq!(validate("d", &texts(given), None).is_ok(), ok, "{given:?}");
        }
    }

    #[test]
    fn a_registered_driver_gives_way_only_to_a_higher_version() {
        // case: node/N40
        let registered = Some(Version(1, 0, 0));
        assert_eq!(
            validate("d", &texts(&["1.0.0"]), registered),
            Err(Refusal::AlreadyRegistered("d".into()))
        );
        assert_eq!(validate("d", &texts(&["1.0.1"]), registered), Ok(Version(1, 0, 1)));
        assert_eq!(validate("other", &texts(&["1.0.0"]), None), Ok(Version(1, 0, 0)));
    }

    #[test]
    fn the_volume_limit_is_clamped_and_zero_is_none() {
        // case: node/N44
        for (max, expected) in
            [(i64::from(i32::MAX) + 1, Some(i32::MAX)), (0, None), (10, Some(10)), (-1, None)]
        {
            assert_eq!(allocatable_count(max), expected);
        }
    }

    #[test]
    fn a_label_with_another_value_is_a_collision() {
        // case: node/N42
        let present = |key: &str| (key == "zone").then_some("zoneA");
        assert!(topology_labels(present, [("zone", "zoneB")]).is_err());
        assert_eq!(
            topology_labels(present, [("zone", "zoneA"), ("rack", "1")]),
            Ok(vec![("rack", "1")])
        );
    }
}
