//! The protobuf wire format: numbered fields of four types.

/// The bytes end in the middle of a field, or are no protobuf at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Truncated;

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'a> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// Four bytes.
    Fixed32(u32),
    /// A text, a message, or plain bytes.
    Bytes(&'a [u8]),
}

/// Reads the fields of a message.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader over a whole message.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn varint(&mut self) -> Result<u64, Truncated> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Truncated)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Truncated> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Field<'a>), Truncated> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(array(self.take(8)?)?)),
            2 => {
                let count = usize::try_from(self.varint()?).map_err(|_| Truncated)?;
                Field::Bytes(self.take(count)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(array(self.take(4)?)?)),
            _ => return Err(Truncated),
        };
        Ok((tag >> 3, value))
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Truncated> {
    bytes.try_into().map_err(|_| Truncated)
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<(u64, Field<'a>), Truncated>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // Nothing sensible follows a broken field.
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_number_and_a_cut_one_is_an_error() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0];
        let fields: Vec<_> = Reader::new(&bytes).collect();
        let wanted =
            [(1, Field::Varint(150)), (2, Field::Bytes(b"hi")), (3, Field::Fixed32(1))].map(Ok);
        assert_eq!(fields, wanted);
        assert_eq!(Reader::new(&[0x12, 9, 1]).last(), Some(Err(Truncated)));
        assert_eq!(Reader::new(&[0xff; 12]).last(), Some(Err(Truncated)));
    }
}
