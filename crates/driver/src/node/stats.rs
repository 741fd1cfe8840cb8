//! NodeGetVolumeStats.

use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsage};

use crate::driver::Inner;
use crate::loopdev;
use crate::mount::place::{Place, PlaceError};
use crate::refusal::Refusal;

impl Inner {
    /// How full a volume is, asked at a path where it is staged or published.
    pub fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        let given = request.volume_path.as_str();
        let id = self.node_volume(&request.volume_id, &[("volume_path", given)])?;
        let (pool, _) = self.need(&id)?;
        let absent = || Refusal::NotFound(format!("volume {id} is not at {given}"));
        let place = match Place::resolve(given) {
            Ok(place) => place,
            // No volume is ever at a path that cannot be one.
            Err(PlaceError::NoParent(_) | PlaceError::Bad { .. }) => return Err(absent()),
            Err(error) => return Err(error.into()),
        };
        let look = self.look(pool, &id)?;
        let (Some(device), Some(entry)) = (look.device, look.at(&place)) else {
            return Err(absent());
        };
        if look.is_filesystem(entry) {
            return Ok(NodeGetVolumeStatsResponse {
                usage: filesystem(&place)?,
                volume_condition: None,
            });
        }
        if look.shows(entry) {
            let total = loopdev::size_bytes(device)?.cast_signed();
            let usage =
                vec![VolumeUsage { available: 0, total, used: 0, unit: Unit::Bytes as i32 }];
            return Ok(NodeGetVolumeStatsResponse { usage, volume_condition: None });
        }
        Err(absent())
    }
}

fn filesystem(place: &Place) -> Result<Vec<VolumeUsage>, Refusal> {
    let fail = |source: rustix::io::Errno| PlaceError::Io {
        what: "measure",
        path: super::show(place.path()),
        source: source.into(),
    };
    let stat = rustix::fs::fstatvfs(place.open()?).map_err(fail)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize).cast_signed();
    Ok(vec![
        VolumeUsage {
            available: bytes(stat.f_bavail),
            total: bytes(stat.f_blocks),
            used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
            unit: Unit::Bytes as i32,
        },
        VolumeUsage {
            available: stat.f_favail.cast_signed(),
            total: stat.f_files.cast_signed(),
            used: stat.f_files.saturating_sub(stat.f_ffree).cast_signed(),
            unit: Unit::Inodes as i32,
        },
    ])
}
