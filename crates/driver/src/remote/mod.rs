//! Holding a volume still for a controller that is another process.
//!
//! Only the node that has a volume mounted can freeze it. A `shared` driver's controller may be
//! another process, so each of its nodes has a desk: a socket in the pool ([`desk`]) at which the
//! controller of the same machine asks for it ([`ask`]). The pool is closed to other users, and so
//! is the desk. A socket does not reach across machines: there, a volume has to be at rest.
//!
//! One connection is one volume, which the node keeps to itself meanwhile. Its end is an order to
//! thaw, so that neither side leaves anything frozen when it dies.

pub(crate) mod ask;
pub(crate) mod desk;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::id::VolumeId;

/// A line is never longer.
const LINE_BYTES: u64 = 64 << 10;

/// What a controller says, each order on a line of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Order {
    /// Write the volume back, and keep it to yourself.
    Prepare(VolumeId),
    /// Freeze it, for at most that many milliseconds.
    Freeze(u64),
    /// Thaw it.
    Thaw,
}

/// What a node answers to each order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    /// It is written back and used so.
    Ready(Usage),
    /// It is frozen.
    Frozen,
    /// It is thawed, and was frozen until now.
    Thawed,
    /// The order was not carried out.
    Refused {
        /// As in a gRPC status.
        code: i32,
        /// For people.
        text: String,
    },
}

/// How a node has a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Usage {
    /// Not at all.
    Idle,
    /// Mounted.
    Mounted,
    /// As a raw device.
    Raw,
}

/// A connection on which lines go back and forth.
#[derive(Debug)]
struct Lines(BufReader<UnixStream>);

impl Lines {
    fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    fn say(&self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.0.get_ref().write_all(&line)
    }

    /// The next line. The end of the connection is an error, and so is silence.
    fn hear<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        self.0.get_ref().set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
        let mut line = String::new();
        (&mut self.0).take(LINE_BYTES).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_and_what_is_no_line_is_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        let (one, mut two) = (Lines::new(a), Lines::new(b));
        let second = Duration::from_secs(1);
        let order = Order::Prepare(VolumeId::for_name("", "a"));
        one.say(&order).unwrap();
        one.say(&Order::Thaw).unwrap();
        assert_eq!(two.hear::<Order>(second).unwrap(), order);
        assert_eq!(two.hear::<Order>(second).unwrap(), Order::Thaw);
        for bad in ["{}\n", "\n", "{\"prepare\":\"../x\"}\n", "\"freeze\"\n"] {
            one.0.get_ref().write_all(bad.as_bytes()).unwrap();
            assert!(two.hear::<Order>(second).is_err(), "{bad:?}");
        }
        assert!(two.hear::<Order>(Duration::ZERO).is_err(), "silence");
        one.0.get_ref().write_all(b"\"thaw\"").unwrap();
        drop(one);
        assert!(two.hear::<Order>(second).is_err(), "cut off");
    }
}
