//! NodeGetVolumeStats.

use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage,
};
use longshore_files::mounts::Mount;

use super::Observed;
use crate::controller::condition::abnormal;
use crate::driver::Inner;
use crate::loopdev;
use crate::mount::checked_path::{CheckedPath, PathError};
use crate::pool::Pool;
use crate::pool::record::Record;
use crate::refusal::Refusal;

impl Inner {
    /// How full a volume is, asked at a path where it is staged or published.
    pub(crate) fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        let given = request.volume_path.as_str();
        let id = self.node_volume(&request.volume_id, &[("volume_path", given)])?;
        let (pool, record) = self.need(&id)?;
        let absent = || Refusal::NotFound(format!("volume {id} is not at {given}"));
        let checked = match CheckedPath::resolve(given) {
            Ok(checked) => checked,
            // No volume is ever at a path that cannot be one.
            Err(PathError::NoParent(_) | PathError::Bad { .. }) => return Err(absent()),
            Err(error) => return Err(error.into()),
        };
        let observed = self.observe(pool, &id)?;
        let (Some(device), Some(entry)) = (observed.device, observed.at(&checked)) else {
            return Err(absent());
        };
        let condition = self.seen_condition(pool, &record, &observed, entry)?;
        let usage = if observed.is_filesystem(entry) {
            match filesystem(&checked) {
                Ok(usage) => usage,
                // A filesystem that shut itself down fails every call.
                Err(error) => {
                    let volume_condition = Some(abnormal(error.to_string()));
                    return Ok(NodeGetVolumeStatsResponse { usage: vec![], volume_condition });
                }
            }
        } else if observed.shows(entry) {
            let total = loopdev::size_bytes(device)?.cast_signed();
            vec![VolumeUsage { available: 0, total, used: 0, unit: Unit::Bytes as i32 }]
        } else {
            return Err(absent());
        };
        Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
    }

    /// The condition of a volume, by what its user sees and then by its pool.
    fn seen_condition(
        &self,
        pool: &Pool,
        record: &Record,
        observed: &Observed,
        entry: &Mount,
    ) -> Result<VolumeCondition, Refusal> {
        let asked_for = observed.staged.as_ref().is_some_and(|staged| staged.read_only);
        if observed.is_filesystem(entry) && entry.filesystem_read_only && !asked_for {
            return Ok(abnormal(
                "the filesystem has become read-only, usually after an error: check it before it is used again"
                    .to_owned(),
            ));
        }
        self.condition(pool, record, pool.space()?)
    }
}

fn filesystem(checked: &CheckedPath) -> Result<Vec<VolumeUsage>, Refusal> {
    let fail = |source: rustix::io::Errno| PathError::Io {
        what: "measure",
        path: super::show(checked.path()),
        source: source.into(),
    };
    let stat = rustix::fs::fstatvfs(checked.open()?).map_err(fail)?;
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
