//! ControllerExpandVolume of a `shared` driver: the image grows here, what is seen of it on the
//! node.

use longshore_csi::v1::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};

use longshore_core::{model::Quantity, words};

use super::size::Range;
use crate::access::Access;
use crate::config::FsType;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::pool::record::Record;
use crate::pool::{Pool, PoolError};
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// Gives a volume more room.
    pub(crate) fn controller_expand(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Refusal::Invalid("capacity_range is missing".to_owned()));
        }
        let range = Range::parse(request.capacity_range.as_ref())?;
        let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
        let id = VolumeId::parse(given).ok_or_else(missing)?;
        let (pool, record) = self.need(&id)?;
        if request.volume_capability.is_some() {
            let access = Access::parse(request.volume_capability.as_ref(), self.config.kind)?;
            if let Some(conflict) = access.conflict_with(&record) {
                return Err(Refusal::Invalid(conflict));
            }
        }
        let wanted = size_to_grow_to(range, &record)?;
        let record = match wanted > record.capacity_bytes {
            true => grow(pool, &record, wanted)?,
            false => record,
        };
        // Repeated after a crash in between: the image may still lack what the record promises.
        pool.stretch(&record)?;
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: record.capacity_bytes.cast_signed(),
            // A device keeps the size it was bound with, also a raw one.
            node_expansion_required: true,
        })
    }
}

/// The kernel refuses to set a btrfs to less.
const LEAST_BTRFS_BYTES: u64 = 256 << 20;

/// The size that a volume gets; that which it has, if that is enough.
pub(crate) fn size_to_grow_to(range: Range, record: &Record) -> Result<u64, Refusal> {
    let wanted = range.grow(record.capacity_bytes)?;
    let short = wanted > record.capacity_bytes && wanted < LEAST_BTRFS_BYTES;
    if record.fstype != Some(FsType::Btrfs) || !short {
        return Ok(wanted);
    }
    if range.limit_bytes != 0 && range.limit_bytes < LEAST_BTRFS_BYTES {
        return Err(Refusal::OutOfRange(format!(
            "btrfs grows to {} or more, and limit_bytes is {}",
            words::size(LEAST_BTRFS_BYTES),
            range.limit_bytes
        )));
    }
    Ok(LEAST_BTRFS_BYTES)
}

/// Gives a volume more of its pool. A size that the pool does not have is out of range and not a matter of
/// waiting: whoever asked for it may then ask for less.
pub(crate) fn grow(pool: &Pool, record: &Record, bytes: u64) -> Result<Record, Refusal> {
    pool.grow(&record.id, bytes).map_err(|error| match error {
        PoolError::Full { pool, allocatable_bytes, .. } => {
            let has = record.capacity_bytes;
            Refusal::OutOfRange(format!(
                "volume {} has {} and cannot grow to {}: pool {pool} has {} left. Ask for {} or less, or \
                 make room in the pool",
                record.id,
                words::size(has),
                words::size(bytes),
                words::room(allocatable_bytes),
                most(has, allocatable_bytes)
            ))
        }
        error => error.into(),
    })
}

/// The size to ask for instead, which fits for certain: as coarse as the room is told, so that the text stays the same
/// while the room moves a little, unless that would be no growth.
fn most(has: u64, room: u64) -> String {
    let most = has + room;
    let coarse = words::room(most);
    match coarse.parse::<Quantity>() {
        Ok(size) if size.bytes().unsigned_abs() > has => coarse,
        _ => format!("{}Mi", most >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_to_ask_for_fits_and_is_no_less_than_there_is() {
        const MIB: u64 = 1 << 20;
        for (has, room, want) in [
            (16 * MIB, 49_000 * MIB, "47Gi"),
            (16 * MIB, 48_800 * MIB, "47Gi"),
            (100 * MIB, 3 * MIB, "103Mi"),
            (109 * MIB, 0, "109Mi"),
            (16 * MIB, 32 * MIB + 5, "48Mi"),
        ] {
            assert_eq!(most(has, room), want, "{has} and {room}");
            let bytes = want.parse::<Quantity>().unwrap().bytes().unsigned_abs();
            assert!(bytes >= has && bytes <= has + room, "{want}");
        }
    }
}
