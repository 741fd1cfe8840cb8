//! Ids of volumes, snapshots and groups: the only text from outside that ever becomes part of a
//! file name.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The driver's handle for a volume: `vol-` and 32 hexadecimal digits, nothing else.
///
/// It follows from the volume's name (and, for a node-local pool, from the node), so that a
/// repeated CreateVolume finds its volume without an index, and nothing a caller writes can reach
/// the filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

const PREFIX: &str = "vol-";
const DIGITS: usize = 32;

impl VolumeId {
    /// The id of the volume called `name` within `scope` (the node of a local pool, or empty).
    ///
    /// Two nodes may get a request for one name, for instance when a pod moves after a lost
    /// response; the scope keeps their volumes apart.
    #[must_use]
    pub fn for_name(scope: &str, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(scope.as_bytes());
        hash.update([0]);
        hash.update(name.as_bytes());
        Self(format!("{PREFIX}{}", &hex::encode(hash.finalize())[..DIGITS]))
    }

    /// Reads an id; `None` for whatever this driver cannot have made.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_digits(text.strip_prefix(PREFIX)?).then(|| Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for VolumeId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a volume id"))
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> Self {
        id.0
    }
}

/// An id of the same make as [`VolumeId`], under another prefix.
macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            fn of(parts: &[&str]) -> Self {
                let mut hash = Sha256::new();
                for part in parts {
                    hash.update(part.as_bytes());
                    hash.update([0]);
                }
                Self(format!("{}{}", $prefix, &hex::encode(hash.finalize())[..DIGITS]))
            }

            /// Reads an id; `None` for whatever this driver cannot have made.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                is_digits(text.strip_prefix($prefix)?).then(|| Self(text.to_owned()))
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                Self::parse(&text).ok_or_else(|| format!("{text:?} is not a {} id", $what))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

hex_id! {
    /// The driver's handle for a snapshot: `snap-` and 32 hexadecimal digits.
    SnapshotId, "snap-", "snapshot"
}

hex_id! {
    /// The driver's handle for a group of snapshots: `group-` and 32 hexadecimal digits.
    GroupId, "group-", "group snapshot"
}

impl SnapshotId {
    /// The id of the snapshot called `name` within `scope`, as for volumes.
    #[must_use]
    pub fn for_name(scope: &str, name: &str) -> Self {
        Self::of(&["single", scope, name])
    }

    /// The id of the snapshot of `source` that belongs to a group.
    #[must_use]
    pub fn in_group(group: &GroupId, source: &VolumeId) -> Self {
        Self::of(&["member", group.as_str(), source.as_str()])
    }

    /// The id that an exported snapshot has in the pool that it is imported into under this name.
    #[must_use]
    pub fn imported(name: &str, exported: &Self, cut: jiff::Timestamp) -> Self {
        Self::of(&["imported", name, exported.as_str(), &cut.as_nanosecond().to_string()])
    }
}

impl GroupId {
    /// The id of the group of snapshots called `name` within `scope`, as for volumes.
    #[must_use]
    pub fn for_name(scope: &str, name: &str) -> Self {
        Self::of(&["group", scope, name])
    }
}

fn is_digits(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == DIGITS && text.bytes().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_form_is_read() {
        let id = VolumeId::for_name("", "pvc-1");
        assert_eq!(VolumeId::parse(id.as_str()), Some(id.clone()));
        assert_ne!(VolumeId::for_name("node-2", "pvc-1"), id);
        let upper = id.as_str().to_uppercase();
        let long = format!("{id}0");
        let dots = format!("vol-../../{}", "0".repeat(26));
        for text in ["", "vol-", "..", "../etc/passwd", "vol-/", "a\0b", &upper, &long, &dots] {
            assert_eq!(VolumeId::parse(text), None, "{text:?}");
        }
    }
    #[test]
    fn ids_of_snapshots_and_groups_never_meet() {
        let group = GroupId::for_name("n1", "a");
        let source = VolumeId::for_name("n1", "v");
        let one = SnapshotId::for_name("n1", "a");
        assert_ne!(SnapshotId::in_group(&group, &source), one);
        assert_ne!(SnapshotId::for_name("n2", "a"), one);
        assert_eq!(SnapshotId::parse(one.as_str()), Some(one.clone()));
        assert_eq!(GroupId::parse(group.as_str()), Some(group.clone()));
        assert_eq!(SnapshotId::parse(group.as_str()), None);
        assert_eq!(VolumeId::parse(one.as_str()), None);
        assert_eq!(SnapshotId::parse("snap-../../etc/passwd"), None);
    }
}
