//! Hides the data directory, the pools and single files with secrets wherever a container's root
//! would show them.
//!
//! A directory can be seen by other paths than its own: through a bind mount of it or of a
//! directory above it. So it is judged by what it is, a path inside a filesystem, and covered at
//! every place where the root shows that part of that filesystem.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount, mount_bind};

use super::root::{SYSTEM_DIRS, SetupError, Step, is_separate_filesystem};

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    device: String,
    /// The directory of the filesystem that is mounted.
    root: PathBuf,
    point: PathBuf,
}

/// Covers the directories in the container's root, which is not mounted on yet.
pub(super) fn hide(dirs: &[PathBuf], root: &Path) -> Result<(), SetupError> {
    let table = fs::read_to_string("/proc/self/mountinfo").step("read the mount table")?;
    let table: Vec<Mount> = table.lines().filter_map(parse).collect();
    let mut shown = vec![shown_mount(&table, Path::new("/"))];
    shown.extend(
        SYSTEM_DIRS
            .iter()
            .map(Path::new)
            .filter(|dir| is_separate_filesystem(dir))
            .map(|dir| shown_mount(&table, dir)),
    );
    let shown: Vec<Mount> =
        shown.into_iter().collect::<io::Result<_>>().step("look at the root")?;
    for dir in dirs {
        let mut places = vec![dir.clone()];
        if let Ok(mount) = shown_mount(&table, dir) {
            places.extend(shown.iter().filter_map(|one| place_in(one, &mount)));
        }
        places.sort();
        places.dedup();
        for place in places {
            cover(&root.join(place.strip_prefix("/").unwrap_or(&place)))
                .step(format!("hide {}", place.display()))?;
        }
    }
    Ok(())
}

fn cover(inside: &Path) -> io::Result<()> {
    let Ok(kind) = fs::symlink_metadata(inside) else { return Ok(()) };
    if !kind.is_dir() {
        return Ok(mount_bind("/dev/null", inside)?);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    Ok(mount("hidden", inside, "tmpfs", flags, c"mode=0755,size=4k")?)
}

/// The mount that a directory is on, as if it were mounted there by itself.
fn shown_mount(table: &[Mount], dir: &Path) -> io::Result<Mount> {
    let opened = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
    let mount = table.iter().find(|mount| Some(mount.id) == id);
    let mount = mount.ok_or_else(|| io::Error::other(format!("{} has no mount", dir.display())))?;
    let resolved = dir.canonicalize()?;
    let below = resolved.strip_prefix(&mount.point).map_err(io::Error::other)?;
    let root = mount.root.join(below);
    Ok(Mount { id: mount.id, device: mount.device.clone(), root, point: resolved })
}

/// Where a directory is seen through what is shown of its filesystem.
fn place_in(shown: &Mount, dir: &Mount) -> Option<PathBuf> {
    if shown.device != dir.device {
        return None;
    }
    let below = dir.root.strip_prefix(&shown.root).ok()?;
    Some(shown.point.join(below))
}

fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let device = fields.nth(1)?.to_owned();
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    Some(Mount { id, device, root, point })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(device: &str, root: &str, point: &str) -> Mount {
        Mount { id: 1, device: device.into(), root: root.into(), point: point.into() }
    }

    #[test]
    fn a_directory_is_found_wherever_its_filesystem_shows_it() {
        let data = on("8:1", "/srv/real/data", "/data");
        for (shown, place) in [
            (on("8:1", "/", "/"), Some("/srv/real/data")),
            (on("8:1", "/srv", "/opt"), Some("/opt/real/data")),
            (on("8:1", "/srv/real/data", "/home"), Some("/home")),
            (on("8:1", "/var", "/var"), None),
            (on("8:2", "/", "/"), None),
        ] {
            assert_eq!(place_in(&shown, &data), place.map(PathBuf::from), "{shown:?}");
        }
    }

    #[test]
    fn lines_of_the_mount_table_are_read() {
        let line = r"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 - ext3 /dev/root rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount, Mount { id: 36, ..on("98:0", "/mnt1", "/mnt two") });
    }
}
