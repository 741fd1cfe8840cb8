//! The controller's side: asking the node that has a volume to hold it still.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tonic::Code;

use super::{Answer, Lines, Order, Usage};
use crate::freeze::FreezeError;
use crate::id::VolumeId;
use crate::pool::Pool;
use crate::refusal::Refusal;

/// Writing back takes as long as the disk does; a node that is gone is noticed at once.
const PREPARE_WITHIN: Duration = Duration::from_secs(300);

/// Thawing takes no time; a node that does not answer is being killed.
const THAW_WITHIN: Duration = Duration::from_secs(60);

/// A volume that its node keeps to itself until this is dropped.
#[derive(Debug)]
pub(crate) struct Remote {
    node: String,
    id: VolumeId,
    lines: Lines,
    /// How the node has it.
    pub usage: Usage,
}

impl Remote {
    /// Asks the node to write a volume back and to leave it as it is.
    pub fn prepare(pool: &Pool, id: &VolumeId, node: &str) -> Result<Self, Refusal> {
        let stream = UnixStream::connect(pool.desk_path(node)).map_err(|error| {
            Refusal::Precondition(format!(
                "volume {id} is in use on node {node}, whose driver cannot be asked from here to \
                 hold it still ({error}); stop its pod, or start the node's driver if it is on \
                 this machine"
            ))
        })?;
        let (node, id) = (node.to_owned(), id.clone());
        let mut remote = Self { node, id, lines: Lines::new(stream), usage: Usage::Idle };
        let order = Order::Prepare(remote.id.clone());
        match remote.order(&order, PREPARE_WITHIN)? {
            Answer::Ready(usage) => remote.usage = usage,
            other => return Err(remote.odd(&other)),
        }
        Ok(remote)
    }

    /// Has it frozen, for at most until `until`.
    pub fn freeze(&mut self, until: Instant) -> Result<(), Refusal> {
        let left = until.saturating_duration_since(Instant::now());
        let within = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        // The node keeps to the time; this is for one that hangs.
        match self.order(&Order::Freeze(within), left + THAW_WITHIN)? {
            Answer::Frozen => Ok(()),
            other => Err(self.odd(&other)),
        }
    }

    /// Has it thawed, and says whether it was frozen all the time.
    pub fn thaw(mut self) -> Result<(), Refusal> {
        match self.order(&Order::Thaw, THAW_WITHIN)? {
            Answer::Thawed => Ok(()),
            other => Err(self.odd(&other)),
        }
    }

    fn order(&mut self, order: &Order, within: Duration) -> Result<Answer, Refusal> {
        let answer = self.lines.say(order).and_then(|()| self.lines.hear(within));
        match answer {
            Ok(Answer::Refused { code, text }) => {
                Err(Refusal::Node { node: self.node.clone(), code: Code::from(code), text })
            }
            Ok(answer) => Ok(answer),
            Err(source) => {
                let source = FreezeError::Io { what: "hear from its node", source };
                // Whatever happened there, it is over in a moment.
                let text = Refusal::Freeze { id: self.id.clone(), source }.to_string();
                Err(Refusal::Node { node: self.node.clone(), code: Code::Aborted, text })
            }
        }
    }

    fn odd(&self, answer: &Answer) -> Refusal {
        let text = format!("its driver answered {answer:?} when asked to hold {} still", self.id);
        Refusal::Node { node: self.node.clone(), code: Code::Internal, text }
    }
}
