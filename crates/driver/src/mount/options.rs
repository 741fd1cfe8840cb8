//! Mount flags of a class or volume: a typed allow-list, never free text to the kernel.

use rustix::mount::MountAttrFlags as Attr;

use crate::config::FsType;

/// Flags that were understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Flags of the mount.
    pub attributes: Attr,
    /// The filesystem itself refuses writes.
    pub read_only: bool,
    /// Options of the filesystem.
    pub filesystem: Vec<(String, Option<String>)>,
}

/// A mount flag is not on the list of the filesystem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mount flag {flag:?} is not supported for {fstype}; take it out of mountOptions")]
pub struct UnsupportedFlag {
    pub flag: String,
    pub fstype: FsType,
}

impl Default for Options {
    fn default() -> Self {
        Self { attributes: Attr::empty(), read_only: false, filesystem: Vec::new() }
    }
}

impl Options {
    /// Reads flags as Kubernetes passes them: one to an element, or several with commas.
    pub fn parse(flags: &[String], fstype: FsType) -> Result<Self, UnsupportedFlag> {
        let mut options = Self::default();
        for flag in flags.iter().flat_map(|flag| flag.split(',')).map(str::trim) {
            options.add(flag, fstype)?;
        }
        Ok(options)
    }

    fn add(&mut self, flag: &str, fstype: FsType) -> Result<(), UnsupportedFlag> {
        let atime = |attributes: &mut Attr, bits: Attr| {
            attributes.remove(Attr::MOUNT_ATTR__ATIME);
            attributes.insert(bits);
        };
        match flag {
            "" | "defaults" | "rw" | "dev" | "exec" | "suid" | "async" | "diratime" | "atime" => {}
            "ro" => self.read_only = true,
            "nodev" => self.attributes.insert(Attr::MOUNT_ATTR_NODEV),
            "noexec" => self.attributes.insert(Attr::MOUNT_ATTR_NOEXEC),
            "nosuid" => self.attributes.insert(Attr::MOUNT_ATTR_NOSUID),
            "nodiratime" => self.attributes.insert(Attr::MOUNT_ATTR_NODIRATIME),
            "nosymfollow" => self.attributes.insert(Attr::MOUNT_ATTR_NOSYMFOLLOW),
            "noatime" => atime(&mut self.attributes, Attr::MOUNT_ATTR_NOATIME),
            "relatime" => atime(&mut self.attributes, Attr::MOUNT_ATTR_RELATIME),
            "strictatime" => atime(&mut self.attributes, Attr::MOUNT_ATTR_STRICTATIME),
            "sync" | "dirsync" | "lazytime" => self.filesystem.push((flag.to_owned(), None)),
            _ => match known(flag, fstype) {
                Some(option) => self.filesystem.push(option),
                None => return Err(UnsupportedFlag { flag: flag.to_owned(), fstype }),
            },
        }
        Ok(())
    }
}

/// Options that change how the filesystem works but reach neither other files nor the host
/// (`errors=panic` and external journals are left out on purpose).
fn known(flag: &str, fstype: FsType) -> Option<(String, Option<String>)> {
    let (key, value) = match flag.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (flag, None),
    };
    let number = |text: &str| {
        text.len() <= 6 && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
    };
    let fine = match fstype {
        FsType::Ext4 => match (key, value) {
            ("discard" | "nodiscard" | "delalloc" | "nodelalloc", None) => true,
            // Without barriers a power cut may cost more than the last writes: the class says so.
            ("barrier" | "nobarrier", None) | ("barrier", Some("0" | "1")) => true,
            ("auto_da_alloc" | "noauto_da_alloc" | "user_xattr" | "acl", None) => true,
            ("data", Some("ordered" | "journal" | "writeback")) => true,
            ("errors", Some("continue" | "remount-ro")) => true,
            ("commit" | "stripe", Some(value)) => number(value),
            _ => false,
        },
        FsType::Xfs => match (key, value) {
            ("discard" | "nodiscard" | "largeio" | "nolargeio" | "inode32" | "inode64", None) => {
                true
            }
            ("logbsize", Some("16k" | "32k" | "64k" | "128k" | "256k")) => true,
            ("logbufs", Some("2" | "3" | "4" | "5" | "6" | "7" | "8")) => true,
            ("allocsize", Some(value)) => number(value.trim_end_matches(['k', 'm'])),
            _ => false,
        },
        // Not `subvol`: a pod gets the volume, not a part of it that it could leave.
        FsType::Btrfs => match (key, value) {
            ("autodefrag" | "noautodefrag" | "datacow" | "nodatacow", None) => true,
            ("discard" | "nodiscard" | "ssd" | "nossd" | "acl" | "noacl", None) => true,
            ("discard", Some("sync" | "async")) => true,
            ("compress" | "compress-force", Some("zlib" | "lzo" | "zstd" | "no")) => true,
            ("commit", Some(value)) => number(value),
            _ => false,
        },
    };
    fine.then(|| (key.to_owned(), value.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_understood_or_refused() {
        let parse = |flag: &str| Options::parse(&[flag.to_owned()], FsType::Ext4);
        for flag in [
            "discard,nobarrier",
            "barrier=1",
            "noatime,nodev",
            "data=journal",
            "commit=30",
            "ro",
            "",
            "defaults",
        ] {
            parse(flag).expect(flag);
        }
        for flag in
            ["errors=panic", "journal_path=/dev/sda", "commit=-1", "loop", "subvol=x", "a\0b"]
        {
            let error = parse(flag).expect_err(flag);
            assert!(error.to_string().contains("not supported"), "{flag}: {error}");
        }
        let by_filesystem = [
            (FsType::Xfs, "logbsize=64k,inode64", "data=journal"),
            (FsType::Btrfs, "compress=zstd,discard=async", "subvol=x"),
            (FsType::Btrfs, "nodatacow", "device=/dev/sda"),
            (FsType::Xfs, "allocsize=64k", "logdev=/dev/sda"),
            (FsType::Xfs, "discard", "nobarrier"),
        ];
        for (fstype, good, bad) in by_filesystem {
            Options::parse(&[good.to_owned()], fstype).expect(good);
            Options::parse(&[bad.to_owned()], fstype).expect_err(bad);
        }
        let options = parse("noatime,relatime,commit=5").unwrap();
        assert_eq!(options.attributes, Attr::MOUNT_ATTR_RELATIME);
        assert_eq!(options.filesystem, [("commit".to_owned(), Some("5".to_owned()))]);
    }
}
