//! The terminal that a client command was started on.

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Whether standard input is a terminal.
pub(super) fn is_there() -> bool {
    isatty(rustix::stdio::stdin())
}

/// Width and height.
pub(super) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(rustix::stdio::stdin()).ok()?;
    Some((size.ws_col, size.ws_row))
}

/// Hands every key to the program in the container; the terminal is as before when this is dropped.
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// # Errors
    /// Standard input is no terminal.
    pub(super) fn begin() -> std::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}
