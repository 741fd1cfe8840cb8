//! Splits a streamed response into lines, one watch event each.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use crate::api::ResponseBody;
use crate::error::{ApiError, Target};

/// The lines of a streamed response. Reading is safe to cancel.
pub(crate) struct Lines {
    at: Target,
    body: ResponseBody,
    lines: VecDeque<Bytes>,
    /// A line that has no end yet.
    partial: BytesMut,
}

impl Lines {
    pub(crate) fn new(at: Target, body: ResponseBody) -> Self {
        Self { at, body, lines: VecDeque::new(), partial: BytesMut::new() }
    }

    pub(crate) fn at(&self) -> &Target {
        &self.at
    }

    /// The next non-empty line; `None` when the server ended the stream. A last line without
    /// newline is a cut event and is dropped: the next watch delivers it whole.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.push(data);
                    }
                }
                Some(Err(e)) => {
                    return Err(ApiError::Unreachable { at: self.at.clone(), source: e.into() });
                }
            }
        }
    }

    /// Whole lines, which is what most servers send, are taken as they are; the beginning of a line
    /// waits for its rest.
    fn push(&mut self, mut data: Bytes) {
        if !self.partial.is_empty() {
            let end = memchr::memchr(b'\n', &data).map_or(data.len(), |end| end + 1);
            self.partial.extend_from_slice(&data.split_to(end));
            if self.partial.last() != Some(&b'\n') {
                return;
            }
            self.lines.push_back(self.partial.split().freeze());
        }
        let end = memchr::memrchr(b'\n', &data).map_or(0, |end| end + 1);
        self.partial.extend_from_slice(&data[end..]);
        data.truncate(end);
        self.lines.push_back(data);
    }

    fn take_line(&mut self) -> Option<Bytes> {
        while let Some(lines) = self.lines.front_mut() {
            let Some(end) = memchr::memchr(b'\n', lines) else {
                self.lines.pop_front();
                continue;
            };
            let line = lines.split_to(end + 1).slice(..end);
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn lines(body: &'static [u8]) -> Lines {
        let body = Full::from(body).map_err(std::io::Error::other).boxed_unsync();
        Lines::new(Target::new("watch", "pods"), body)
    }

    #[tokio::test]
    async fn a_cut_last_line_is_dropped() {
        let mut lines = lines(b"one\n\ntwo\nthr");
        assert_eq!(lines.next().await.expect("line").as_deref(), Some(&b"one"[..]));
        assert_eq!(lines.next().await.expect("line").as_deref(), Some(&b"two"[..]));
        assert_eq!(lines.next().await.expect("end"), None);
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"one\n\ntwo\nthree\n";
        for first in 0..text.len() {
            for second in first..text.len() {
                let mut lines = lines(b"");
                let mut seen = Vec::new();
                for part in [&text[..first], &text[first..second], &text[second..]] {
                    lines.push(Bytes::from_static(part));
                    seen.extend(std::iter::from_fn(|| lines.take_line()));
                }
                assert_eq!(seen, ["one", "two", "three"], "cut at {first} and {second}");
            }
        }
    }
}
