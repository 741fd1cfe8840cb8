//! The mount table: what is mounted where, as the kernel lists it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Device number of the filesystem.
    pub device: (u32, u32),
    /// What of that filesystem is mounted.
    pub root: PathBuf,
    pub path: PathBuf,
    /// The mount itself refuses writes.
    pub read_only: bool,
    /// The filesystem itself refuses writes, whoever asks.
    pub filesystem_read_only: bool,
    pub fstype: String,
    /// What it was mounted from, as the one who mounted it wrote it.
    pub source: PathBuf,
    /// Options of the filesystem, with commas between them.
    pub options: String,
}

impl Entry {
    /// Whether this is a mount of the filesystem on a block device.
    #[must_use]
    pub fn is_of(&self, device: (u32, u32), node: &Path) -> bool {
        // Btrfs shows a number of its own, because it may span devices. A device that is mounted
        // keeps its name, so the source is as good.
        self.device == device || (self.fstype == "btrfs" && self.source == node)
    }
}

/// All mounts of this process's mount namespace, in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct MountTable {
    pub entries: Vec<Entry>,
}

impl MountTable {
    pub fn read() -> io::Result<Self> {
        Self::parse(&std::fs::read("/proc/thread-self/mountinfo")?)
    }

    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let lines = bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        let bad = |line: &[u8]| {
            io::Error::other(format!("mountinfo line {:?}", String::from_utf8_lossy(line)))
        };
        let entries = lines.map(|line| parse_line(line).ok_or_else(|| bad(line)));
        Ok(Self { entries: entries.collect::<io::Result<_>>()? })
    }

    /// Device number of the filesystem that an open file is on, as the table gives it; that of the
    /// file itself may be another one (btrfs).
    pub fn device_of(fd: &OwnedFd) -> io::Result<Option<(u32, u32)>> {
        Ok(Self::entry_of(fd)?.map(|entry| entry.device))
    }

    /// The mount that an open file is on.
    pub fn entry_of(fd: &OwnedFd) -> io::Result<Option<Entry>> {
        let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
        let Some(id) = id else { return Ok(None) };
        let table = std::fs::read("/proc/thread-self/mountinfo")?;
        let line = table.split(|&b| b == b'\n').find(|line| {
            line.strip_prefix(id.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '))
        });
        Ok(line.and_then(parse_line))
    }

    /// The mount that is on top at exactly this path.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Entry> {
        self.entries.iter().rev().find(|entry| entry.path == path)
    }

    /// Every mount of the filesystem on a device.
    #[must_use]
    pub fn of_device(&self, device: (u32, u32), node: &Path) -> Vec<&Entry> {
        self.entries.iter().filter(|entry| entry.is_of(device, node)).collect()
    }

    /// Every path at which the node of a block device is mounted, such as a raw volume's target.
    pub fn of_node<'a>(&'a self, node: &'a Path) -> impl Iterator<Item = &'a Entry> {
        let rdev = std::fs::metadata(node).map(|meta| meta.rdev()).ok();
        self.entries.iter().filter(move |entry| {
            entry.root.file_name() == node.file_name()
                && rdev.is_some()
                && node_at(&entry.path) == rdev
        })
    }
}

/// Number of the block device that stands at a path.
fn node_at(path: &Path) -> Option<u64> {
    use std::os::unix::fs::FileTypeExt;
    let meta = std::fs::symlink_metadata(path).ok()?;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// `id parent major:minor root path options [optional…] - type source super-options`
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|&b| b == b' ').skip(2);
    let device = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let root = unescape(fields.next()?);
    let path = unescape(fields.next()?);
    let options = fields.next()?;
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let of_filesystem = fields.next()?;
    let has = |options: &[u8], wanted: &[u8]| {
        options.split(|&b| b == b',').any(|option| option == wanted)
    };
    // Newer kernels leave the plain mark alone and say why a filesystem refuses writes.
    let refuses = ["ro", "emergency_ro", "shutdown"].map(str::as_bytes);
    Some(Entry {
        device: (device.0.parse().ok()?, device.1.parse().ok()?),
        root,
        path,
        read_only: has(options, b"ro"),
        filesystem_read_only: refuses.iter().any(|word| has(of_filesystem, word)),
        fstype,
        source,
        options: String::from_utf8_lossy(of_filesystem).into_owned(),
    })
}

/// Space, tab, newline and backslash arrive as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[4..] } else { tail };
    }
    OsString::from_vec(out).into()
}

/// Whether `path` lies in `dir` or is it; both without symbolic links.
#[must_use]
pub fn is_within(path: &Path, dir: &Path) -> bool {
    !dir.as_os_str().as_bytes().is_empty() && path.starts_with(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 7:3 / /var/a\\040b rw - ext4 /dev/loop3 ro
31 27 7:3 /sub /var/c ro,noatime master:2 propagate_from:1 - ext4 /dev/loop3 rw
32 27 0:6 /loop4 /var/block rw - devtmpfs devtmpfs rw
33 27 0:44 / /var/b rw - btrfs /dev/loop5 rw
34 27 0:45 / /var/o rw - overlay /dev/loop5 rw
";
        let table = MountTable::parse(text.as_bytes()).unwrap();
        assert_eq!(table.entries.len(), 6);
        let staged = table.at(Path::new("/var/a b")).unwrap();
        assert_eq!((staged.device, staged.read_only), ((7, 3), false));
        assert!(staged.filesystem_read_only);
        let of = |n| table.of_device((7, n), Path::new(&format!("/dev/loop{n}")));
        let paths: Vec<_> = of(3).into_iter().map(|entry| &entry.path).collect();
        assert_eq!(paths, [Path::new("/var/a b"), Path::new("/var/c")]);
        let paths: Vec<_> = of(5).into_iter().map(|entry| &entry.path).collect();
        assert_eq!(paths, [Path::new("/var/b")]);
        let sub = table.at(Path::new("/var/c")).unwrap();
        assert_eq!((sub.root.as_path(), sub.read_only), (Path::new("/sub"), true));
        assert_eq!(table.at(Path::new("/var")), None);
    }

    #[test]
    fn escapes() {
        let cases =
            [("/a\\040b", "/a b"), ("/a\\134b", "/a\\b"), ("/a\\9", "/a\\9"), ("/a\\01", "/a\\01")];
        for (text, want) in cases {
            assert_eq!(unescape(text.as_bytes()), Path::new(want), "{text}");
        }
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(MountTable::parse(b"1 2 three / / rw - ext4 a rw\n").is_err());
        assert!(MountTable::parse(b"1 2\n").is_err());
    }

    #[test]
    fn the_real_table_has_a_root() {
        let table = MountTable::read().unwrap();
        assert!(table.at(Path::new("/proc")).is_some());
        let proc = OwnedFd::from(std::fs::File::open("/proc").unwrap());
        let entry = MountTable::entry_of(&proc).unwrap().expect("mounted");
        assert_eq!((entry.fstype.as_str(), entry.path.as_path()), ("proc", Path::new("/proc")));
    }
}
