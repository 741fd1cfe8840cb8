//! Where a value stands in a tree: written out only when somebody has to be told.

use std::fmt;

use crate::error::start;

/// A place, as steps from the one above.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The top, with what stands before it.
    Top(&'a str),
    /// A field of an object.
    Field(&'a Place<'a>, &'a str),
    /// An element of a list.
    Element(&'a Place<'a>, usize),
}

/// Fields that are told of one object; who sent more of them learns of these.
const MAX_TOLD: usize = 100;
/// Longest place that is written out. Names are the client's.
const MAX_BYTES: usize = 4 * 1024;

impl Place<'_> {
    /// The place as a text that is not too long.
    pub(crate) fn text(&self) -> String {
        let mut text = Short(String::new());
        // The only error is that there is no more room.
        if fmt::Write::write_fmt(&mut text, format_args!("{self}")).is_err() {
            text.0.push('…');
        }
        text.0
    }

    /// Adds the place to those that are told, unless there are enough.
    pub(crate) fn tell(&self, told: &mut Vec<String>) {
        if told.len() < MAX_TOLD {
            told.push(self.text());
        }
    }
}

/// A text that takes so much and no more.
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_BYTES - self.0.len();
        self.0.push_str(start(text, room));
        if text.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top(name) => f.write_str(name),
            Self::Field(Self::Top(""), name) => f.write_str(name),
            Self::Field(above, name) => write!(f, "{above}.{name}"),
            Self::Element(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}
