//! The allocator, and giving memory back that a burst has left behind.
//!
//! Objects are trees of small pieces that are made by one thread and dropped by another. jemalloc takes
//! about half the time for that which glibc takes, and needs no more room.
//!
//! The allocator keeps what was freed between things that are still in use. A sidecar that made a
//! thousand volumes an hour ago has no need of it.

use std::{ffi::CStr, ptr, time::Duration};

use tikv_jemallocator::Jemalloc;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Read by the allocator when it starts: few arenas, since each keeps something for later.
#[expect(unsafe_code, reason = "the allocator finds its settings by this symbol")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub(crate) static SETTINGS: Option<&'static u8> = Some(&c"narenas:2".to_bytes()[0]);
/// 4096 stands for all arenas.
const PURGE_ALL: &CStr = c"arena.4096.purge";

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// KiB it has to have grown by since memory was last given back.
const WORTH_IT: u64 = 1024;

/// Looks at the process from time to time, until `shutdown`.
pub(crate) fn keep_small(shutdown: CancellationToken) {
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

#[expect(unsafe_code, reason = "the allocator's controls are C functions")]
fn trim() {
    // SAFETY: the name ends with a zero byte, nothing is read or written through the other pointers,
    // and purging changes nothing that is in use.
    let refused = unsafe {
        tikv_jemalloc_sys::mallctl(
            PURGE_ALL.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        )
    };
    if refused != 0 {
        tracing::debug!(code = refused, "the allocator gave no memory back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "the allocator's controls are C functions")]
    fn the_allocator_has_read_its_settings() {
        let (mut arenas, mut size) = (0_u32, size_of::<u32>());
        // SAFETY: the name ends with a zero byte, and the answer is an unsigned int.
        let refused = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"opt.narenas".as_ptr(),
                (&raw mut arenas).cast(),
                &raw mut size,
                ptr::null_mut(),
                0,
            )
        };
        assert_eq!((refused, arenas), (0, 2));
    }

    /// `.cargo/config.toml` says so: a program whose allocator was built for smaller pages than the kernel has does not
    /// start.
    #[test]
    #[expect(unsafe_code, reason = "the allocator's controls are C functions")]
    fn the_allocator_is_built_for_the_largest_pages_of_the_processor() {
        let (mut page, mut size) = (0_usize, size_of::<usize>());
        // SAFETY: the name ends with a zero byte, and the answer is a size.
        let refused = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"arenas.page".as_ptr(),
                (&raw mut page).cast(),
                &raw mut size,
                ptr::null_mut(),
                0,
            )
        };
        let large = ["aarch64", "powerpc64", "loongarch64"].contains(&std::env::consts::ARCH);
        assert_eq!((refused, page), (0, if large { 65_536 } else { 4096 }));
    }

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
