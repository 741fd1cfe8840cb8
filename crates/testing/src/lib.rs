//! What the tests of all crates share: needs of the machine that are said visibly, and polling.
//!
//! A test that needs root or a tool calls [`need`] first. On a machine without it the test prints a
//! visible line and returns early; with `LONGSHORE_TEST_STRICT=1` (as in CI) a missing need is a
//! failure, so nothing is skipped by accident.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Something a test cannot run without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Effective user id 0.
    Root,
    /// `/dev/loop-control` can be opened.
    LoopDevices,
    /// A program on `PATH` (or in the sbin directories).
    Tool(&'static str),
}

/// Returns true when everything needed is there; otherwise says what is missing.
///
/// # Panics
/// With `LONGSHORE_TEST_STRICT=1`, when something is missing.
#[must_use]
pub fn need(test: &str, needs: &[Need]) -> bool {
    let missing: Vec<String> = needs.iter().filter_map(missing).collect();
    if missing.is_empty() {
        return true;
    }
    let text = format!("SKIPPED {test}: needs {}", missing.join(", "));
    assert!(!strict(), "{text} (LONGSHORE_TEST_STRICT=1 makes a skip a failure)");
    eprintln!("{text}");
    false
}

/// Prints a line that the test harness does not capture: the numbers of a passing ring are evidence.
pub fn report(text: &str) {
    use std::io::Write as _;
    // Printing a number is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn strict() -> bool {
    std::env::var("LONGSHORE_TEST_STRICT").is_ok_and(|value| value == "1")
}

fn missing(need: &Need) -> Option<String> {
    match need {
        Need::Root => (!is_root()).then(|| "root".to_owned()),
        Need::LoopDevices => {
            let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control");
            open.is_err().then(|| "loop devices".to_owned())
        }
        Need::Tool(name) => find_tool(name).is_none().then(|| format!("the program {name}")),
    }
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

/// Looks a program up on `PATH`, then where Debian keeps system tools.
#[must_use]
pub fn find_tool(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).to_path_buf());
    std::env::split_paths(&path).chain(fixed).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A writer that can be read while somebody else writes.
#[derive(Debug, Clone, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// What was written so far.
    ///
    /// # Panics
    /// When it is not UTF-8.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(bytes).expect("text")
    }
}

impl std::io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Shell text for a new mount namespace: it lets go of the mounts of all loop devices but those below `keep`. A
/// namespace begins with a copy of every mount there is, and would hold the volumes of other tests while it lives.
#[must_use]
pub fn without_volumes_of_others(keep: &Path) -> String {
    let keep = keep.display();
    format!(
        "awk -v keep={keep}/ '$1 ~ \"^/dev/loop\" && $2 != \"/\" && index($2, keep) != 1 && index(keep, $2 \"/\") != 1 \
         {{print $2}}' /proc/self/mounts | tac | xargs -r -n1 umount -l; "
    )
}

/// Polls, for at most `limit`, until `done` holds; false if it never did.
#[must_use]
pub fn holds_within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if done() {
            return true;
        }
        if began.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Polls, for a minute of tokio's time, until `look` finds something.
///
/// # Panics
/// When it never does.
pub async fn found<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    for _ in 0..6000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}

/// Polls, for a minute of tokio's time, until `done` holds.
///
/// # Panics
/// When it never does.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    found(what, || std::future::ready(done().then_some(()))).await;
}
