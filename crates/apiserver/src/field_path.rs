//! The path of a field in an object, written out only when an error or warning names it.

use std::fmt;

use crate::error::start;

/// A path, as steps from the one above.
#[derive(Clone, Copy)]
pub(crate) enum FieldPath<'a> {
    /// The top, with what stands before it.
    Top(&'a str),
    /// A field of an object.
    Field(&'a FieldPath<'a>, &'a str),
    /// An element of a list.
    Element(&'a FieldPath<'a>, usize),
}

/// Unknown or duplicate fields of one object that are reported; a client that sends more learns of these.
const MAX_REPORTED: usize = 100;
/// Longest path that is written out. Names are the client's.
const MAX_BYTES: usize = 4 * 1024;

impl FieldPath<'_> {
    /// The path as a text of bounded length.
    pub(crate) fn text(&self) -> String {
        let mut text = Short(String::new());
        // The only error is that there is no more room.
        if fmt::Write::write_fmt(&mut text, format_args!("{self}")).is_err() {
            text.0.push('…');
        }
        text.0
    }

    /// Adds the path to those that are reported, unless there are enough.
    pub(crate) fn report_to(&self, reported: &mut Vec<String>) {
        if reported.len() < MAX_REPORTED {
            reported.push(self.text());
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

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top(name) => f.write_str(name),
            Self::Field(Self::Top(""), name) => f.write_str(name),
            Self::Field(above, name) => write!(f, "{above}.{name}"),
            Self::Element(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}
