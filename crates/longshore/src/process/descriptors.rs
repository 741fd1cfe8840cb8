//! File descriptors: as many as the machine gives, and a sentence when that is too few.

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A start that cannot open its files stands still half-way; this many are enough for an instance
/// without pods.
const NEEDED: u64 = 128;
/// What a limit that is too low is raised to. Others are left alone: pods inherit them.
const USUAL: u64 = 1024;

/// Raises a limit of open files that is too low, as far as the machine allows.
///
/// # Errors
/// That is too few to work with.
pub(super) fn raise() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(USUAL);
    if most < NEEDED {
        bail!(
            "at most {most} files may be open at a time, and at least {NEEDED} are needed: raise the \
             limit (ulimit -n, or LimitNOFILE= of the service)"
        );
    }
    if limit.current.is_some_and(|current| current < NEEDED) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most.min(USUAL)), ..limit })?;
    }
    Ok(())
}
