//! ListVolumes.

use longshore_csi::v1::list_volumes_response::{Entry, VolumeStatus};
use longshore_csi::v1::{ListVolumesRequest, ListVolumesResponse};

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::refusal::Refusal;

impl Inner {
    /// One page of volumes in order of their ids. A token is the last id of the page before, so
    /// it stays good when volumes come and go.
    pub(crate) fn list_volumes(
        &self,
        request: &ListVolumesRequest,
    ) -> Result<ListVolumesResponse, Refusal> {
        let most = usize::try_from(request.max_entries)
            .map_err(|_| Refusal::Invalid("max_entries is negative".to_owned()))?;
        let after = match request.starting_token.as_str() {
            "" => None,
            token => {
                Some(VolumeId::parse(token).ok_or_else(|| Refusal::BadToken(token.to_owned()))?)
            }
        };
        let mut ids = Vec::new();
        for pool in &self.pools {
            ids.extend(pool.list()?.into_iter().map(|id| (id, pool)));
        }
        ids.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        ids.retain(|(id, _)| after.as_ref().is_none_or(|after| id > after));
        let more = most != 0 && ids.len() > most;
        if more {
            ids.truncate(most);
        }
        let next_token = ids.last().filter(|_| more).map(|(id, _)| id.to_string());
        let mut entries = Vec::with_capacity(ids.len());
        for (id, pool) in ids {
            // Gone since the directory was read, or unusable: `Pool::open` reported the latter.
            let Ok(Some(record)) = pool.read(&id) else { continue };
            // An inline volume is its pod's business.
            if record.ephemeral {
                continue;
            }
            let published_node_ids =
                record.attachments.iter().map(|one| one.node.clone()).collect();
            let volume_condition = Some(self.condition(pool, &record, pool.space()?)?);
            let status = VolumeStatus { published_node_ids, volume_condition };
            entries
                .push(Entry { volume: Some(self.describe(pool, &record)), status: Some(status) });
        }
        Ok(ListVolumesResponse { entries, next_token: next_token.unwrap_or_default() })
    }
}
