//! Whether a driver is believed that says it does not know a volume any more.
//!
//! A volume that was deleted too early will never be known again, and its pod must end all the same:
//! then this node unmounts what is left. But a driver that is just starting may say the same of a
//! volume that it has, and pulling that mount would leave the driver with half of it. So the answer is
//! believed only when it stays the same, and the driver says that it is ready.

/// How often in a row a driver has to say it. With the usual back-off that takes 7.5 seconds.
pub const ANSWERS: u32 = 5;

/// All that the decision may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// How often in a row the driver has said so, this time included, since it was last registered
    /// and since this process started.
    pub answers: u32,
    /// What Probe said just now; absent when it was not asked or gave no answer.
    pub ready: Option<bool>,
}

/// What follows from "not found".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    /// Ask again after the back-off.
    NotYet,
    /// Ask the driver whether it is ready, then decide again.
    AskReady,
    /// The driver will never know the volume again.
    Forgotten,
}

/// Decides.
#[must_use]
pub fn decide(view: &View) -> Belief {
    match (view.answers >= ANSWERS, view.ready) {
        (false, _) | (true, Some(false)) => Belief::NotYet,
        (true, None) => Belief::AskReady,
        (true, Some(true)) => Belief::Forgotten,
    }
}

#[cfg(test)]
mod tests {
    use super::{Belief::*, *};

    #[test]
    fn not_found_is_believed_when_it_is_repeated_by_a_driver_that_is_ready() {
        for (case, answers, ready, expected) in [
            ("the first time", 1, None, NotYet),
            ("the first time, though ready", 1, Some(true), NotYet),
            ("almost", ANSWERS - 1, Some(true), NotYet),
            ("repeated", ANSWERS, None, AskReady),
            ("repeated, ready", ANSWERS, Some(true), Forgotten),
            ("repeated, starting", ANSWERS, Some(false), NotYet),
            ("for long, starting", 100, Some(false), NotYet),
            ("for long, ready at last", 101, Some(true), Forgotten),
        ] {
            assert_eq!(decide(&View { answers, ready }), expected, "{case}");
        }
    }
}
