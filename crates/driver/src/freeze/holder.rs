//! The child that holds a freeze.
//!
//! Standard input is a socket to the parent, standard output a directory of the mounted
//! filesystem, standard error the note. Orders: [`FREEZE`] with the milliseconds it may last, then
//! [`THAW`]; the end of the connection is an order to thaw as well. Each order gets
//! one byte and an error number.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use super::ioctl;
use crate::fault::Faults;

/// Set for the holder, so that a program knows that it is the holder.
pub const ENV: &str = "LONGSHORE_FREEZE_HOLDER";

pub(super) const FREEZE: u8 = b'F';
pub(super) const THAW: u8 = b'T';
pub(super) const FROZEN: u8 = b'f';
/// It is thawed, and was frozen until now.
pub(super) const THAWED: u8 = b't';
/// It had been thawed before.
pub(super) const LOST: u8 = b'l';
const FAILED: u8 = b'e';

/// Line in the note before a freeze, and after its end.
const NOTE_FROZEN: &str = "frozen";
const NOTE_THAWED: &str = "thawed";
/// The last lines of a note are in here.
const NOTE_LIMIT: usize = 4096;

/// What the program named by [`super::HolderProgram`] does, and all it does.
#[must_use]
pub fn main() -> ExitCode {
    main_with(&Faults::NONE)
}

/// As [`main`], with something that happens between its steps.
#[must_use]
pub fn main_with(faults: &Faults) -> ExitCode {
    match hold(faults) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn hold(faults: &Faults) -> io::Result<()> {
    ignore_signals()?;
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mount = io::stdout().as_fd().try_clone_to_owned()?;
    let note = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let mut order = [0; 5];
    control.read_exact(&mut order)?;
    let [kind, within @ ..] = order;
    if kind != FREEZE {
        return Err(io::Error::other("unknown order"));
    }
    // First the note: a freeze without one would stay for ever after a kill.
    write_note(&note, NOTE_FROZEN)?;
    faults.at("holder.noted");
    if let Err(error) = ioctl::freeze(&mount) {
        write_note(&note, NOTE_THAWED)?;
        return respond(&mut control, FAILED, &error);
    }
    faults.at("holder.frozen");
    let sent = respond(&mut control, FROZEN, &io::Error::from_raw_os_error(0));
    let within = Duration::from_millis(u32::from_le_bytes(within).max(1).into());
    let in_time = sent.is_ok() && wait_for_order(&mut control, within);
    let thawed = ioctl::thaw(&mount);
    write_note(&note, NOTE_THAWED)?;
    faults.at("holder.thawed");
    match thawed {
        Ok(()) if in_time => respond(&mut control, THAWED, &io::Error::from_raw_os_error(0)),
        Ok(()) => respond(&mut control, LOST, &io::Error::from_raw_os_error(0)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            respond(&mut control, LOST, &error)
        }
        Err(error) => respond(&mut control, FAILED, &error),
    }
}

/// True for an order to thaw; false when the parent is gone or its time is up.
fn wait_for_order(control: &mut UnixStream, within: Duration) -> bool {
    let mut order = [0];
    control.set_read_timeout(Some(within)).is_ok()
        && matches!(control.read(&mut order), Ok(1) if order[0] == THAW)
}

/// A service manager that stops the driver signals all its processes, and a killed holder would
/// leave the filesystem frozen; the end of the connection is what counts.
fn ignore_signals() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, std::sync::Arc::default())?;
    }
    Ok(())
}

fn respond(control: &mut UnixStream, kind: u8, error: &io::Error) -> io::Result<()> {
    let mut bytes = [kind, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes());
    control.write_all(&bytes)
}

fn write_note(mut note: &File, line: &str) -> io::Result<()> {
    note.write_all(format!("{line} {}\n", boot_id()?).as_bytes())?;
    note.sync_data()
}

/// Notes that what a holder froze was thawed in its place.
pub(super) fn note_thawed(note: &File) -> io::Result<()> {
    write_note(note, NOTE_THAWED)
}

/// Whether the last thing that a note says is that a filesystem is frozen, since this boot.
pub(super) fn says_frozen(note: &File) -> io::Result<bool> {
    let mut bytes = vec![0; NOTE_LIMIT];
    // The end counts, however often it was frozen before.
    let from = note.metadata()?.len().saturating_sub(NOTE_LIMIT as u64);
    let got = note.read_at(&mut bytes, from)?;
    let text = String::from_utf8_lossy(&bytes[..got]).into_owned();
    let boot = boot_id()?;
    let known = |line: &&str| line.starts_with(NOTE_FROZEN) || line.starts_with(NOTE_THAWED);
    Ok(text.lines().rfind(known) == Some(&*format!("{NOTE_FROZEN} {boot}")))
}

fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_note_counts() {
        let boot = boot_id().unwrap();
        let cases = [
            (String::new(), false),
            (format!("frozen {boot}\n"), true),
            (format!("frozen {boot}\nthawed {boot}\n"), false),
            (format!("thawed {boot}\nfrozen {boot}\n"), true),
            ("frozen 0000\n".to_owned(), false),
            (format!("frozen {boot}\nthread 'main' panicked\n"), true),
            (
                format!("frozen {boot}\nthawed {boot}\n").repeat(99) + &format!("frozen {boot}\n"),
                true,
            ),
            (format!("frozen {boot}\nthawed {boot}\n").repeat(99), false),
        ];
        for (text, want) in cases {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
            assert_eq!(says_frozen(&file).unwrap(), want, "{text:?}");
        }
    }
}
