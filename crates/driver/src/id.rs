//! Volume ids: the only text from outside that ever becomes part of a file name.

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
    /// answer; the scope keeps their volumes apart.
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
        let digits = text.strip_prefix(PREFIX)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (digits.len() == DIGITS && digits.bytes().all(hex)).then(|| Self(text.to_owned()))
    }

    /// The id as text.
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
}
