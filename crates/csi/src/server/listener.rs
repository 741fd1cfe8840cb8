//! Taking a socket path: safely, and giving it back at the end.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use inotify::{EventStream, Inotify, WatchMask};
use parking_lot::Mutex;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before a failed attempt to recreate the socket is repeated.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// Why a socket could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else already has the path.
    #[error("file exists in socketPath {} but it's not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Another process listens on the socket.
    #[error("another process serves {}", .0.display())]
    InUse(PathBuf),
    #[error("cannot {step} {}: {source}", .path.display())]
    System { step: &'static str, path: PathBuf, source: io::Error },
}

fn system<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> BindError {
    move |source| BindError::System { step, path: path.to_owned(), source: source.into() }
}

/// A bound unix socket. Dropping it closes the socket but leaves the file; [`super::serve`] removes it.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    mode: u32,
    identity: Mutex<(u64, u64)>,
    kept: bool,
}

impl Listener {
    /// Takes `path` for this process, readable and writable for its owner only.
    ///
    /// A missing parent directory is created. A socket without a listening process is removed first; one with a process and
    /// anything that is not a socket are left alone.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, BindError> {
        Self::bind_with_mode(path, 0o600)
    }

    /// The same as [`Listener::bind`] with another file mode.
    pub fn bind_with_mode(path: impl AsRef<Path>, mode: u32) -> Result<Self, BindError> {
        let path = path.as_ref();
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o750).create(parent).map_err(system("create", parent))?;
        }
        clear_stale(path)?;
        Self::take(path, mode)
    }

    /// Takes `path` even from a process that still serves it, as the successor of a server that is going down
    /// must. The directory has to exist; anything that is not a socket is left alone.
    pub fn replace(path: impl AsRef<Path>, mode: u32) -> Result<Self, BindError> {
        let path = path.as_ref();
        if socket_exists(path)? {
            remove(path)?;
        }
        Self::take(path, mode)
    }

    fn take(path: &Path, mode: u32) -> Result<Self, BindError> {
        let inner = open(path, mode)?;
        let identity = identity(path).map_err(system("inspect", path))?;
        let identity = Mutex::new(identity);
        Ok(Self { inner, path: path.to_owned(), mode, identity, kept: false })
    }

    /// Recreates the socket when its file is removed. Without this no caller could reach the driver until
    /// a restart.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.kept = true;
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepted connections, without end. A failed accept is logged and tried again.
    pub fn incoming(&self) -> impl Stream<Item = io::Result<UnixStream>> + '_ {
        let state = (None::<UnixListener>, self.kept.then(|| Box::pin(self.renewed())));
        futures::stream::unfold(state, move |(mut current, mut renewal)| async move {
            loop {
                let renewed = async {
                    match &current {
                        Some(current) => current.accept().await,
                        None => std::future::pending().await,
                    }
                };
                let accepted = tokio::select! {
                    // A process may have moved the first file, and callers may still reach it there.
                    accepted = self.inner.accept() => accepted,
                    accepted = renewed => accepted,
                    fresh = async {
                        match &mut renewal {
                            Some(renewal) => renewal.await,
                            None => std::future::pending().await,
                        }
                    } => {
                        current = Some(fresh);
                        renewal = Some(Box::pin(self.renewed()));
                        continue;
                    }
                };
                match accepted {
                    Ok((stream, _)) => return Some((Ok(stream), (current, renewal))),
                    Err(error) => {
                        tracing::warn!(path = %self.path.display(), %error, "accept failed");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        })
    }

    /// Waits until the socket's file is gone, and takes the path again.
    async fn renewed(&self) -> UnixListener {
        loop {
            self.vanished().await;
            let path = self.path.display();
            match self.take_again() {
                Ok(fresh) => {
                    tracing::warn!(%path, "the socket file was removed by another process; it was recreated");
                    return fresh;
                }
                Err(error) => {
                    tracing::warn!(%path, %error, "the socket file was removed and cannot be recreated; it is tried again")
                }
            }
            tokio::time::sleep(RENEWAL_PAUSE).await;
        }
    }

    fn take_again(&self) -> Result<UnixListener, BindError> {
        if let Some(parent) = self.path.parent() {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o750).create(parent).map_err(system("create", parent))?;
        }
        let fresh = open(&self.path, self.mode)?;
        *self.identity.lock() = identity(&self.path).map_err(system("inspect", &self.path))?;
        Ok(fresh)
    }

    /// Waits until nothing is at the path. Another socket in its place is a successor's.
    async fn vanished(&self) {
        loop {
            let Ok(mut changes) = self.watch_directory() else {
                // The machine has no watch left, or the directory went as well.
                if self.is_missing() {
                    return;
                }
                tokio::time::sleep(RENEWAL_PAUSE).await;
                continue;
            };
            loop {
                if self.is_missing() {
                    return;
                }
                if changes.next().await.is_none_or(|change| change.is_err()) {
                    break;
                }
            }
        }
    }

    fn is_missing(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.path);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn watch_directory(&self) -> io::Result<EventStream<[u8; 1024]>> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let events = Inotify::init()?.into_event_stream([0; 1024])?;
        let mask = WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        events.watches().add(parent.unwrap_or(Path::new(".")), mask | WatchMask::ONLYDIR)?;
        Ok(events)
    }

    /// Closes the socket and removes its file, unless another process has replaced the file.
    pub fn remove(self) {
        let ours = identity(&self.path).is_ok_and(|found| found == *self.identity.lock());
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// Which file is at a path.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Whether a socket is there. Anything else in its place is an error.
fn socket_exists(path: &Path) -> Result<bool, BindError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(system("inspect", path)(error)),
        Ok(found) if !found.file_type().is_socket() => Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => Ok(true),
    }
}

/// Removes a socket that no process serves any more.
fn clear_stale(path: &Path) -> Result<(), BindError> {
    if !socket_exists(path)? {
        return Ok(());
    }
    match knock(path) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // Any other result, even an error, means that a process may still listen.
        _ => return Err(BindError::InUse(path.to_owned())),
    }
    remove(path)
}

fn remove(path: &Path) -> Result<(), BindError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(system("remove stale socket", path)(error))
        }
        _ => Ok(()),
    }
}

/// Tries to connect without ever waiting: a busy process may let its queue fill up.
fn knock(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Binds with the final mode from the first moment on: Linux takes it from the unbound socket.
fn open(path: &Path, mode: u32) -> Result<UnixListener, BindError> {
    let address = SocketAddrUnix::new(path).map_err(system("use as socket path", path))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(system("open a socket for", path))?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode)).map_err(system("set mode of", path))?;
    rustix::net::bind(&socket, &address).map_err(system("bind", path))?;
    // The umask may have taken bits that were requested.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(system("set mode of", path))?;
    rustix::net::listen(&socket, 128).map_err(system("listen on", path))?;
    UnixListener::from_std(net::UnixListener::from(socket)).map_err(system("listen on", path))
}
