//! Taking a socket path: safely, and giving it back at the end.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::Stream;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// Why a socket could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else already has the path.
    #[error("file exists in socketPath {} but it's not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Another process answers on the socket.
    #[error("another process serves {}", .0.display())]
    InUse(PathBuf),
    /// The operating system refused.
    #[error("cannot {step} {}: {source}", .path.display())]
    System {
        /// What was tried.
        step: &'static str,
        /// On which path.
        path: PathBuf,
        /// The refusal.
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> BindError {
    move |source| BindError::System { step, path: path.to_owned(), source: source.into() }
}

/// A bound unix socket. Dropping it closes the socket but leaves the file; [`super::serve`] removes it.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
}

impl Listener {
    /// Takes `path` for this process, readable and writable for its owner only.
    ///
    /// A missing parent directory is created. A socket nobody answers on is removed first; one that answers and
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
        let found = std::fs::symlink_metadata(path).map_err(system("inspect", path))?;
        Ok(Self { inner, path: path.to_owned(), identity: (found.dev(), found.ino()) })
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepted connections, without end. A failed accept is logged and tried again.
    pub fn incoming(&self) -> impl Stream<Item = io::Result<UnixStream>> + '_ {
        futures::stream::unfold(self, |listener| async move {
            loop {
                match listener.inner.accept().await {
                    Ok((stream, _)) => return Some((Ok(stream), listener)),
                    Err(error) => {
                        tracing::warn!(path = %listener.path.display(), %error, "accept failed");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        })
    }

    /// Closes the socket and removes its file, unless the file has been replaced by somebody else's.
    pub fn remove(self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
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
        // Any other answer, even an error, means that there may be a living process behind it.
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
    // The umask may have taken bits that were asked for.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(system("set mode of", path))?;
    rustix::net::listen(&socket, 128).map_err(system("listen on", path))?;
    UnixListener::from_std(net::UnixListener::from(socket)).map_err(system("listen on", path))
}
