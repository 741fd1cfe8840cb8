//! ControllerPublishVolume and ControllerUnpublishVolume of a `shared` driver.
//!
//! An attachment is leave to use a volume, written into its record. It is exclusive unless every
//! holder only reads, it never expires by time, and it does not end while the node still has the
//! volume staged: two nodes writing to one image would destroy it.

use longshore_csi::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
};

use crate::access::Access;
use crate::driver::Inner;
use crate::id::VolumeId;
use crate::pool::record::{Attachment, Record};
use crate::refusal::{Refusal, required_short};

/// What to do about a wanted attachment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It stands already.
    Stands,
    /// It can be added.
    Add,
    /// The node has the volume in another way.
    Differs,
    /// The named node has the volume to itself.
    HeldBy(String),
}

/// Decides from what is recorded. Pure.
#[must_use]
pub(crate) fn decide(existing: &[Attachment], wanted: &Attachment) -> Verdict {
    if let Some(mine) = existing.iter().find(|one| one.node == wanted.node) {
        return if mine == wanted { Verdict::Stands } else { Verdict::Differs };
    }
    let alone = |one: &&Attachment| !(one.many_nodes && wanted.many_nodes);
    match existing.iter().find(alone) {
        Some(holder) => Verdict::HeldBy(holder.node.clone()),
        None => Verdict::Add,
    }
}

impl Inner {
    /// Gives a node leave to use a volume.
    pub(crate) fn controller_publish(
        &self,
        request: &ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        let node = required_short("node_id", &request.node_id)?;
        let access = Access::parse(request.volume_capability.as_ref(), self.config.kind)?;
        let missing = || Refusal::NotFound(format!("volume {given} does not exist"));
        let id = VolumeId::parse(given).ok_or_else(missing)?;
        let (pool, record) = self.need(&id)?;
        if !pool.knows_node(node)? {
            return Err(Refusal::NotFound(format!(
                "node {node} does not exist or lacks pool {}",
                pool.name()
            )));
        }
        if let Some(conflict) = access.conflict_with(&record) {
            return Err(Refusal::Precondition(conflict));
        }
        let wanted = Attachment {
            node: node.to_owned(),
            read_only: request.readonly || access.reads_only(),
            many_nodes: access.many_nodes(),
            block: access.is_block(),
        };
        pool.update(&id, |record| self.add_attachment(record, &wanted))?;
        self.fault("attach.recorded");
        self.attached.lock().entry(wanted.node).or_default().insert(id);
        Ok(ControllerPublishVolumeResponse::default())
    }

    fn add_attachment(&self, record: &mut Record, wanted: &Attachment) -> Result<(), Refusal> {
        let id = &record.id;
        match decide(&record.attachments, wanted) {
            Verdict::Stands => return Ok(()),
            Verdict::Differs => {
                return Err(Refusal::Exists(format!(
                    "volume {id} is attached to node {} in another way",
                    wanted.node
                )));
            }
            Verdict::HeldBy(holder) => {
                return Err(Refusal::Precondition(format!(
                    "volume {id} is attached to node {holder}"
                )));
            }
            Verdict::Add => {}
        }
        let most = self.config.max_volumes as usize;
        let count = self.attached.lock().get(&wanted.node).map_or(0, |volumes| volumes.len());
        if most != 0 && count >= most {
            return Err(Refusal::Exhausted(format!(
                "node {} has {count} volumes attached, which is the most it takes",
                wanted.node
            )));
        }
        record.attachments.push(wanted.clone());
        Ok(())
    }

    /// Takes the leave back; from every node when none is named.
    pub(crate) fn controller_unpublish(
        &self,
        request: &ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Refusal> {
        let given = required_short("volume_id", &request.volume_id)?;
        let done = Ok(ControllerUnpublishVolumeResponse {});
        // A volume that does not exist is attached nowhere.
        let Some(id) = VolumeId::parse(given) else { return done };
        let Some((pool, _)) = self.find(&id)? else { return done };
        let concerns = |node: &str| request.node_id.is_empty() || request.node_id == node;
        let mut freed: Vec<String> = Vec::new();
        pool.update(&id, |record| {
            freed = record.attachments.iter().map(|one| one.node.clone()).collect();
            freed.retain(|node| concerns(node));
            for node in &freed {
                if pool.is_staged(&id, node)? {
                    let text = format!("volume {id} is still staged on node {node}");
                    return Err(Refusal::Precondition(text));
                }
            }
            record.attachments.retain(|one| !concerns(&one.node));
            Ok(())
        })?;
        self.fault("detach.recorded");
        let mut attached = self.attached.lock();
        for node in freed {
            if let Some(volumes) = attached.get_mut(&node) {
                volumes.remove(&id);
            }
        }
        done
    }

    /// Counts what is recorded, so that a node's limit holds across restarts.
    pub(crate) fn count_attachments(&self) -> Result<(), Refusal> {
        let mut attached = self.attached.lock();
        for pool in &self.pools {
            for id in pool.list()? {
                let Ok(Some(record)) = pool.read(&id) else { continue };
                for attachment in record.attachments {
                    attached.entry(attachment.node).or_default().insert(id.clone());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(node: &str, many_nodes: bool) -> Attachment {
        Attachment { node: node.to_owned(), read_only: many_nodes, many_nodes, block: false }
    }

    #[test]
    fn exclusive_unless_all_read() {
        let block = Attachment { block: true, ..to("a", false) };
        let cases: [(&str, &[Attachment], Attachment, Verdict); 7] = [
            ("free", &[], to("a", false), Verdict::Add),
            ("again", &[to("a", false)], to("a", false), Verdict::Stands),
            ("another way", &[to("a", false)], block, Verdict::Differs),
            ("held", &[to("b", false)], to("a", false), Verdict::HeldBy("b".into())),
            ("reader beside writer", &[to("b", false)], to("a", true), Verdict::HeldBy("b".into())),
            ("writer beside reader", &[to("b", true)], to("a", false), Verdict::HeldBy("b".into())),
            ("readers", &[to("b", true), to("c", true)], to("a", true), Verdict::Add),
        ];
        for (name, existing, wanted, want) in cases {
            assert_eq!(decide(existing, &wanted), want, "{name}");
        }
    }
}
