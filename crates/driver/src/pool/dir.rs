//! A directory handle with the few file operations a pool needs.
//!
//! Every name is resolved below the open directory and never through a symbolic link, so that a
//! directory swapped under our feet or a planted link cannot lead anywhere else.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    flushes: Flushes,
}

impl Dir {
    /// Opens `path`, making it (0700) when it is missing, and closes it to everybody else.
    pub fn open_private(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::PermissionDenied,
                format!("it belongs to user {}", stat.st_uid),
            ));
        }
        if stat.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&fd, Mode::RWXU)?;
        }
        Ok(Self { fd, flushes: Flushes::default() })
    }

    /// Opens the regular file `name`.
    pub fn open_file(&self, name: &str, access: OFlags) -> std::io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?);
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other(format!("{name} is not a regular file")));
        }
        Ok(file)
    }

    /// Makes `name` afresh (0600), replacing a leftover of that name.
    pub fn create_file(&self, name: &str) -> std::io::Result<File> {
        let make = || self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
        match make() {
            // There hardly ever is one, and looking for it first takes as long as making the file.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                self.remove(name)?;
                make()
            }
            made => made,
        }
    }

    /// Makes a file (0600) that has no name yet and is gone with its last handle; `None` where that
    /// cannot be done. It is named by [`Dir::give_name`], which takes one change of the directory where
    /// another name and a rename take three.
    pub fn create_unnamed(&self) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, ".", flags, Mode::RUSR | Mode::WUSR).ok().map(File::from)
    }

    /// Names a file of [`Dir::create_unnamed`]; a name that is taken is an error. Durable after
    /// [`Dir::sync`].
    pub fn give_name(&self, file: &File, name: &str) -> std::io::Result<()> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (from, follow) = (rustix::fs::CWD, AtFlags::SYMLINK_FOLLOW);
        Ok(rustix::fs::linkat(from, path, &self.fd, name, follow)?)
    }

    /// The whole content of `name`, at most `most` bytes; `None` when there is no such file.
    pub fn read(&self, name: &str, most: u64) -> std::io::Result<Option<Vec<u8>>> {
        let file = match self.open_file(name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Puts `bytes` under `name` so that a crash leaves the old content or the new, never a mix.
    /// It is durable when this returns, as is every earlier change of the directory.
    pub fn replace(&self, temporary: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        self.write_new(temporary, bytes)?;
        self.rename(temporary, name, RenameFlags::empty())?;
        self.sync()
    }

    /// Writes `bytes` to a fresh file `name` and flushes it; its name is not yet durable.
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        self.write_unflushed(name, bytes)?.sync_all()
    }

    /// Writes `bytes` to a fresh file `name` and leaves it to the caller to flush it.
    pub fn write_unflushed(&self, name: &str, bytes: &[u8]) -> std::io::Result<File> {
        let mut file = self.create_file(name)?;
        file.write_all(bytes)?;
        Ok(file)
    }

    /// Renames within the directory; durable after [`Dir::sync`].
    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> std::io::Result<()> {
        Ok(rustix::fs::renameat_with(&self.fd, from, &self.fd, to, flags)?)
    }

    /// Removes a file; one that is not there is as good.
    pub fn remove(&self, name: &str) -> std::io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What is under `name`, without following it; `None` when there is nothing.
    pub fn stat(&self, name: &str) -> std::io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is a regular file `name`.
    pub fn has_file(&self, name: &str) -> std::io::Result<bool> {
        let is_file = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(self.stat(name)?.is_some_and(is_file))
    }

    /// All names in the directory that are valid UTF-8 (ours always are).
    pub fn names(&self) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Makes every earlier create, rename and remove durable. Those who ask at the same time share
    /// one flush.
    pub fn sync(&self) -> std::io::Result<()> {
        Ok(self.flushes.join(|| rustix::fs::fsync(&self.fd))?)
    }

    /// Size and free bytes of the filesystem, as an ordinary writer sees them.
    pub fn space(&self) -> std::io::Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.fd)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { total_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// A path to `name` that is valid in this process and short enough for the address of a
    /// socket, however long the path of the directory is.
    pub fn short_path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Identity of the directory itself.
    pub fn file_id(&self) -> std::io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(self.fd.as_fd())?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

/// Flushes of one directory, counted from 1. Whoever asks needs one that begins after that.
#[derive(Debug, Default)]
struct Flushes {
    state: Mutex<FlushState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct FlushState {
    begun: u64,
    ended: u64,
    /// The last one that failed. What it did not flush, a later one may not flush either.
    failed: Option<(u64, Errno)>,
}

impl Flushes {
    fn join(&self, flush: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let needed = state.begun + 1;
        while state.ended < state.begun {
            self.ended.wait(&mut state);
            match state.failed {
                Some((number, error)) if number >= needed => return Err(error),
                _ if state.ended >= needed => return Ok(()),
                _ => {}
            }
        }
        state.begun += 1;
        let number = state.begun;
        drop(state);
        let flushed = flush();
        let mut state = self.state.lock();
        state.ended = number;
        if let Err(error) = flushed {
            state.failed = Some((number, error));
        }
        self.ended.notify_all();
        flushed
    }
}

/// Room on the filesystem below a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_gets_its_name_when_it_is_whole() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = Dir::open_private(place.path()).expect("opened");
        let mut file = dir.create_unnamed().expect("this filesystem can do that");
        file.write_all(b"whole").expect("written");
        assert_eq!(dir.names().expect("listed"), Vec::<String>::new());
        dir.give_name(&file, "a").expect("named");
        assert_eq!(dir.read("a", 10).expect("read").as_deref(), Some(&b"whole"[..]));
        let taken = dir.give_name(&dir.create_unnamed().expect("another"), "a");
        assert_eq!(taken.expect_err("taken").kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(dir.read("a", 10).expect("read").as_deref(), Some(&b"whole"[..]));
        assert_eq!(dir.names().expect("listed"), ["a"]);
    }

    #[test]
    fn a_leftover_gives_way_to_a_new_file() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = Dir::open_private(home.path()).expect("open");
        dir.write_new("a", b"old and long").expect("written");
        dir.write_new("a", b"new").expect("written again");
        assert_eq!(dir.read("a", 100).expect("read").as_deref(), Some(&b"new"[..]));
        std::os::unix::fs::symlink("/nowhere", home.path().join("b")).expect("a link");
        dir.write_new("b", b"x").expect("a link is a leftover, too");
        assert!(dir.has_file("b").expect("looked"));
    }

    /// Each change is flushed by a flush that began after it, and many share one. A flush that fails
    /// fails for all who relied on it.
    #[test]
    fn flushes_are_shared_and_begin_after_the_change() {
        let (flushes, changes, flushed) =
            (Flushes::default(), AtomicU64::new(0), AtomicU64::new(0));
        let count = AtomicU64::new(0);
        let flush = || {
            let seen = changes.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            flushed.fetch_max(seen, Ordering::SeqCst);
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mine = changes.fetch_add(1, Ordering::SeqCst) + 1;
                        flushes.join(flush).expect("flushed");
                        assert!(flushed.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        let count = count.into_inner();
        assert!(count < 400, "{count} flushes for 800 changes");
        assert_eq!(flushes.join(|| Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(flushes.join(|| Ok(())), Ok(()));
    }
}
