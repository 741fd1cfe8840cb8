//! File descriptors: as many as the machine gives, and a sentence when that is too few.

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A start that cannot open its files stands still half-way; this many are enough for an instance
/// without pods.
const NEEDED: u64 = 128;
/// No program of ours needs more, and each would be copied by nobody.
const ENOUGH: u64 = 1 << 20;

/// Raises the limit of open files to what the machine allows.
///
/// # Errors
/// That is too few to work with.
pub fn raise() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if most < NEEDED {
        bail!(
            "at most {most} files may be open at a time, and at least {NEEDED} are needed: raise the \
             limit (ulimit -n, or LimitNOFILE= of the service)"
        );
    }
    if limit.current.is_some_and(|current| current < most) {
        // Where it cannot be raised, what is there is enough or is missed later, by name.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
    Ok(())
}
