//! The client of the quiesce server, for a controller that copies a volume of another process.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tonic::Code;

use super::{Lines, Request, Response, Usage};
use crate::freeze::FreezeError;
use crate::id::VolumeId;
use crate::pool::Pool;
use crate::refusal::Refusal;

/// Writing back takes as long as the disk does; a node that is gone is noticed at once.
const PREPARE_WITHIN: Duration = Duration::from_secs(300);

/// Thawing takes no time; a node that does not respond is being killed.
const THAW_WITHIN: Duration = Duration::from_secs(60);

/// A node lets go of a volume within moments.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// Tools and the kernel take moments.
const TUNE_WITHIN: Duration = Duration::from_secs(60);

/// Has a node put the mutable parameters of a volume into effect. A node that cannot be asked from here
/// does so when it stages the volume next.
pub(crate) fn tune(pool: &Pool, id: &VolumeId, node: &str) -> Result<(), Refusal> {
    let stream = match UnixStream::connect(pool.quiesce_socket(node)) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(volume = %id, node, %error, "the node cannot be asked from here; the parameters take effect when it stages the volume next");
            return Ok(());
        }
    };
    let mut remote = RemoteVolume {
        node: node.to_owned(),
        id: id.clone(),
        lines: Lines::new(stream),
        usage: Usage::Idle,
    };
    match remote.send(&Request::Tune(id.clone()), TUNE_WITHIN)? {
        Response::Tuned => Ok(()),
        other => Err(remote.unexpected(&other)),
    }
}

/// A volume that its node keeps quiesced until this is dropped.
#[derive(Debug)]
pub(crate) struct RemoteVolume {
    node: String,
    id: VolumeId,
    lines: Lines,
    pub usage: Usage,
}

/// Returns when the node has unlocked the volume: a call that comes next would be refused till then.
impl Drop for RemoteVolume {
    fn drop(&mut self) {
        if let Err(error) = self.lines.hang_up(LET_GO_WITHIN) {
            tracing::debug!(volume = %self.id, node = self.node, %error, "the node did not let go");
        }
    }
}

impl RemoteVolume {
    /// Quiesces a volume: its node writes it back and locks it.
    pub(crate) fn prepare(pool: &Pool, id: &VolumeId, node: &str) -> Result<Self, Refusal> {
        let stream = UnixStream::connect(pool.quiesce_socket(node)).map_err(|error| {
            Refusal::Precondition(format!(
                "volume {id} is in use on node {node}, whose driver cannot be asked from here to \
                 hold it still ({error}); stop its pod, or start the node's driver if it is on \
                 this machine"
            ))
        })?;
        let (node, id) = (node.to_owned(), id.clone());
        let mut remote = Self { node, id, lines: Lines::new(stream), usage: Usage::Idle };
        let request = Request::Prepare(remote.id.clone());
        match remote.send(&request, PREPARE_WITHIN)? {
            Response::Ready(usage) => remote.usage = usage,
            other => return Err(remote.unexpected(&other)),
        }
        Ok(remote)
    }

    /// Freezes the filesystem, at most until `until`.
    pub(crate) fn freeze(&mut self, until: Instant) -> Result<(), Refusal> {
        let left = until.saturating_duration_since(Instant::now());
        let within = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        // The node keeps to the time; this is for one that hangs.
        match self.send(&Request::Freeze(within), left + THAW_WITHIN)? {
            Response::Frozen => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Thaws the filesystem; fails if it was not frozen all the time.
    pub(crate) fn thaw(mut self) -> Result<(), Refusal> {
        match self.send(&Request::Thaw, THAW_WITHIN)? {
            Response::Thawed => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn send(&mut self, request: &Request, within: Duration) -> Result<Response, Refusal> {
        let response = self.lines.send(request).and_then(|()| self.lines.receive(within));
        match response {
            Ok(Response::Refused { code, text }) => {
                Err(Refusal::Node { node: self.node.clone(), code: Code::from(code), text })
            }
            Ok(response) => Ok(response),
            Err(source) => {
                let source = FreezeError::Io { what: "hear from its node", source };
                // The node gives up within moments, so a retry may succeed.
                let text = Refusal::Freeze { id: self.id.clone(), source }.to_string();
                Err(Refusal::Node { node: self.node.clone(), code: Code::Aborted, text })
            }
        }
    }

    fn unexpected(&self, response: &Response) -> Refusal {
        let text =
            format!("its driver answered with {response} when asked to hold {} still", self.id);
        Refusal::Node { node: self.node.clone(), code: Code::Internal, text }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_volume_is_free_when_it_is_given_up() {
        let (here, there) = UnixStream::pair().unwrap();
        let free = Arc::new(AtomicBool::new(false));
        let node = std::thread::spawn({
            let free = free.clone();
            move || {
                let mut lines = Lines::new(there);
                assert!(lines.receive::<Request>(Duration::from_secs(60)).is_err(), "hung up");
                std::thread::sleep(Duration::from_millis(50));
                free.store(true, Ordering::SeqCst);
            }
        });
        let id = VolumeId::for_name("", "a");
        drop(RemoteVolume { node: "n".into(), id, lines: Lines::new(here), usage: Usage::Raw });
        assert!(free.load(Ordering::SeqCst), "the node holds the volume still");
        node.join().unwrap();
    }
}
