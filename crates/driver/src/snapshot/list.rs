//! ListSnapshots and GetSnapshot.

use longshore_csi::v1::list_snapshots_response::Entry;
use longshore_csi::v1::{
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
};

use super::describe;
use crate::driver::Inner;
use crate::id::SnapshotId;
use crate::pool::snapshots::SnapshotRecord;
use crate::refusal::{Refusal, required_short};

impl Inner {
    /// One page of snapshots in order of their ids. A token is the last id of the page before, so
    /// it stays good when snapshots come and go.
    pub(crate) fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Refusal> {
        let most = usize::try_from(request.max_entries)
            .map_err(|_| Refusal::Invalid("max_entries is negative".to_owned()))?;
        let after = match request.starting_token.as_str() {
            "" => None,
            token => {
                Some(SnapshotId::parse(token).ok_or_else(|| Refusal::BadToken(token.to_owned()))?)
            }
        };
        let mut records = self.matching(request)?;
        records.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        records.retain(|record| after.as_ref().is_none_or(|after| record.id > *after));
        let more = most != 0 && records.len() > most;
        if more {
            records.truncate(most);
        }
        let next_token = records.last().filter(|_| more).map(|record| record.id.to_string());
        let entry = |record: &SnapshotRecord| Entry { snapshot: Some(describe(record)) };
        Ok(ListSnapshotsResponse {
            entries: records.iter().map(entry).collect(),
            next_token: next_token.unwrap_or_default(),
        })
    }

    fn matching(&self, request: &ListSnapshotsRequest) -> Result<Vec<SnapshotRecord>, Refusal> {
        let from = request.source_volume_id.as_str();
        let fits = |record: &SnapshotRecord| from.is_empty() || record.source.as_str() == from;
        if !request.snapshot_id.is_empty() {
            let id = SnapshotId::parse(&request.snapshot_id);
            let found = id.map(|id| self.find_snapshot(&id)).transpose()?.flatten();
            return Ok(found.into_iter().map(|(_, record)| record).filter(fits).collect());
        }
        let mut records = Vec::new();
        for pool in &self.pools {
            for id in pool.snapshots()? {
                // Gone meanwhile, or unusable: `Pool::open` reported the latter.
                let Ok(Some((_, record))) = self.find_snapshot(&id) else { continue };
                if fits(&record) {
                    records.push(record);
                }
            }
        }
        Ok(records)
    }

    pub(crate) fn get_snapshot(
        &self,
        request: &GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, Refusal> {
        let given = required_short("snapshot_id", &request.snapshot_id)?;
        let (_, record) = self.need_snapshot(given)?;
        Ok(GetSnapshotResponse { snapshot: Some(describe(&record)) })
    }
}
