//! Text on its way to a client, in pieces.
//!
//! What a client does not read stays in memory. Large texts are therefore not copied: a response shares them
//! with the store, and a long list is written as it is read.

use std::collections::VecDeque;

use bytes::Bytes;

/// Texts of this length are shared, shorter ones are copied. A list is written so much at a time.
pub const LARGE: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Pieces {
    done: VecDeque<Bytes>,
    open: Vec<u8>,
    len: usize,
}

impl Pieces {
    /// How long the text is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for a text.
    pub fn reserve(&mut self, bytes: usize) {
        self.open.reserve(bytes.min(LARGE));
    }

    pub fn write(&mut self, text: &[u8]) {
        self.len += text.len();
        self.open.extend_from_slice(text);
    }

    /// Adds a text that is shared with the store.
    pub fn share(&mut self, text: Bytes) {
        if text.len() < LARGE {
            return self.write(&text);
        }
        self.len += text.len();
        self.close();
        self.done.push_back(text);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push_back(std::mem::take(&mut self.open).into());
        }
    }

    pub fn take(&mut self) -> Option<Bytes> {
        let piece = self.done.pop_front().or_else(|| {
            (!self.open.is_empty()).then(|| Bytes::from(std::mem::take(&mut self.open)))
        })?;
        self.len -= piece.len();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_texts_are_shared_and_the_order_is_kept() {
        let large = Bytes::from(vec![b'x'; LARGE]);
        let mut pieces = Pieces::default();
        pieces.write(b"a");
        pieces.share(Bytes::from_static(b"b"));
        pieces.share(large.clone());
        pieces.write(b"c");
        assert_eq!(pieces.len(), LARGE + 3);
        assert_eq!(pieces.take().as_deref(), Some(&b"ab"[..]));
        let shared = pieces.take().unwrap();
        assert_eq!(shared.as_ptr(), large.as_ptr(), "it is the same memory");
        assert_eq!(pieces.take().as_deref(), Some(&b"c"[..]));
        assert!(pieces.take().is_none() && pieces.is_empty());
    }
}
