//! Records with a checksum: a changed digit of a size or a name would otherwise be believed.
//!
//! The sum is the last field of the JSON object and covers every byte before it. Records of earlier
//! versions have none and are read as they are.

use crc::{CRC_32_ISO_HDLC, Crc};
use serde::Serialize;
use serde::de::DeserializeOwned;

static CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
const BEFORE: &str = ",\n  \"sum\": \"";
const AFTER: &str = "\"\n}\n";
const DIGITS: usize = 8;

/// A record as it is kept on disk.
pub(super) fn seal(record: &impl Serialize) -> Vec<u8> {
    let text = serde_json::to_string_pretty(record).expect("a record holds only plain data");
    let body = text.strip_suffix("\n}").expect("a record is an object with fields");
    let sum = CRC.checksum(body.as_bytes());
    format!("{body}{BEFORE}{sum:08x}{AFTER}").into_bytes()
}

/// What is wrong with a record.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnsealError {
    #[error("it is empty")]
    Empty,
    #[error("its checksum does not fit: it was changed or damaged")]
    Changed,
    #[error("its checksum is damaged")]
    DamagedSum,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reads a record and checks its sum.
pub(super) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, UnsealError> {
    if bytes.is_empty() {
        return Err(UnsealError::Empty);
    }
    match split(bytes) {
        Some((body, sum)) if format!("{:08x}", CRC.checksum(body)).as_bytes() != sum => {
            Err(UnsealError::Changed)
        }
        None if has_sum(bytes) => Err(UnsealError::DamagedSum),
        _ => Ok(serde_json::from_slice(bytes)?),
    }
}

/// What is covered, and the sum.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = bytes.strip_suffix(AFTER.as_bytes())?;
    let (rest, sum) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    Some((rest.strip_suffix(BEFORE.as_bytes())?, sum))
}

fn has_sum(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|window| window == b"\"sum\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_record_that_lost_or_changed_a_bit_is_not_believed() {
        let record = json!({"id": "vol-1", "capacity_bytes": 1_048_576, "name": "pvc-1"});
        let whole = seal(&record);
        let read: Value = unseal(&whole).unwrap();
        assert_eq!(read["capacity_bytes"], 1_048_576);
        for cut in 0..whole.len() - 1 {
            unseal::<Value>(&whole[..cut]).unwrap_err();
        }
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = unseal::<Value>(&changed) {
                // Only the name of the sum itself may differ.
                assert_eq!(
                    (&read["id"], &read["capacity_bytes"]),
                    (&record["id"], &record["capacity_bytes"])
                );
            }
        }
    }

    #[test]
    fn records_of_earlier_versions_are_read() {
        let old = serde_json::to_vec_pretty(&json!({"id": "vol-1"})).unwrap();
        assert_eq!(unseal::<Value>(&old).unwrap()["id"], "vol-1");
    }
}
