//! The kernel's mount table.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number for this mount.
    pub id: u64,
    /// Device number of the filesystem. It may differ from that of its files (btrfs).
    pub device: (u32, u32),
    /// Which directory or file of that filesystem is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub path: PathBuf,
    /// The mount itself refuses writes.
    pub read_only: bool,
    /// The filesystem itself refuses writes, whoever asks.
    pub filesystem_read_only: bool,
    /// Type of the filesystem, such as `ext4`.
    pub fstype: String,
    /// What it was mounted from, as the one who mounted it wrote it.
    pub source: PathBuf,
    /// Options of the filesystem, with commas between them.
    pub options: String,
}

impl Mount {
    /// Whether this is a mount of the filesystem on a block device.
    #[must_use]
    pub fn is_of(&self, device: (u32, u32), node: &Path) -> bool {
        // Btrfs shows a number of its own, because it may span devices. A device that is mounted
        // keeps its name, so the source is as good.
        self.device == device || (self.fstype == "btrfs" && self.source == node)
    }
}

/// All mounts of this thread's mount namespace, in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct MountTable {
    /// The mounts.
    pub mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    /// The kernel does not show it, or a line cannot be parsed: half a table would hide mounts.
    pub fn read() -> io::Result<Self> {
        Self::read_from(Path::new("/proc/thread-self/mountinfo"))
    }

    /// Reads the table of another process.
    ///
    /// # Errors
    /// As [`Self::read`]; or the process is gone.
    pub fn read_from(file: &Path) -> io::Result<Self> {
        Self::parse(&std::fs::read(file)?)
    }

    /// Reads the table of the mount namespace that a process is in.
    ///
    /// # Errors
    /// As [`Self::read`]; also when the process is gone.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::parse(&std::fs::read(format!("/proc/{pid}/mountinfo"))?)
    }

    /// Understands the text of a `mountinfo` file.
    ///
    /// # Errors
    /// A line cannot be parsed.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let lines = bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        let bad = |line: &[u8]| {
            io::Error::other(format!("mountinfo line {:?}", String::from_utf8_lossy(line)))
        };
        let mounts = lines.map(|line| parse_line(line).ok_or_else(|| bad(line)));
        Ok(Self { mounts: mounts.collect::<io::Result<_>>()? })
    }

    /// The mount that an open file is on.
    ///
    /// # Errors
    /// The kernel does not describe the descriptor.
    pub fn of_file(&self, file: impl AsFd) -> io::Result<Option<&Mount>> {
        let number = file.as_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{number}"))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        Ok(self.mounts.iter().find(|mount| Some(mount.id) == id))
    }

    /// The uppermost mount at exactly this path.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.path == path)
    }

    /// Every mount at a path below `dir`, the oldest first.
    pub fn below<'a>(&'a self, dir: &'a Path) -> impl DoubleEndedIterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| mount.path.starts_with(dir) && mount.path != dir)
    }

    /// Every mount of the filesystem on a device.
    #[must_use]
    pub fn of_device(&self, device: (u32, u32), node: &Path) -> Vec<&Mount> {
        self.mounts.iter().filter(|mount| mount.is_of(device, node)).collect()
    }

    /// Every path at which the node of a block device is mounted, such as a raw volume's target.
    pub fn of_node<'a>(&'a self, node: &'a Path) -> impl Iterator<Item = &'a Mount> {
        let rdev = std::fs::metadata(node).map(|meta| meta.rdev()).ok();
        self.mounts.iter().filter(move |mount| {
            mount.root.file_name() == node.file_name()
                && rdev.is_some()
                && node_at(&mount.path) == rdev
        })
    }

    /// Every cgroup hierarchy, of the old kind and the unified one.
    pub fn cgroups(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| matches!(mount.fstype.as_str(), "cgroup" | "cgroup2"))
    }

    /// Other mounts of what is mounted at `path`: while there are any, it is in use.
    #[must_use]
    pub fn others_of(&self, path: &Path) -> Vec<&Path> {
        let Some(this) = self.at(path) else { return Vec::new() };
        let same = |mount: &&Mount| {
            mount.device == this.device && mount.root == this.root && mount.path != path
        };
        self.mounts.iter().filter(same).map(|mount| mount.path.as_path()).collect()
    }
}

/// Whether something is mounted at exactly this path.
///
/// # Errors
/// The mount table cannot be read.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(MountTable::read()?.at(path).is_some())
}

/// Every mount point below `dir`, the oldest first.
///
/// # Errors
/// The mount table cannot be read.
pub fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(MountTable::read()?.below(dir).map(|mount| mount.path.clone()).collect())
}

/// Number of the block device that stands at a path.
fn node_at(path: &Path) -> Option<u64> {
    use std::os::unix::fs::FileTypeExt;
    let meta = std::fs::symlink_metadata(path).ok()?;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// `id parent major:minor root path options [optional…] - type source super-options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
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
    Some(Mount {
        id,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_searched_by_path_device_and_reference() {
        let text = "\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 7:3 / /var/a\\040b rw - ext4 /dev/loop3 ro
31 27 7:3 /sub /var/c ro,noatime master:2 propagate_from:1 - ext4 /dev/loop3 rw
32 27 0:6 /loop4 /var/block rw - devtmpfs devtmpfs rw
33 27 0:44 / /var/b rw - btrfs /dev/loop5 rw
34 27 0:45 / /var/o rw - overlay /dev/loop5 rw
";
        let table = MountTable::parse(text.as_bytes()).unwrap();
        assert_eq!(table.mounts.len(), 6);
        let staged = table.at(Path::new("/var/a b")).unwrap();
        assert_eq!((staged.device, staged.read_only), ((7, 3), false));
        assert!(staged.filesystem_read_only);
        let of = |n| table.of_device((7, n), Path::new(&format!("/dev/loop{n}")));
        let paths: Vec<_> = of(3).into_iter().map(|mount| &mount.path).collect();
        assert_eq!(paths, [Path::new("/var/a b"), Path::new("/var/c")]);
        let paths: Vec<_> = of(5).into_iter().map(|mount| &mount.path).collect();
        assert_eq!(paths, [Path::new("/var/b")]);
        let sub = table.at(Path::new("/var/c")).unwrap();
        assert_eq!((sub.root.as_path(), sub.read_only), (Path::new("/sub"), true));
        assert_eq!((sub.id, table.at(Path::new("/var"))), (31, None));
        let below: Vec<_> = table.below(Path::new("/var/c")).collect();
        assert_eq!((below.len(), table.below(Path::new("/var")).count()), (0, 5));
        assert!(table.others_of(Path::new("/var/c")).is_empty(), "another part of the filesystem");
    }

    #[test]
    fn octal_escapes_are_decoded() {
        let cases =
            [("/a\\040b", "/a b"), ("/a\\134b", "/a\\b"), ("/a\\9", "/a\\9"), ("/a\\01", "/a\\01")];
        for (text, want) in cases {
            assert_eq!(unescape(text.as_bytes()), Path::new(want), "{text}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_parsed_is_an_error() {
        assert!(MountTable::parse(b"1 2 three / / rw - ext4 a rw\n").is_err());
        assert!(MountTable::parse(b"1 2\n").is_err());
    }

    #[test]
    fn the_mount_of_an_open_file_is_found() {
        let table = MountTable::read().unwrap();
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        let proc = std::fs::File::open("/proc").unwrap();
        let mount = table.of_file(&proc).unwrap().expect("mounted");
        assert_eq!((mount.fstype.as_str(), mount.path.as_path()), ("proc", Path::new("/proc")));
    }
}
