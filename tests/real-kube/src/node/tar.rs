//! Writing a tar file: only what an image needs.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;

/// What an entry is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry<'a> {
    Directory,
    Link(&'a str),
    File(u64),
}

/// A tar file in the making, in the plain POSIX form.
pub(super) struct Tar<W: Write> {
    out: W,
}

impl<W: Write> Tar<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }

    pub(super) fn directory(&mut self, name: &str, mode: u32) -> io::Result<()> {
        self.out.write_all(&header(name, mode, Entry::Directory)?)
    }

    pub(super) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.out.write_all(&header(name, 0o777, Entry::Link(target))?)
    }

    pub(super) fn file(&mut self, name: &str, mode: u32, text: &[u8]) -> io::Result<()> {
        self.stream(name, mode, text.len() as u64, text)
    }

    /// Adds a file of exactly `size` bytes.
    pub(super) fn stream(
        &mut self,
        name: &str,
        mode: u32,
        size: u64,
        from: impl Read,
    ) -> io::Result<()> {
        self.out.write_all(&header(name, mode, Entry::File(size))?)?;
        let copied = io::copy(&mut from.take(size), &mut self.out)?;
        if copied != size {
            return Err(io::Error::other(format!("{name} has {copied} bytes instead of {size}")));
        }
        let rest = usize::try_from(size % BLOCK as u64).unwrap_or_default();
        self.out.write_all(&[0; BLOCK][..(BLOCK - rest) % BLOCK])
    }

    /// Ends the file and gives the writer back.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn header(name: &str, mode: u32, entry: Entry<'_>) -> io::Result<[u8; BLOCK]> {
    let (kind, link, size) = match entry {
        Entry::Directory => (b'5', "", 0),
        Entry::Link(target) => (b'2', target, 0),
        Entry::File(size) => (b'0', "", size),
    };
    let mut block = [0; BLOCK];
    put(&mut block[0..100], name)?;
    put(&mut block[100..108], &format!("{mode:07o}"))?;
    put(&mut block[108..116], "0000000")?;
    put(&mut block[116..124], "0000000")?;
    put(&mut block[124..136], &format!("{size:011o}"))?;
    put(&mut block[136..148], "00000000000")?;
    block[156] = kind;
    put(&mut block[157..257], link)?;
    block[257..265].copy_from_slice(b"ustar\x0000");
    // The sum is taken with its own field full of blanks.
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    put(&mut block[148..155], &format!("{sum:06o}"))?;
    Ok(block)
}

fn put(field: &mut [u8], text: &str) -> io::Result<()> {
    if text.len() > field.len() {
        return Err(io::Error::other(format!("{text} does not fit into a tar header")));
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    field[text.len()..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_systems_tar_reads_it() {
        let dir = tempfile::Builder::new().prefix("longshore-tar-").tempdir().unwrap();
        let mut tar = Tar::new(Vec::new());
        tar.directory("bin", 0o755).unwrap();
        tar.file("bin/tool", 0o750, &[7; 1000]).unwrap();
        tar.file("bin/exact", 0o644, &[1; 512]).unwrap();
        tar.link("bin/other", "tool").unwrap();
        let file = dir.path().join("x.tar");
        fs::write(&file, tar.finish().unwrap()).unwrap();
        let listed = Command::new("tar").arg("-tvf").arg(&file).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let out = dir.path().join("out");
        fs::create_dir(&out).unwrap();
        let status =
            Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(&out).status().unwrap();
        assert!(status.success());
        assert_eq!(fs::read(out.join("bin/other")).unwrap(), [7; 1000]);
        assert_eq!(fs::read(out.join("bin/exact")).unwrap(), [1; 512]);
    }

    #[test]
    fn a_short_file_is_an_error() {
        let mut tar = Tar::new(Vec::new());
        let error = tar.stream("f", 0o644, 9, &b"short"[..]).unwrap_err();
        assert!(error.to_string().contains("5 bytes instead of 9"), "{error}");
    }
}
