//! Faults that strike one call.

use std::fmt;
use std::str::FromStr;

/// A fault at one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The process dies before the call takes effect.
    CrashBefore,
    /// The process dies after the call took effect, before it gets the response.
    CrashAfter,
    /// The call takes effect, its response is lost: an error without verdict.
    LostResponse,
    /// The call never arrives: an error without verdict.
    Unreached,
    /// The server or driver refuses before anything happens.
    Refused,
    /// Another request was faster. What is created exists already, by a request that was sent twice; a
    /// change is refused because of its version; the driver is busy with the same volume.
    Conflict,
}

impl Fault {
    pub const ALL: [Self; 6] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::LostResponse,
        Self::Unreached,
        Self::Refused,
        Self::Conflict,
    ];

    /// Whether the caller cannot know if the call took effect.
    #[must_use]
    pub fn is_without_verdict(self) -> bool {
        !matches!(self, Self::Unreached | Self::Refused)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CrashBefore => "crash-before",
            Self::CrashAfter => "crash-after",
            Self::LostResponse => "lost-response",
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
