//! Gives memory back that a burst has left behind.
//!
//! The allocator keeps what was freed between things that are still in use. A sidecar that made a
//! thousand volumes an hour ago has no need of it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// KiB it has to have grown by since memory was last given back.
const WORTH_IT: u64 = 1024;

/// Looks at the process from time to time, until `shutdown`.
pub fn keep_small(shutdown: CancellationToken) {
    tokio::spawn(shutdown.run_until_cancelled_owned(async {
        let mut after_last = 0;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if private().is_some_and(|now| now > after_last + WORTH_IT) {
                trim();
                after_last = private().unwrap_or(0);
            }
        }
    }));
}

/// KiB of this process that are not pages of a file.
fn private() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "glibc's allocator has no safe wrapper for this")]
fn trim() {
    // SAFETY: takes the allocator's own locks and changes nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but the last of many small pieces are freed: the heap's top stays in use, so nothing is
    /// given back by itself.
    #[test]
    fn what_was_freed_is_given_back() {
        let mut pieces: Vec<Option<Box<[u8; 1000]>>> =
            (0..100_000).map(|_| Some(Box::new([1; 1000]))).collect();
        let full = private().expect("the process is there");
        let last = pieces.len() - 1;
        pieces[..last].fill_with(|| None);
        trim();
        let after = private().expect("the process is there");
        assert!(after + 50_000 < full, "{full} KiB before, {after} after");
        drop(pieces);
    }
}
