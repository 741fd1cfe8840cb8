//! Where a value stands in a tree: written out only when somebody has to be told.

use std::fmt;

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
