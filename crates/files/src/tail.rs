//! The end of a file that a pod may write to.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

/// Reads at most `max` bytes from the end of a regular file.
///
/// The last part of the path may not be a link. The file is judged by its descriptor, and opened so
/// that a pipe in its place cannot block; one that grows meanwhile yields no more than `max` bytes.
///
/// # Errors
/// There is no such file, or it is not a regular one.
pub fn read_end(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty())?;
    let stat = fstat(&opened)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut file = File::from(opened);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    file.seek(SeekFrom::Start(size.saturating_sub(max)))?;
    let mut content = Vec::new();
    file.take(max).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_the_end_of_a_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        for (content, max, expected) in
            [("", 4, ""), ("abc", 4, "abc"), ("abcdef", 4, "cdef"), ("abc", 0, "")]
        {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read_end(&path, max).unwrap(), expected.as_bytes());
        }
        symlink(&path, dir.path().join("link")).unwrap();
        rustix::fs::mknodat(
            CWD,
            dir.path().join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for other in ["link", "pipe", "missing", "."] {
            read_end(&dir.path().join(other), 4).unwrap_err();
        }
        // Terabytes that are not there: nothing of it is held in memory but the end.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_end(&path, 4).unwrap(), [0; 4]);
    }
}
