//! The quiesce server of a node: a socket in each pool through which its volumes are quiesced.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Lines, Request, Response, Usage};
use crate::config::DriverKind;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::locks::LockRequest;
use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::snapshot::cut::Use;

/// A controller sends its request at once.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// It may have other volumes written back before it freezes the first.
const FREEZE_WITHIN: Duration = Duration::from_secs(600);

/// How much longer than allowed a node waits for a controller that hangs.
const SLACK: Duration = Duration::from_secs(2);

/// How long a node waits when it cannot accept a connection.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// An open quiesce socket. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct QuiesceServer(UnixListener);

impl Drop for QuiesceServer {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// Opens the quiesce sockets of a node whose controller may be another process.
pub(crate) fn open(inner: &Arc<Inner>) {
    if inner.config.kind != DriverKind::Shared || !inner.config.mode.node() {
        return;
    }
    for (index, pool) in inner.pools.iter().enumerate() {
        match open_one(inner, pool, index) {
            Ok(server) => inner.quiesce_servers.lock().push(server),
            Err(error) => {
                let pool = pool.name();
                tracing::warn!(pool, %error, "cannot open the quiesce socket: volumes mounted here cannot be snapshotted from another process");
            }
        }
    }
}

fn open_one(inner: &Arc<Inner>, pool: &Pool, index: usize) -> io::Result<QuiesceServer> {
    let path = pool.quiesce_socket(&inner.config.node_id);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let (accepting, weak) = (listener.try_clone()?, Arc::downgrade(inner));
    std::thread::Builder::new()
        .name("quiesce".to_owned())
        .spawn(move || accept(&accepting, &weak, index))?;
    Ok(QuiesceServer(listener))
}

fn accept(listener: &UnixListener, weak: &Weak<Inner>, index: usize) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some(inner) = weak.upgrade() else { return };
                std::thread::spawn(move || serve_one(&inner, index, Lines::new(stream)));
            }
            // The socket is closed.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
            // Short of descriptors, for instance: others wait until some are free again.
            Err(_) if weak.strong_count() > 0 => std::thread::sleep(RETRY_AFTER),
            Err(_) => return,
        }
    }
}

/// Serves one controller, for one volume.
fn serve_one(inner: &Inner, index: usize, mut lines: Lines) {
    let pool = &inner.pools[index];
    let id = match lines.receive(REQUEST_WITHIN) {
        Ok(Request::Prepare(id)) => id,
        Ok(Request::Tune(id)) => {
            let tuned = inner.tune_for(pool, &id).map_or_else(refused, |()| Response::Tuned);
            // The controller sees the end of the connection.
            return lines.send(&tuned).unwrap_or_default();
        }
        _ => return,
    };
    // A response that is lost does not matter: the controller sees the end of the connection.
    if let Err(refusal) = inner.quiesce_for(pool, &id, &mut lines) {
        tracing::warn!(volume = %id, error = %refusal, "volume was not quiesced");
        let _ = lines.send(&refused(refusal));
    }
}

fn refused(refusal: Refusal) -> Response {
    Response::Refused { code: i32::from(refusal.code()), text: refusal.to_string() }
}

impl Inner {
    /// Puts into effect what a controller has recorded.
    fn tune_for(&self, pool: &Pool, id: &VolumeId) -> Result<(), Refusal> {
        let _guard = self.locks.acquire(&LockRequest::exclusive(id))?;
        self.tune_staged(pool, &self.need(id)?.1)
    }

    /// Keeps a volume quiesced for as long as a controller wants.
    fn quiesce_for(&self, pool: &Pool, id: &VolumeId, lines: &mut Lines) -> Result<(), Refusal> {
        let _guard = self.locks.acquire(&LockRequest::exclusive(id))?;
        let usage = self.usage_here(pool, id)?;
        self.write_back(id, &usage)?;
        let reported = match usage {
            Use::Mounted(_) => Usage::Mounted,
            Use::Raw(_) => Usage::Raw,
            Use::Idle | Use::Elsewhere(_) => Usage::Idle,
        };
        // From here on an I/O error means that the controller has ended, and is not a refusal.
        if lines.send(&Response::Ready(reported)).is_err() {
            return Ok(());
        }
        let within = match lines.receive(FREEZE_WITHIN) {
            Ok(Request::Freeze(within)) => Duration::from_millis(within),
            // What need not be frozen is kept until the controller hangs up.
            _ => return Ok(()),
        };
        let Use::Mounted(mount) = usage else {
            return Err(Refusal::Precondition(format!("volume {id} is not mounted here")));
        };
        let frozen = self.freeze_one(pool, id, &mount, Instant::now() + within);
        let frozen = frozen.map_err(|error| self.advise(error))?;
        let sent = lines.send(&Response::Frozen);
        let request = sent.and_then(|()| lines.receive::<Request>(within + SLACK));
        self.thaw_one(pool, id, frozen)?;
        if matches!(request, Ok(Request::Thaw)) {
            let _ = lines.send(&Response::Thawed);
        }
        Ok(())
    }
}
