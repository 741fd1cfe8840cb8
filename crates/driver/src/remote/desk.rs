//! The node's side: a socket in each pool at which its volumes can be held still.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Answer, Lines, Order, Usage};
use crate::config::DriverKind;
use crate::driver::{Claim, Inner};
use crate::id::VolumeId;
use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::snapshot::cut::Use;

/// A controller says at once what it came for.
const ORDER_WITHIN: Duration = Duration::from_secs(10);

/// It may have other volumes written back before it freezes the first.
const FREEZE_WITHIN: Duration = Duration::from_secs(600);

/// How much longer than allowed a node waits for a controller that hangs.
const SLACK: Duration = Duration::from_secs(2);

/// How long a node waits when it cannot attend to a controller.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// An open desk. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct Desk(UnixListener);

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// Opens the desks of a node whose controller may be another process.
pub(crate) fn open(inner: &Arc<Inner>) {
    if inner.config.kind != DriverKind::Shared || !inner.config.mode.node() {
        return;
    }
    for (index, pool) in inner.pools.iter().enumerate() {
        match open_one(inner, pool, index) {
            Ok(desk) => inner.desks.lock().push(desk),
            // Volumes in use here cannot be copied from elsewhere, and that is all.
            Err(error) => {
                let pool = pool.name();
                tracing::warn!(pool, %error, "cannot listen for wishes to hold volumes still");
            }
        }
    }
}

fn open_one(inner: &Arc<Inner>, pool: &Pool, index: usize) -> io::Result<Desk> {
    let path = pool.desk_path(&inner.config.node_id);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let (accepting, weak) = (listener.try_clone()?, Arc::downgrade(inner));
    std::thread::Builder::new()
        .name("longshore-desk".to_owned())
        .spawn(move || accept(&accepting, &weak, index))?;
    Ok(Desk(listener))
}

fn accept(listener: &UnixListener, weak: &Weak<Inner>, index: usize) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some(inner) = weak.upgrade() else { return };
                std::thread::spawn(move || attend(&inner, index, Lines::new(stream)));
            }
            // The desk is closed.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
            // Short of descriptors, for instance: others wait until some are free again.
            Err(_) if weak.strong_count() > 0 => std::thread::sleep(RETRY_AFTER),
            Err(_) => return,
        }
    }
}

/// Serves one controller, for one volume.
fn attend(inner: &Inner, index: usize, mut lines: Lines) {
    let Ok(Order::Prepare(id)) = lines.hear(ORDER_WITHIN) else { return };
    let pool = &inner.pools[index];
    // Whether the controller hears of it does not matter: it sees the end of the connection.
    if let Err(refusal) = inner.hold_for(pool, &id, &mut lines) {
        tracing::warn!(volume = %id, error = %refusal, "a volume was not held still");
        let code = i32::from(refusal.code());
        let _ = lines.say(&Answer::Refused { code, text: refusal.to_string() });
    }
}

impl Inner {
    /// Keeps a volume as it is for as long as a controller wants.
    fn hold_for(&self, pool: &Pool, id: &VolumeId, lines: &mut Lines) -> Result<(), Refusal> {
        let _guard = self.claim(&Claim::alone(id))?;
        let usage = self.usage_here(pool, id)?;
        self.write_back(id, &usage)?;
        let word = match usage {
            Use::Mounted(_) => Usage::Mounted,
            Use::Raw(_) => Usage::Raw,
            Use::Idle | Use::Elsewhere(_) => Usage::Idle,
        };
        // From here on an error in talking is the controller's end, and not a refusal.
        if lines.say(&Answer::Ready(word)).is_err() {
            return Ok(());
        }
        let within = match lines.hear(FREEZE_WITHIN) {
            Ok(Order::Freeze(within)) => Duration::from_millis(within),
            // What need not be frozen is kept until the controller hangs up.
            _ => return Ok(()),
        };
        let Use::Mounted(mount) = usage else {
            return Err(Refusal::Precondition(format!("volume {id} is not mounted here")));
        };
        let frozen = self.freeze_one(pool, id, &mount, Instant::now() + within);
        let frozen = frozen.map_err(|error| self.advise(error))?;
        let told = lines.say(&Answer::Frozen);
        let asked = told.and_then(|()| lines.hear::<Order>(within + SLACK));
        self.thaw_one(pool, id, frozen)?;
        if matches!(asked, Ok(Order::Thaw)) {
            let _ = lines.say(&Answer::Thawed);
        }
        Ok(())
    }
}
