//! Quiesces volumes for a controller in another process, and puts their parameters into effect.
//!
//! Only the node that has a volume mounted can freeze or tune it. A `shared` driver's controller may be
//! another process, so each of its nodes has a socket in the pool ([`server`]) through which the
//! controller of the same machine asks for it ([`client`]). The pool is closed to other users, and
//! so is the socket. A socket does not reach across machines: there, a volume must not be in use.
//!
//! One connection is one volume, which the node locks meanwhile. Its end is a request to
//! thaw, so that neither side leaves anything frozen when it dies. The controller waits until the node
//! has ended it, too: whoever is told the result may use the volume at once.

pub(crate) mod client;
pub(crate) mod server;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::id::VolumeId;

/// Bounds a line of either side.
const LINE_BYTES: u64 = 64 << 10;

/// A request of a controller, one per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Request {
    /// Put the volume's mutable parameters into effect.
    Tune(VolumeId),
    /// Write the volume back and lock it.
    Prepare(VolumeId),
    /// Freeze it, for at most that many milliseconds.
    Freeze(u64),
    Thaw,
}

/// The response of a node to each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Response {
    /// They are in effect.
    Tuned,
    /// It is written back and used so.
    Ready(Usage),
    Frozen,
    /// It is thawed, and was frozen until now.
    Thawed,
    Refused {
        /// As in a gRPC status.
        code: i32,
        text: String,
    },
}

impl std::fmt::Display for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tuned => f.write_str("tuned"),
            Self::Ready(_) => f.write_str("ready"),
            Self::Frozen => f.write_str("frozen"),
            Self::Thawed => f.write_str("thawed"),
            Self::Refused { text, .. } => write!(f, "a refusal: {text}"),
        }
    }
}

/// How a node uses a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Usage {
    Idle,
    Mounted,
    Raw,
}

/// A connection on which lines go back and forth.
#[derive(Debug)]
struct Lines(BufReader<UnixStream>);

impl Lines {
    fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    fn send(&self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.0.get_ref().write_all(&line)
    }

    /// Receives the next line. The end of the connection is an error, and so is silence.
    fn receive<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        self.0.get_ref().set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
        let mut line = String::new();
        (&mut self.0).take(LINE_BYTES).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Says that nothing more comes, and waits until the other side has ended the connection, too.
    fn hang_up(&mut self, within: Duration) -> io::Result<()> {
        self.0.get_ref().shutdown(Shutdown::Write)?;
        let until = Instant::now() + within;
        let mut rest = [0; 512];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.0.get_ref().set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            if self.0.read(&mut rest)? == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_received_and_anything_else_is_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        let (one, mut two) = (Lines::new(a), Lines::new(b));
        let second = Duration::from_secs(1);
        let request = Request::Prepare(VolumeId::for_name("", "a"));
        one.send(&request).unwrap();
        one.send(&Request::Thaw).unwrap();
        assert_eq!(two.receive::<Request>(second).unwrap(), request);
        assert_eq!(two.receive::<Request>(second).unwrap(), Request::Thaw);
        for bad in ["{}\n", "\n", "{\"prepare\":\"../x\"}\n", "\"freeze\"\n"] {
            one.0.get_ref().write_all(bad.as_bytes()).unwrap();
            assert!(two.receive::<Request>(second).is_err(), "{bad:?}");
        }
        assert!(two.receive::<Request>(Duration::ZERO).is_err(), "silence");
        one.0.get_ref().write_all(b"\"thaw\"").unwrap();
        drop(one);
        assert!(two.receive::<Request>(second).is_err(), "cut off");
    }
}
