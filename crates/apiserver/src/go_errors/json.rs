//! What is wrong with a text that should be JSON.

/// The first fault; `None` when the text is JSON.
pub(crate) fn json_fault(text: &[u8]) -> Option<String> {
    let fault = Scanner { text, at: 0, depth: 0 }.document().err()?;
    Some(fault.to_string())
}

/// Levels that are looked into. The parser takes fewer; looking deeper would use up the stack.
const MAX_DEPTH: usize = 200;

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

/// A fault, in the words of Go.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {} {place}", quoted(*.character))]
    Character { character: u8, place: String },
    #[error("exceeded max depth")]
    Depth,
}

type Step = Result<(), Fault>;

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// A character that does not belong here.
    fn unexpected(&self, place: &str) -> Fault {
        match self.peek() {
            None => Fault::End,
            Some(character) => Fault::Character { character, place: place.to_owned() },
        }
    }

    fn document(&mut self) -> Step {
        self.value()?;
        self.skip_spaces();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("after top-level value")),
        }
    }

    fn deeper(&mut self, look: impl FnOnce(&mut Self) -> Step) -> Step {
        if self.depth == MAX_DEPTH {
            return Err(Fault::Depth);
        }
        self.depth += 1;
        look(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn value(&mut self) -> Step {
        self.skip_spaces();
        match self.peek() {
            Some(b'{') => self.deeper(Self::object),
            Some(b'[') => self.deeper(Self::array),
            Some(b'"') => self.string(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.unexpected("looking for beginning of value")),
        }
    }

    fn object(&mut self) -> Step {
        self.at += 1;
        self.skip_spaces();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.skip_spaces();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("looking for beginning of object key string"));
            }
            self.string()?;
            self.skip_spaces();
            if self.peek() != Some(b':') {
                return Err(self.unexpected("after object key"));
            }
            self.at += 1;
            self.value()?;
            self.skip_spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected("after object key:value pair")),
            }
        }
    }

    fn array(&mut self) -> Step {
        self.at += 1;
        self.skip_spaces();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value()?;
            self.skip_spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected("after array element")),
            }
        }
    }

    fn string(&mut self) -> Step {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                Some(c) if c >= 0x20 => self.at += 1,
                _ => return Err(self.unexpected("in string literal")),
            }
        }
    }

    fn escape(&mut self) -> Step {
        match self.peek() {
            Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|c| c.is_ascii_hexdigit()) {
                        return Err(self.unexpected("in \\u hexadecimal character escape"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.unexpected("in string escape code")),
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Step {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                let place = format!("in literal {word} (expecting {})", quoted(expected));
                return Err(self.unexpected(&place));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self, place: &str) -> Step {
        if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
            return Err(self.unexpected(place));
        }
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Step {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits("in numeric literal")?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        Ok(())
    }
}

/// A byte in single quotes, as Go writes it.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".into(),
        b'\\' => "'\\\\'".into(),
        b'\n' => "'\\n'".into(),
        b'\r' => "'\\r'".into(),
        b'\t' => "'\\t'".into(),
        0x07 => "'\\a'".into(),
        0x08 => "'\\b'".into(),
        0x0b => "'\\v'".into(),
        0x0c => "'\\f'".into(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..0xa0 | 0xad => format!("'\\u{:04x}'", u32::from(byte)),
        printable => format!("'{}'", char::from(printable)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_nests_too_deep_is_refused() {
        for piece in ["[", "{\"a\":"] {
            let fault = json_fault(piece.repeat(1_000_000).as_bytes());
            assert_eq!(fault.as_deref(), Some("exceeded max depth"));
        }
        let flat = format!("[{}[]]", "[],".repeat(1000));
        assert_eq!(json_fault(flat.as_bytes()), None);
    }

    #[test]
    fn faults_are_worded_as_go_words_them() {
        let rows: [(&[u8], &str); 14] = [
            (b"", "unexpected end of JSON input"),
            (b"{nope", "invalid character 'n' looking for beginning of object key string"),
            (b"\x9e", "invalid character '\\u009e' looking for beginning of value"),
            (b"nonsense", "invalid character 'o' in literal null (expecting 'u')"),
            (b"{} x", "invalid character 'x' after top-level value"),
            (b"{\"a\" 1}", "invalid character '1' after object key"),
            (b"{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            (b"[1 2]", "invalid character '2' after array element"),
            (b"[1,]", "invalid character ']' looking for beginning of value"),
            (b"{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            (b"\"\\x\"", "invalid character 'x' in string escape code"),
            (b"\"a\nb\"", "invalid character '\\n' in string literal"),
            (b"-x", "invalid character 'x' in numeric literal"),
            (b"{\"a\":", "unexpected end of JSON input"),
        ];
        for (text, wanted) in rows {
            assert_eq!(json_fault(text).as_deref(), Some(wanted));
        }
        assert_eq!(json_fault(br#" {"a": [1.5e3, true, null, "\u00e4"]} "#), None);
    }
}
