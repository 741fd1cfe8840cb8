//! Freezing a mounted filesystem for as long as its image is being copied, and never longer.
//!
//! A process that dies between freezing and thawing would leave every writer hanging. So a child
//! does both ([`holder`]): it thaws on request, when its parent is gone, and when its time
//! is up. Should the child be killed, its parent thaws; should both be killed at once, a note in
//! the pool records that the freeze was ours, and the next start thaws it. A freeze that another program
//! made is never touched.

pub mod holder;
mod ioctl;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use holder::{FREEZE, FROZEN, LOST, THAW, THAWED};

/// How much longer than allowed a holder waits for a parent that hangs.
const SLACK: Duration = Duration::from_secs(2);

/// How long a start waits for the holder of an earlier process: it may be waiting for the disk.
const HOLDER_WITHIN: Duration = Duration::from_secs(60);

/// The program that holds a freeze: it must call [`holder::main`] and do nothing before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderProgram {
    pub program: PathBuf,
    pub args: Vec<String>,
}

/// Why a filesystem is not, or was not, frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// Whoever runs this driver gave it no program for the job.
    #[error("this driver was started without a program that holds filesystems frozen")]
    NoHolder,
    /// An earlier freeze of the volume is still ending.
    #[error("an earlier freeze of the same filesystem is still ending")]
    Ending,
    #[error(
        "the filesystem is frozen by somebody else; thaw it (fsfreeze --unfreeze) and try again"
    )]
    Foreign,
    /// Writing back what was in memory took too long.
    #[error("the filesystem did not come to rest in time")]
    TooSlow,
    /// It was thawed under our hands, so whatever was copied meanwhile is worthless.
    #[error("the filesystem was thawed by somebody else while it was being copied")]
    Lost,
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

/// A frozen filesystem. Dropping it thaws, without a word on whether the freeze held.
#[derive(Debug)]
pub struct Frozen {
    control: Option<UnixStream>,
    holder: Option<Holder>,
}

/// The child, and what it takes to do its work should it be killed.
#[derive(Debug)]
struct Holder {
    child: Child,
    mount: OwnedFd,
    note: File,
}

impl Holder {
    /// Waits until the child is gone, and thaws what it left frozen.
    fn end(mut self) -> Result<(), FreezeError> {
        let _ = self.child.wait();
        thaw_noted(&self.note, &self.mount).map(drop)
    }
}

impl Frozen {
    /// Freezes the filesystem that `mount` is a directory of, for at most until `until`. `note`
    /// is locked by the holder for as long as it lives and tells of the freeze.
    pub fn freeze(
        program: Option<&HolderProgram>,
        mount: OwnedFd,
        note: File,
        until: Instant,
    ) -> Result<Self, FreezeError> {
        let program = program.ok_or(FreezeError::NoHolder)?;
        match rustix::fs::flock(&note, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(FreezeError::Ending),
            Err(error) => return Err(fail("lock the note of a freeze")(error.into())),
        }
        // Of a holder that was killed when no call waited for it any more.
        thaw_noted(&note, &mount)?;
        let (ours, theirs) = UnixStream::pair().map_err(fail("make a socket"))?;
        let child = Command::new(&program.program)
            .args(&program.args)
            .env_clear()
            .env(holder::ENV, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(mount.try_clone().map_err(fail("use the mount"))?)
            .stderr(note.try_clone().map_err(fail("use the note of a freeze"))?)
            // A key pressed in our terminal is not for the holder: it must outlive us.
            .process_group(0)
            .spawn()
            .map_err(fail("start the program that holds a freeze"))?;
        let mut frozen = Self { control: Some(ours), holder: Some(Holder { child, mount, note }) };
        match frozen.begin(until) {
            Ok(()) => Ok(frozen),
            // It goes on by itself, and no call has to wait for that.
            Err(FreezeError::TooSlow) => Err(FreezeError::TooSlow),
            Err(error) => {
                frozen.control = None;
                frozen.holder.take().map_or(Ok(()), Holder::end)?;
                Err(error)
            }
        }
    }

    fn begin(&mut self, until: Instant) -> Result<(), FreezeError> {
        let left = until.saturating_duration_since(Instant::now());
        let within = u32::try_from((left + SLACK).as_millis()).unwrap_or(u32::MAX);
        let mut order = [FREEZE, 0, 0, 0, 0];
        order[1..].copy_from_slice(&within.to_le_bytes());
        self.control().write_all(&order).map_err(fail("tell the holder to freeze"))?;
        match self.response(left.max(Duration::from_millis(1)))? {
            (FROZEN, _) => Ok(()),
            (_, libc::EBUSY) => Err(FreezeError::Foreign),
            (_, code) => Err(fail("freeze the filesystem")(io::Error::from_raw_os_error(code))),
        }
    }

    /// Thaws, and says whether the filesystem was frozen all the time.
    pub fn thaw(mut self) -> Result<(), FreezeError> {
        let sent = self.control().write_all(&[THAW]).map_err(|_| FreezeError::Lost);
        // Thawing needs no disk; a holder that does not respond is being killed.
        let response = sent.and_then(|()| self.response(Duration::from_secs(60)));
        self.control = None;
        self.holder.take().map_or(Ok(()), Holder::end)?;
        match response {
            Ok((THAWED, _)) => Ok(()),
            Ok((LOST, _)) | Err(_) => Err(FreezeError::Lost),
            Ok((_, code)) => Err(fail("thaw the filesystem")(io::Error::from_raw_os_error(code))),
        }
    }

    fn control(&self) -> &UnixStream {
        self.control.as_ref().expect("only `thaw` and `drop` take it, and they end this")
    }

    fn response(&self, within: Duration) -> Result<(u8, i32), FreezeError> {
        let mut control = self.control();
        control.set_read_timeout(Some(within)).map_err(fail("wait for the holder"))?;
        let mut response = [0; 5];
        match control.read_exact(&mut response) {
            Ok(()) => {
                let [kind, code @ ..] = response;
                Ok((kind, i32::from_le_bytes(code)))
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err(FreezeError::TooSlow)
            }
            Err(error) => Err(fail("hear from the holder of a freeze")(error)),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // The holder sees the end of the connection and thaws.
        self.control = None;
        if let Some(holder) = self.holder.take() {
            // A freeze that takes long ends only when it is through; no call has to wait for that.
            std::thread::spawn(move || holder.end());
        }
    }
}

/// Thaws what a freeze of ours left, judging by its note. Waits for a holder that is at it.
pub fn thaw_leftover(note: &File, mount: Option<OwnedFd>) -> Result<bool, FreezeError> {
    wait_for_holder(note)?;
    mount.map_or(Ok(false), |mount| thaw_noted(note, &mount))
}

/// Thaws if the note records that a holder froze it, which must be gone by now.
fn thaw_noted(note: &File, mount: &OwnedFd) -> Result<bool, FreezeError> {
    if !holder::says_frozen(note).map_err(fail("read the note of a freeze"))? {
        return Ok(false);
    }
    let thawed = match ioctl::thaw(mount) {
        Ok(()) => true,
        // The holder was killed before it froze anything.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => false,
        Err(error) => return Err(fail("thaw the filesystem")(error)),
    };
    holder::note_thawed(note).map_err(fail("write the note of a freeze"))?;
    Ok(thawed)
}

/// A holder whose parent is gone has nothing left to do but thaw.
fn wait_for_holder(note: &File) -> Result<(), FreezeError> {
    let since = Instant::now();
    loop {
        match rustix::fs::flock(note, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < HOLDER_WITHIN => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(FreezeError::Ending),
            Err(error) => return Err(fail("lock the note of a freeze")(error.into())),
        }
    }
}

fn fail(what: &'static str) -> impl FnOnce(io::Error) -> FreezeError {
    move |source| FreezeError::Io { what, source }
}
