//! The kernel's mount table.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`, as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The kernel's number for this mount.
    pub id: u64,
    /// `major:minor` of the filesystem.
    pub device: String,
    /// Which directory of the filesystem.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
}

/// Reads the mount table.
pub(crate) fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8(fields.nth(1)?.to_vec()).ok()?;
    Some(Mount { id, device, root: unescape(fields.next()?), point: unescape(fields.next()?) })
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = digits {
            let value =
                digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            out.push(u8::try_from(value).unwrap_or(b'?'));
            rest = &tail[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Whether something is mounted exactly at `path`.
pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(read()?.iter().any(|mount| mount.point == path))
}

/// Everything mounted below `dir`.
pub(crate) fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let below = |mount: &Mount| mount.point.starts_with(dir) && mount.point != dir;
    Ok(read()?.into_iter().filter(below).map(|mount| mount.point).collect())
}

/// Other mounts of what is mounted at `path`: while there are any, it is in use.
pub(crate) fn other_mounts_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    let table = read()?;
    let Some(this) = table.iter().rev().find(|mount| mount.point == path) else {
        return Ok(Vec::new());
    };
    let same = |mount: &&Mount| {
        mount.device == this.device && mount.root == this.root && mount.point != path
    };
    Ok(table.iter().filter(same).map(|mount| mount.point.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_blanks_restored() {
        let table = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            44 43 7:1 /sub /var/lib/a\\040b rw shared:1 - ext4 /dev/loop1 rw\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts[1],
            Mount {
                id: 44,
                device: "7:1".into(),
                root: "/sub".into(),
                point: "/var/lib/a b".into()
            }
        );
    }
}
