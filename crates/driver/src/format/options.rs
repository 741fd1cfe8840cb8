//! How a filesystem is made, as far as a class may say: a typed allow-list, never free text to
//! mkfs.

use std::collections::BTreeMap;

use crate::config::FsType;

/// Class parameters that say how a filesystem is made, and the values that each filesystem takes.
const KNOWN: [(&str, FsType, Values); 8] = [
    ("blockSize", FsType::Ext4, Values::OneOf(&["1024", "2048", "4096"])),
    ("blockSize", FsType::Xfs, Values::OneOf(&["1024", "2048", "4096"])),
    ("inodeSize", FsType::Ext4, Values::OneOf(&["256", "512", "1024"])),
    ("inodeSize", FsType::Xfs, Values::OneOf(&["512", "1024", "2048"])),
    ("bytesPerInode", FsType::Ext4, Values::Between(1024, 4 << 20)),
    ("reflink", FsType::Xfs, Values::OneOf(&["true", "false"])),
    ("nodeSize", FsType::Btrfs, Values::OneOf(&["4096", "8192", "16384", "32768", "65536"])),
    ("metadata", FsType::Btrfs, Values::OneOf(&["single", "dup"])),
];

#[derive(Debug, Clone, Copy)]
enum Values {
    OneOf(&'static [&'static str]),
    Between(u64, u64),
}

impl Values {
    fn admit(self, value: &str) -> bool {
        match self {
            Self::OneOf(all) => all.contains(&value),
            Self::Between(least, most) => {
                value.bytes().all(|b| b.is_ascii_digit())
                    && value.parse().is_ok_and(|number| (least..=most).contains(&number))
            }
        }
    }

    fn describe(self) -> String {
        match self {
            Self::OneOf(all) => format!("one of {}", all.join(", ")),
            Self::Between(least, most) => format!("a number from {least} to {most}"),
        }
    }
}

/// Why a class parameter cannot be an option of the filesystem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("parameter {0}: a raw block volume has no filesystem")]
    Block(String),
    #[error("parameter {key}: {fstype} has no such option")]
    Absent { key: String, fstype: FsType },
    #[error("parameter {key}: {value:?} is not {allowed} for {fstype}")]
    Value { key: String, value: String, allowed: String, fstype: FsType },
}

/// Checked options of one filesystem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FormatOptions {
    values: BTreeMap<&'static str, String>,
}

impl FormatOptions {
    /// Whether a class parameter is one of these at all.
    #[must_use]
    pub fn knows(parameter: &str) -> bool {
        KNOWN.iter().any(|(name, ..)| *name == parameter)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        let mut names: Vec<&str> = KNOWN.iter().map(|(name, ..)| *name).collect();
        names.dedup();
        names.into_iter()
    }

    /// Takes the options out of class parameters. One that the filesystem does not have, or a
    /// value that it does not take, is an error: it must not silently mean nothing.
    pub fn parse(
        parameters: &BTreeMap<String, String>,
        fstype: Option<FsType>,
    ) -> Result<Self, OptionError> {
        let mut values = BTreeMap::new();
        for (key, value) in parameters.iter().filter(|(key, _)| Self::knows(key)) {
            let Some(fstype) = fstype else { return Err(OptionError::Block(key.clone())) };
            let row = KNOWN.iter().find(|(name, of, _)| name == key && *of == fstype);
            let Some((name, _, allowed)) = row else {
                return Err(OptionError::Absent { key: key.clone(), fstype });
            };
            if !allowed.admit(value) {
                let (key, value, allowed) = (key.clone(), value.clone(), allowed.describe());
                return Err(OptionError::Value { key, value, allowed, fstype });
            }
            values.insert(*name, value.clone());
        }
        Ok(Self { values })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Arguments of mkfs, without the image.
    ///
    /// ext4: the scratch file is known to be zero, so the journal needs no wiping, and the inode
    /// tables are marked as done, or the kernel would fill them with zeros later and take the
    /// space for it. The checksums do not depend on the UUID, so that a copy gets a new one by a
    /// change of its superblocks.
    #[must_use]
    pub fn mkfs_args(&self, fstype: FsType) -> Vec<String> {
        let plain: &[&str] = match fstype {
            FsType::Ext4 => &[
                "-q",
                "-F",
                "-t",
                "ext4",
                "-m",
                "0",
                "-O",
                "metadata_csum,metadata_csum_seed",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=1",
            ],
            FsType::Xfs => &["-q", "-K"],
            FsType::Btrfs => &["-q", "-K"],
        };
        let mut args: Vec<String> = plain.iter().map(|&arg| arg.to_owned()).collect();
        let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
        for (name, value) in &self.values {
            match (fstype, *name) {
                (FsType::Ext4, "blockSize") => add("-b", value.clone()),
                (FsType::Ext4, "inodeSize") => add("-I", value.clone()),
                (FsType::Ext4, "bytesPerInode") => add("-i", value.clone()),
                (FsType::Xfs, "blockSize") => add("-b", format!("size={value}")),
                (FsType::Xfs, "inodeSize") => add("-i", format!("size={value}")),
                (FsType::Xfs, "reflink") => {
                    add("-m", format!("reflink={}", u8::from(value == "true")));
                }
                (FsType::Btrfs, "nodeSize") => add("-n", value.clone()),
                (FsType::Btrfs, "metadata") => add("-m", value.clone()),
                // `parse` lets nothing else through.
                _ => {}
            }
        }
        args
    }

    /// A text that is the same for options that make the same filesystem.
    #[must_use]
    pub fn shape(&self) -> String {
        self.values.iter().map(|(name, value)| format!("{name}={value};")).collect()
    }

    /// Least size of an image for these options.
    #[must_use]
    pub fn minimum_bytes(&self, fstype: FsType) -> u64 {
        let least = fstype.minimum_bytes();
        match (fstype, self.get("blockSize")) {
            // The journal has at least 1024 blocks.
            (FsType::Ext4, Some("2048")) => least.max(4 << 20),
            (FsType::Ext4, Some("4096")) => least.max(8 << 20),
            _ => least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn known_options_become_arguments() {
        use FsType::{Btrfs, Ext4, Xfs};
        let cases = [
            (Ext4, "blockSize", "1024", "-b 1024"),
            (Ext4, "inodeSize", "512", "-I 512"),
            (Ext4, "bytesPerInode", "65536", "-i 65536"),
            (Xfs, "blockSize", "4096", "-b size=4096"),
            (Xfs, "inodeSize", "1024", "-i size=1024"),
            (Xfs, "reflink", "false", "-m reflink=0"),
            (Btrfs, "nodeSize", "8192", "-n 8192"),
            (Btrfs, "metadata", "single", "-m single"),
        ];
        for (fstype, key, value, want) in cases {
            let options = FormatOptions::parse(&parameters(&[(key, value)]), Some(fstype)).unwrap();
            let args = options.mkfs_args(fstype).join(" ");
            assert!(args.ends_with(want), "{key}={value}: {args}");
        }
        assert_eq!(cases.len(), KNOWN.len(), "every option has a row here");
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        use FsType::{Btrfs, Ext4, Xfs};
        let cases = [
            (Some(Ext4), "blockSize", "3", "one of 1024, 2048, 4096"),
            (Some(Ext4), "blockSize", "1024 -L x", "one of"),
            (Some(Ext4), "bytesPerInode", "1", "from 1024"),
            (Some(Ext4), "bytesPerInode", "+4096", "from 1024"),
            (Some(Ext4), "bytesPerInode", "", "from 1024"),
            (Some(Ext4), "reflink", "true", "ext4 has no such option"),
            (Some(Xfs), "nodeSize", "4096", "xfs has no such option"),
            (Some(Btrfs), "blockSize", "4096", "btrfs has no such option"),
            (None, "blockSize", "4096", "raw block"),
        ];
        for (fstype, key, value, want) in cases {
            let error =
                FormatOptions::parse(&parameters(&[(key, value)]), fstype).expect_err(value);
            let error = error.to_string();
            assert!(error.contains(want) && error.contains(key), "{error}");
        }
        let other = parameters(&[("pool", "x")]);
        assert_eq!(FormatOptions::parse(&other, Some(Ext4)).unwrap(), FormatOptions::default());
        assert!(!FormatOptions::knows("pool"));
    }
}
