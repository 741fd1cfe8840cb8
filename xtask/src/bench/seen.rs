//! When something was first seen of each of many objects, on a watch.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Debug,
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::http::{Closer, Server};

const PATIENCE: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(250);

/// A watch of all objects of a path, read by a thread of its own until this is dropped. `H` is what can
/// happen to one of them.
pub struct Seen<H> {
    news: Receiver<(Instant, String, H)>,
    _closer: Closer,
}

impl<H: Copy + PartialEq + Debug + Send + 'static> Seen<H> {
    /// Starts to watch; `what` reads an event.
    pub fn start(
        server: &Server,
        path: &str,
        what: impl Fn(&Value) -> Option<H> + Send + 'static,
    ) -> Result<Self> {
        let list = server.connect()?.call("GET", path, None)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("no version")?;
        let path = format!("{path}?watch=1&resourceVersion={version}");
        let mut watch = server.connect()?.watch(&path)?;
        let closer = watch.closer().context("a watch without an end")?;
        let (send, news) = channel();
        std::thread::spawn(move || {
            // Ends with the connection.
            while let Ok(line) = watch.next() {
                let Ok(event) = serde_json::from_slice::<Value>(&line) else { return };
                let Some(happened) = what(&event) else { continue };
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                if send.send((Instant::now(), name.to_owned(), happened)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { news, _closer: closer })
    }

    /// The moment at which it was first seen of each.
    pub fn each(&self, names: &[String], wanted: H) -> Result<BTreeMap<String, Instant>> {
        let mut left: HashSet<&str> = names.iter().map(String::as_str).collect();
        let (began, stop) = (Instant::now(), crate::interrupt::flag()?);
        let mut seen = BTreeMap::new();
        while !left.is_empty() {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            let waits = || format!("{} of {} were not seen {wanted:?}", left.len(), names.len());
            ensure!(began.elapsed() < PATIENCE, "that takes too long: {}", waits());
            match self.news.recv_timeout(LOOK) {
                Ok((at, name, happened)) => {
                    if happened == wanted && left.remove(name.as_str()) {
                        seen.insert(name, at);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the watch ended: {}", waits()),
            }
        }
        Ok(seen)
    }
}

/// The moment of the last.
pub fn last(seen: &BTreeMap<String, Instant>) -> Result<Instant> {
    seen.values().max().copied().context("at least one object")
}
