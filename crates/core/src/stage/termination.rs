//! The last words of a container: `state.terminated.message`.
//!
//! Limits, order and fallback are kubelet's (`kuberuntime_container.go`, `status_manager.go`).

use std::borrow::Cow;

/// A container's own message is the last so many bytes of its file.
pub const MAX_FILE_BYTES: u64 = 4096;
/// All messages of a pod together; each container gets an equal share.
pub const MAX_POD_BYTES: usize = 12 * 1024;
/// Lines at the end of the log that stand in for a message.
pub const FALLBACK_LINES: usize = 80;
/// Bytes at the end of the log that stand in for a message.
pub const FALLBACK_BYTES: usize = 2048;

/// `terminationMessagePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The message is what the container wrote to its file.
    #[default]
    File,
    /// As `File`; a container that failed and wrote nothing is described by the end of its log.
    FallbackToLogsOnError,
}

impl Policy {
    /// Reads the API's word; unset means `File`.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "FallbackToLogsOnError" => Self::FallbackToLogsOnError,
            _ => Self::File,
        }
    }
}

/// Where the message file is mounted in the container; `None` when there is no message.
///
/// Kubelet puts a slash before the path, whatever it is: a relative path begins at the container's
/// root, and `..` cannot leave it.
#[must_use]
pub fn target(path: &str) -> Option<String> {
    (!path.is_empty()).then(|| format!("/{path}"))
}

/// How a run ended, as far as its message depends on it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The container's policy.
    pub policy: Policy,
    pub exit_code: i32,
    /// Why the container could not be started, when it could not.
    pub start_error: Option<&'a str>,
    /// The end of the message file, or why it could not be read; `None` when there is no file.
    pub file: Option<Result<&'a [u8], &'a str>>,
}

/// What to report of an ended run.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// This text; it may be empty.
    Text(Cow<'a, str>),
    /// The end of the container's log.
    EndOfLog,
}

/// Decides what the message of an ended run is.
#[must_use]
pub fn decide<'a>(view: &View<'a>) -> Message<'a> {
    let View { policy, exit_code, start_error, file } = *view;
    let own: Cow<'a, str> = match file {
        Some(Ok(bytes)) => text(bytes),
        Some(Err(error)) => format!("Error on reading termination log: {error}").into(),
        None => "".into(),
    };
    match (start_error, own.is_empty()) {
        (Some(error), true) => Message::Text(error.into()),
        (Some(error), false) => Message::Text(format!("{error}: {own}").into()),
        (None, false) => Message::Text(own),
        (None, true) => match policy {
            Policy::FallbackToLogsOnError if exit_code != 0 => Message::EndOfLog,
            Policy::FallbackToLogsOnError | Policy::File => Message::Text(own),
        },
    }
}

/// The text of bytes that were cut at their beginning. What is no UTF-8 is replaced, because JSON
/// cannot carry it; the rest of a character that was cut is dropped.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    let is_rest = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let rest = bytes.iter().take(3).take_while(is_rest).count();
    String::from_utf8_lossy(&bytes[rest..])
}

/// The last [`FALLBACK_BYTES`] of the last [`FALLBACK_LINES`] lines of a log. `log` is an end of
/// the log file that begins with a whole line `<time> <stream> <F|P> <text>`.
#[must_use]
pub fn end_of_log(log: &[u8]) -> Cow<'_, str> {
    let lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
    let mut out = Vec::new();
    for line in &lines[lines.len().saturating_sub(FALLBACK_LINES)..] {
        let mut parts = line.splitn(4, |byte| *byte == b' ').skip(2);
        let (Some(tag), Some(said)) = (parts.next(), parts.next()) else { continue };
        // The line goes on in the next entry.
        let goes_on = tag == b"P";
        out.extend_from_slice(if goes_on {
            said.strip_suffix(b"\n").unwrap_or(said)
        } else {
            said
        });
    }
    let end = &out[out.len().saturating_sub(FALLBACK_BYTES)..];
    Cow::Owned(text(end).into_owned())
}

/// Cuts a message to its share of the pod's limit, at the end of a character.
#[must_use]
pub fn share(message: &str, containers: usize) -> &str {
    let mut end = message.len().min(MAX_POD_BYTES / containers.max(1));
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_begins_at_the_containers_root() {
        for (path, expected) in [
            ("/dev/termination-log", Some("//dev/termination-log")),
            ("relative/log", Some("/relative/log")),
            ("../log", Some("/../log")),
            ("", None),
        ] {
            assert_eq!(target(path).as_deref(), expected, "{path:?}");
        }
    }

    #[test]
    fn the_message_by_file_policy_and_exit() {
        use Policy::{FallbackToLogsOnError as Fallback, File};
        let rows = [
            (File, 0, None, Some(Ok("done")), Some("done")),
            (File, 3, None, Some(Ok("bad disk")), Some("bad disk")),
            (File, 3, None, Some(Ok("")), Some("")),
            (File, 3, None, None, Some("")),
            (Fallback, 3, None, Some(Ok("bad disk")), Some("bad disk")),
            (Fallback, 3, None, Some(Ok("")), None),
            (Fallback, 3, None, None, None),
            (Fallback, 137, None, Some(Ok("")), None),
            (Fallback, 0, None, Some(Ok("")), Some("")),
            // A container that was not started has no log.
            (Fallback, 128, Some("exec: no such file"), Some(Ok("")), Some("exec: no such file")),
            (File, 128, Some("exec"), Some(Ok("left")), Some("exec: left")),
            (
                Fallback,
                1,
                None,
                Some(Err("not a regular file")),
                Some("Error on reading termination log: not a regular file"),
            ),
        ];
        for (policy, exit_code, start_error, file, expected) in rows {
            let file = file.map(|file: Result<&str, &str>| file.map(str::as_bytes));
            let decided = decide(&View { policy, exit_code, start_error, file });
            let expected = expected.map_or(Message::EndOfLog, |text| Message::Text(text.into()));
            assert_eq!(decided, expected, "{policy:?} {exit_code} {start_error:?} {file:?}");
        }
    }

    #[test]
    fn what_is_no_text_is_replaced_and_a_cut_character_is_dropped() {
        let rows: [(&[u8], &str); 5] = [
            (b"plain", "plain"),
            (b"", ""),
            (&"\u{e9}t\u{e9}".as_bytes()[1..], "t\u{e9}"),
            (&"\u{1f980}!".as_bytes()[1..], "!"),
            (b"a\xffb", "a\u{fffd}b"),
        ];
        for (bytes, expected) in rows {
            assert_eq!(text(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn the_end_of_the_log_is_bounded_in_lines_and_bytes() {
        let line = |tag: &str, said: &str| format!("2026-01-01T00:00:00Z stdout {tag} {said}\n");
        let long = "x".repeat(3000);
        let many: String = (0..100).map(|number| line("F", &number.to_string())).collect();
        let last: String = (20..100).map(|number| format!("{number}\n")).collect();
        for (log, expected) in [
            (String::new(), String::new()),
            (line("F", "one") + &line("F", "two words"), "one\ntwo words\n".to_owned()),
            (line("P", "half ") + &line("F", "line"), "half line\n".to_owned()),
            (many, last),
            (line("F", &long), "x".repeat(FALLBACK_BYTES - 1) + "\n"),
            ("torn\n".to_owned() + &line("F", "whole"), "whole\n".to_owned()),
        ] {
            assert_eq!(end_of_log(log.as_bytes()), expected);
        }
    }

    #[test]
    fn the_limit_of_the_pod_is_shared_by_its_containers() {
        let text = "\u{e9}".repeat(10_000);
        for (containers, bytes) in [(0, 12_288), (1, 12_288), (3, 4096), (5, 2456), (7, 1754)] {
            assert_eq!(share(&text, containers).len(), bytes, "{containers}");
        }
        assert_eq!(share("short", 3), "short");
    }
}
