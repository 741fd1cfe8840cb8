//! Copying an image: by sharing its blocks where the pool's filesystem can, else by copying the
//! parts that hold data.

use std::fs::File;
use std::io;
use std::time::Instant;

use longshore_core::words;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes that are copied between two checks of the deadline.
const CHUNK_BYTES: usize = 4 << 20;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The copy would have taken longer than it may.
    #[error("copying took longer than allowed: {} were done in time", words::room(*.copied_bytes))]
    TooSlow { copied_bytes: u64 },
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

/// How a copy was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Both files have the same blocks until one of them is written to.
    Shared,
    /// The copy has blocks of its own.
    Separate,
}

/// How a copy may be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Blocks may be shared.
    pub share: bool,
    /// Give up then; sharing blocks is never given up.
    pub until: Option<Instant>,
}

/// Fills the empty file `to` with the content of `from`; holes stay holes. Nothing is flushed.
pub(crate) fn copy(from: &File, to: &File, terms: Terms) -> Result<Method, CopyError> {
    if terms.share && share(from, to)? {
        return Ok(Method::Shared);
    }
    let length = from.metadata().map_err(fail("measure the image"))?.len();
    to.set_len(length).map_err(fail("size the copy"))?;
    copy_data(from, to, terms.until)?;
    Ok(Method::Separate)
}

/// Whether files in the directory of these two can share blocks.
pub(crate) fn can_share(from: &File, to: &File) -> Result<bool, CopyError> {
    share(from, to)
}

/// False when the filesystem cannot.
fn share(from: &File, to: &File) -> Result<bool, CopyError> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        // Each filesystem has its own way of saying no.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
            Ok(false)
        }
        Err(error) => Err(fail("share the image's blocks")(error.into())),
    }
}

/// Where a file holds data, part by part: each from its first byte to the one behind its last.
pub(crate) fn data_of(file: &File) -> impl Iterator<Item = Result<(u64, u64), CopyError>> + '_ {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let at = next.take()?;
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return None,
            Err(error) => return Some(Err(fail("find data in the image")(error.into()))),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start));
        next = end.ok();
        let end = end.map_err(|error| fail("find a hole in the image")(error.into()));
        Some(end.map(|end| (start, end)))
    })
}

fn copy_data(from: &File, to: &File, until: Option<Instant>) -> Result<(), CopyError> {
    let mut copied_bytes = 0;
    for range in data_of(from) {
        let (mut at, end) = range?;
        while at < end {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(CopyError::TooSlow { copied_bytes });
            }
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let done = copy_chunk(from, to, at, most).map_err(fail("copy the image"))?;
            if done == 0 {
                return Ok(());
            }
            at += done;
            copied_bytes += done;
        }
    }
    Ok(())
}

fn copy_chunk(from: &File, to: &File, at: u64, most: usize) -> io::Result<u64> {
    let (mut read_at, mut write_at) = (at, at);
    match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), most) {
        Ok(done) => Ok(done as u64),
        // Not between these two filesystems: through our own memory then.
        Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            use std::os::unix::fs::FileExt;
            let mut buffer = vec![0; most.min(256 << 10)];
            let got = from.read_at(&mut buffer, at)?;
            to.write_all_at(&buffer[..got], at)?;
            Ok(got as u64)
        }
        Err(error) => Err(error.into()),
    }
}

fn fail(what: &'static str) -> impl FnOnce(io::Error) -> CopyError {
    move |source| CopyError::Io { what, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::time::Duration;

    use super::*;

    const SEPARATE: Terms = Terms { share: false, until: None };

    #[test]
    fn data_arrives_and_holes_stay_holes() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"first", 0).unwrap();
        from.write_all_at(&vec![7; 9 << 20], 20 << 20).unwrap();
        from.write_all_at(b"last", (64 << 20) - 4).unwrap();
        assert_eq!(copy(&from, &to, SEPARATE).unwrap(), Method::Separate);
        assert_eq!(to.metadata().unwrap().len(), 64 << 20);
        assert!(to.metadata().unwrap().blocks() * 512 < 12 << 20, "holes were filled");
        let (mut a, mut b) = (vec![0; 64 << 20], vec![1; 64 << 20]);
        from.read_exact_at(&mut a, 0).unwrap();
        to.read_exact_at(&mut b, 0).unwrap();
        assert!(a == b, "the copy differs");
    }

    #[test]
    fn a_copy_ends_with_its_time() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(&vec![7; 1 << 20], 0).unwrap();
        let until = Some(Instant::now() - Duration::from_millis(1));
        let error = copy(&from, &to, Terms { share: false, until }).unwrap_err();
        assert!(matches!(error, CopyError::TooSlow { copied_bytes: 0 }), "{error}");
    }

    #[test]
    fn an_empty_image_is_copied_too() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        copy(&from, &to, SEPARATE).unwrap();
        from.set_len(5000).unwrap();
        copy(&from, &to, SEPARATE).unwrap();
        assert_eq!((to.metadata().unwrap().len(), to.metadata().unwrap().blocks()), (5000, 0));
    }
}
