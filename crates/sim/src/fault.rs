//! What can go wrong with one call.

use std::fmt;
use std::str::FromStr;

/// A fault at one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The process dies before the call takes effect.
    CrashBefore,
    /// The process dies after the call took effect, before it hears of it.
    CrashAfter,
    /// The call takes effect, its answer is lost: an error without verdict.
    LostAnswer,
    /// The call never arrives: an error without verdict.
    Unreached,
    /// The other side says no before anything happens.
    Refused,
    /// Somebody was faster. What is made is there already, made by a request that was sent twice; a
    /// change is refused because of its version; the driver is busy with the same volume.
    Conflict,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::LostAnswer,
        Self::Unreached,
        Self::Refused,
        Self::Conflict,
    ];

    /// Whether the caller cannot know if the call took effect.
    #[must_use]
    pub fn leaves_doubt(self) -> bool {
        !matches!(self, Self::Unreached | Self::Refused)
    }

    /// Its name in tables and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CrashBefore => "crash-before",
            Self::CrashAfter => "crash-after",
            Self::LostAnswer => "lost-answer",
            Self::Unreached => "unreached",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|fault| fault.name() == text);
        found.ok_or_else(|| format!("no fault is called {text:?}"))
    }
}
