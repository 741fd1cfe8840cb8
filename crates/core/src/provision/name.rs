//! The name of a provisioned volume: the driver's `name` and the PersistentVolume's.

/// Why no name can be made.
use crate::model::{Uid, VolumeName};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The operator configured an empty prefix.
    #[error("volume name prefix cannot be of length 0")]
    NoPrefix,
    /// The claim has no UID, so nothing about it is unique.
    #[error("corrupted PVC object, it is missing UID")]
    NoUid,
}

/// `<prefix>-<uid>`, or with a length `<prefix>-<first N characters of the UID without dashes>`.
///
/// A length beyond the UID's own is cut to it: asking for more characters than there are changes
/// nothing about uniqueness.
///
/// # Errors
/// When prefix or UID is empty.
pub fn volume_name(
    prefix: &str,
    uid: &Uid,
    length: Option<usize>,
) -> Result<VolumeName, NameError> {
    if prefix.is_empty() {
        return Err(NameError::NoPrefix);
    }
    if uid.is_empty() {
        return Err(NameError::NoUid);
    }
    let name = match length {
        None => format!("{prefix}-{uid}"),
        Some(length) => {
            let short: String = uid.chars().filter(|c| *c != '-').take(length).collect();
            format!("{prefix}-{short}")
        }
    };
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_name_is_prefix_and_uid() {
        let uid = "7bb2e0f5-1f1a-4e5e-9a0e-0c5a0d5f1c11";
        type Row<'a> = (&'a str, &'a str, &'a str, Option<usize>, Result<&'a str, NameError>);
        let cases: [Row<'_>; 6] = [
            ("whole", "pvc", uid, None, Ok("pvc-7bb2e0f5-1f1a-4e5e-9a0e-0c5a0d5f1c11")),
            ("short", "test", "testid", Some(5), Ok("test-testi")),
            ("dashes do not count", "p", uid, Some(10), Ok("p-7bb2e0f51f")),
            ("longer than it is", "p", uid, Some(99), Ok("p-7bb2e0f51f1a4e5e9a0e0c5a0d5f1c11")),
            ("no prefix", "", uid, None, Err(NameError::NoPrefix)),
            ("no uid", "pvc", "", None, Err(NameError::NoUid)),
        ];
        for (name, prefix, uid, length, want) in cases {
            assert_eq!(
                volume_name(prefix, &uid.into(), length),
                want.map(VolumeName::from),
                "{name}"
            );
        }
    }
}
