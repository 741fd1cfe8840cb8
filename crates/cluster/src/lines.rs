//! Splits a streamed answer into lines, one watch event each.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;

use crate::error::{ApiError, Target};

/// The lines of a streamed answer. Reading is safe to cancel.
pub(crate) struct Lines {
    at: Target,
    body: Body,
    buffer: BytesMut,
    /// Where the search for the next newline goes on; all before it has none.
    searched: usize,
}

impl Lines {
    pub(crate) fn new(at: Target, body: Body) -> Self {
        Self { at, body, buffer: BytesMut::new(), searched: 0 }
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
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(e)) => {
                    return Err(ApiError::Unreachable { at: self.at.clone(), source: e.into() });
                }
            }
        }
    }

    fn take_line(&mut self) -> Option<Bytes> {
        loop {
            let rest = &self.buffer[self.searched..];
            let Some(found) = rest.iter().position(|b| *b == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + found + 1).freeze();
            self.searched = 0;
            let line = line.slice(..line.len() - 1);
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cut_last_line_is_dropped() {
        let body = Body::from(b"one\n\ntwo\nthr".to_vec());
        let mut lines = Lines::new(Target::new("watch", "pods"), body);
        assert_eq!(lines.next().await.expect("line").as_deref(), Some(&b"one"[..]));
        assert_eq!(lines.next().await.expect("line").as_deref(), Some(&b"two"[..]));
        assert_eq!(lines.next().await.expect("end"), None);
    }
}
