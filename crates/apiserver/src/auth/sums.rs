//! Checksums of the key files, so that a damaged or missing key is noticed.
//!
//! Keys and tokens are random: a changed bit gives another one that looks as good, and every client
//! would be turned away without a reason. The file is written once all keys are there.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use longshore_files::write_private;
use sha2::{Digest, Sha256};

const NAME: &str = "sums";

/// Compares the files with what was recorded; the first that differs is the error.
///
/// # Errors
/// The path of a file that is missing or changed, and which of the two it is.
pub(super) fn check(dir: &Path) -> Result<(), (PathBuf, &'static str)> {
    let Some(recorded) = read(dir) else { return Ok(()) };
    for (name, sum) in recorded {
        let path = dir.join(name);
        match std::fs::read(&path) {
            Ok(content) if digest(&content) == sum => {}
            Ok(_) => return Err((path, "it was changed or damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err((path, "it is missing"));
            }
            // Whoever needs it says why it cannot be read.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Records the files as they are, unless that has been done.
pub(super) fn record(dir: &Path, names: &[&str]) -> io::Result<()> {
    if read(dir).is_some() {
        return Ok(());
    }
    let mut text = String::new();
    for name in names {
        let _ = writeln!(text, "{}  {name}", digest(&std::fs::read(dir.join(name))?));
    }
    let own = digest(text.as_bytes());
    write_private(&dir.join(NAME), format!("{text}{own}\n"))
}

/// What was recorded; `None` when there is nothing, or nothing that can be believed.
fn read(dir: &Path) -> Option<Vec<(String, String)>> {
    let text = std::fs::read_to_string(dir.join(NAME)).ok()?;
    let (lines, own) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    if digest(format!("{lines}\n").as_bytes()) != own {
        return None;
    }
    let row = |line: &str| line.split_once("  ").map(|(sum, name)| (name.into(), sum.into()));
    lines.lines().map(row).collect()
}

fn digest(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}
