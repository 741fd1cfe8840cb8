//! Parameters that can be changed while a volume lives (VolumeAttributesClass).
//!
//! | parameter | values | what it does |
//! |---|---|---|
//! | `discard` | `true` | the filesystem gives freed blocks back to the pool at once |
//! | | `false` | the device takes no discards at all; what was written stays set aside |
//! | `directIO` | `true`, `false` | the device bypasses the page cache of the pool's filesystem |
//! | `reservedBlocksPercent` | 0 to 50 | ext4: the share of blocks that only root may use |
//!
//! An empty value is the driver's default: discards are taken and not sent, the page cache is used, no
//! block is reserved. A key that a request does not name stays as it is, as CSI demands; a caller that
//! knows [`KNOWN`] from GetPluginInfo can name all of them.
//!
//! They take effect at once where the volume is staged. What a kernel cannot change there (xfs takes
//! `discard` only when it is mounted, and a device that refused discards does so until it is given
//! back) is recorded and refused until the volume is staged anew.

use std::collections::BTreeMap;

use crate::config::FsType;

const DISCARD: &str = "discard";
const DIRECT_IO: &str = "directIO";
const RESERVED: &str = "reservedBlocksPercent";

/// All parameters that can be changed.
pub(crate) const KNOWN: [&str; 3] = [DISCARD, DIRECT_IO, RESERVED];

/// What mkfs is told: see `FormatOptions::mkfs_args`.
const DEFAULT_RESERVED: &str = "0";

/// Checked values; what is absent is left as the system has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mutable {
    /// Give freed blocks back.
    pub discard: Option<bool>,
    /// Bypass the page cache.
    pub direct_io: Option<bool>,
    /// Share of blocks for root.
    pub reserved_percent: Option<u8>,
}

/// Why a mutable parameter is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MutableError {
    #[error("mutable parameter {key}: {value:?} is not a number from 0 to 50")]
    Percent { key: String, value: String },
    #[error("mutable parameter {key}: {value:?} is not true or false")]
    Switch { key: String, value: String },
    #[error("mutable parameter {0} is for ext4 only")]
    Ext4Only(String),
    #[error(
        "mutable parameter {0:?} is not known; remove it from the class, or use one of: {known}",
        known = KNOWN.join(", ")
    )]
    Unknown(String),
}

impl Mutable {
    /// Checks parameters of a request or a record. Unknown ones are refused.
    pub(crate) fn parse(
        parameters: &BTreeMap<String, String>,
        fstype: Option<FsType>,
    ) -> Result<Self, MutableError> {
        let mut values = Self::default();
        for (key, value) in parameters {
            match key.as_str() {
                known if value.is_empty() && KNOWN.contains(&known) => {}
                DISCARD => values.discard = Some(switch(key, value)?),
                DIRECT_IO => values.direct_io = Some(switch(key, value)?),
                RESERVED if fstype == Some(FsType::Ext4) => {
                    let digits = value.len() <= 2 && value.bytes().all(|b| b.is_ascii_digit());
                    let percent = value.parse().ok().filter(|percent| digits && *percent <= 50);
                    let (key, value) = (key.clone(), value.clone());
                    values.reserved_percent =
                        Some(percent.ok_or(MutableError::Percent { key, value })?);
                }
                RESERVED => return Err(MutableError::Ext4Only(key.clone())),
                _ => return Err(MutableError::Unknown(key.clone())),
            }
        }
        Ok(values)
    }

    /// Takes checked values over into those that are recorded. A default is recorded in a way that undoes
    /// what was there before when the volume is staged next.
    pub(crate) fn take_over(
        recorded: &mut BTreeMap<String, String>,
        given: &BTreeMap<String, String>,
    ) {
        for (key, value) in given {
            let was_there = recorded.remove(key).is_some();
            match (key.as_str(), value.as_str()) {
                (DIRECT_IO, "") if was_there => recorded.insert(key.clone(), "false".to_owned()),
                (RESERVED, "") if was_there => {
                    recorded.insert(key.clone(), DEFAULT_RESERVED.to_owned())
                }
                (_, "") => None,
                _ => recorded.insert(key.clone(), value.clone()),
            };
        }
    }
}

fn switch(key: &str, value: &str) -> Result<bool, MutableError> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(MutableError::Switch { key: key.to_owned(), value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let ext4 = Some(FsType::Ext4);
        let good = [
            ("discard", "true", ext4, Mutable { discard: Some(true), ..Mutable::default() }),
            ("directIO", "false", None, Mutable { direct_io: Some(false), ..Mutable::default() }),
            (RESERVED, "5", ext4, Mutable { reserved_percent: Some(5), ..Mutable::default() }),
            ("directIO", "", ext4, Mutable::default()),
            (RESERVED, "", Some(FsType::Xfs), Mutable::default()),
        ];
        let one = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        for (key, value, fstype, want) in good {
            assert_eq!(Mutable::parse(&one(key, value), fstype).as_ref(), Ok(&want), "{key}");
        }
        let bad = [
            ("discard", "yes", ext4),
            ("size", "", ext4),
            (RESERVED, "51", ext4),
            (RESERVED, "+5", ext4),
            (RESERVED, "5 -O x", ext4),
            (RESERVED, "5", Some(FsType::Xfs)),
            (RESERVED, "5", None),
            ("size", "1", ext4),
        ];
        for (key, value, fstype) in bad {
            let error = Mutable::parse(&one(key, value), fstype).expect_err(key);
            assert!(error.to_string().contains(key), "{error}");
        }
        let error = Mutable::parse(&one("iops", "3000"), ext4).expect_err("unknown");
        let want = "mutable parameter \"iops\" is not known; remove it from the class, or use one of: \
                    discard, directIO, reservedBlocksPercent";
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn an_empty_value_undoes_what_was_recorded() {
        let map = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let all = [(DISCARD, "false"), (DIRECT_IO, "true"), (RESERVED, "7")];
        let defaults = [(DISCARD, ""), (DIRECT_IO, ""), (RESERVED, "")];
        let rows: [(&[_], &[_], &[_]); 4] = [
            (&[], &defaults, &[]),
            (&all, &defaults, &[(DIRECT_IO, "false"), (RESERVED, "0")]),
            (
                &all,
                &[(DISCARD, "true")],
                &[(DISCARD, "true"), (DIRECT_IO, "true"), (RESERVED, "7")],
            ),
            (&[], &all, &all),
        ];
        for (recorded, given, want) in rows {
            let mut found = map(recorded);
            Mutable::take_over(&mut found, &map(given));
            assert_eq!(found, map(want), "{given:?} over {recorded:?}");
        }
    }
}
