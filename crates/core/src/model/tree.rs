//! API objects as JSON trees, which client and server of one process pass on instead of text.
//!
//! The two crates do not know each other; this is the noun that they share. Between two machines an object travels as text. Within one process that would be written by one side
//! only to be read by the other, so client and server may put the object itself beside an empty body, as
//! an extension of the request or of the answer.

use serde_json::Value;

/// With a request: the object that its body would hold. With an answer: the same, without the list of the
/// object's managers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree(pub Value);

/// With a request: a [`Tree`] will do as an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeWelcome;
