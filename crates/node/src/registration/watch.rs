//! Watches a directory for sockets.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

/// A change of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// A socket was found or created.
    Socket(PathBuf),
    /// Something was removed.
    Gone(PathBuf),
}

/// Watches a directory and those below it. Names that begin with a dot are ignored.
pub(super) struct Watcher {
    events: EventStream<[u8; 4096]>,
    dirs: HashMap<WatchDescriptor, PathBuf>,
    pending: VecDeque<Seen>,
}

impl Watcher {
    pub(super) fn new(dir: &Path) -> io::Result<Self> {
        let events = Inotify::init()?.into_event_stream([0; 4096])?;
        let mut watcher = Self { events, dirs: HashMap::new(), pending: VecDeque::new() };
        watcher.add_dir(dir)?;
        Ok(watcher)
    }

    // The watch comes before the scan: what is made in between is seen twice, never missed.
    fn add_dir(&mut self, dir: &Path) -> io::Result<()> {
        let mask =
            WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM;
        let watch = self.events.watches().add(dir, mask | WatchMask::ONLYDIR)?;
        self.dirs.insert(watch, dir.to_owned());
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if !is_hidden(&entry.path()) {
                self.found(&entry.path())?;
            }
        }
        Ok(())
    }

    fn found(&mut self, path: &Path) -> io::Result<()> {
        let kind = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?.file_type(),
        };
        let seen = Seen::Socket(path.to_owned());
        if kind.is_dir() {
            // It may be gone again already.
            return match self.add_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        if kind.is_socket() && !self.pending.contains(&seen) {
            self.pending.push_back(seen);
        }
        Ok(())
    }

    pub(super) async fn next(&mut self) -> io::Result<Seen> {
        loop {
            if let Some(seen) = self.pending.pop_front() {
                return Ok(seen);
            }
            let event = match self.events.next().await {
                Some(event) => event?,
                None => return Err(io::Error::other("the watch ended")),
            };
            let (Some(dir), Some(name)) = (self.dirs.get(&event.wd), event.name.as_ref()) else {
                continue;
            };
            let path = dir.join(name);
            if is_hidden(&path) {
                continue;
            }
            if event.mask.intersects(EventMask::CREATE | EventMask::MOVED_TO) {
                self.found(&path)?;
            } else if event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
                self.pending.push_back(Seen::Gone(path));
            }
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[tokio::test]
    async fn sockets_are_seen_at_start_later_and_deeper() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // case: node/N49
        let _early = UnixListener::bind(at("early.sock")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let mut watcher = Watcher::new(dir.path()).unwrap();
        assert_eq!(watcher.next().await.unwrap(), Seen::Socket(at("early.sock")));
        let _hidden = UnixListener::bind(at(".hidden.sock")).unwrap();
        let _late = UnixListener::bind(at("late.sock")).unwrap();
        assert_eq!(watcher.next().await.unwrap(), Seen::Socket(at("late.sock")));
        std::fs::create_dir(at("sub")).unwrap();
        let _deep = UnixListener::bind(at("sub/deep.sock")).unwrap();
        assert_eq!(watcher.next().await.unwrap(), Seen::Socket(at("sub/deep.sock")));
        std::fs::remove_file(at("late.sock")).unwrap();
        let mut seen = watcher.next().await.unwrap();
        // The directory's own watch may have seen the deep socket a second time.
        if seen == Seen::Socket(at("sub/deep.sock")) {
            seen = watcher.next().await.unwrap();
        }
        assert_eq!(seen, Seen::Gone(at("late.sock")));
    }
}
