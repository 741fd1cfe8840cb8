//! Snapshots in a pool: an image that never changes, and the record beside it.
//!
//! | name | meaning |
//! |---|---|
//! | `<snapshot>.json` | the snapshot exists; its record |
//! | `<snapshot>.img` | its image |
//! | `.new-<snapshot>.img`, `.new-<snapshot>.json` | a snapshot that has not been committed |
//! | `.del-<snapshot>.json` | a deletion that has been committed |
//! | `<group>.json` | the group exists, and so do the snapshots that say they belong to it |
//! | `.tmp-<group>.json` | a group that has not been committed |
//! | `.del-<group>.json` | a group whose deletion has been committed |
//! | `.frz-<volume>-<hash>` | a node froze the volume's filesystem, or is about to |

use std::collections::HashMap;
use std::fs::File;

use jiff::Timestamp;
use rustix::fs::{OFlags, RenameFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::accounts::Promise;
use super::record::{Content, VERSION};
use super::{Pool, PoolError, RECORD_LIMIT_BYTES, names, sealed};
use crate::config::FsType;
use crate::copy::{self, Method};
use crate::fault::Leak;
use crate::id::{GroupId, SnapshotId, VolumeId};

/// One snapshot, as recorded in `<id>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRecord {
    pub version: u32,
    /// The handle; equal to the file's name.
    pub id: SnapshotId,
    /// The name it was created under: the caller's idempotency key.
    pub name: String,
    /// The volume it was cut from, which may be gone.
    pub source: VolumeId,
    /// Size of that volume when it was cut.
    pub size_bytes: u64,
    /// Most bytes the image can ever occupy: it never changes, so what holds data.
    pub data_bytes: u64,
    /// The filesystem that the volume was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fstype: Option<FsType>,
    /// The volume was made for raw block access.
    #[serde(default)]
    pub block: bool,
    /// What was known of the volume's bytes.
    pub content: Content,
    /// The image shares blocks with the volume's.
    #[serde(default)]
    pub shares: bool,
    /// The group it was cut with. It exists only as long as the group does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    pub created: Timestamp,
}

/// A group of snapshots, as recorded in `<id>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRecord {
    pub version: u32,
    /// The handle; equal to the file's name.
    pub id: GroupId,
    /// The name it was created under: the caller's idempotency key.
    pub name: String,
    /// The snapshots, in order of their sources.
    pub members: Vec<Member>,
    pub created: Timestamp,
}

/// A snapshot of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub source: VolumeId,
    pub snapshot: SnapshotId,
}

fn image(id: &SnapshotId) -> String {
    format!("{id}.img")
}

fn new_image(id: &SnapshotId) -> String {
    format!(".new-{id}.img")
}

fn new_record(id: &SnapshotId) -> String {
    format!(".new-{id}.json")
}

fn record(id: &str) -> String {
    format!("{id}.json")
}

fn temporary(id: &str) -> String {
    format!(".tmp-{id}.json")
}

fn deleting(id: &str) -> String {
    format!(".del-{id}.json")
}

impl Pool {
    /// What a file occupies; nothing when it is not there.
    pub(super) fn allocated_bytes(&self, name: &str) -> Result<u64, PoolError> {
        let stat = self.io("look at an image", self.dir.stat(name))?;
        Ok(stat.map_or(0, |stat| stat.st_blocks.max(0).cast_unsigned() * 512))
    }

    /// Whether images in this pool can share blocks, asked of the filesystem itself.
    pub(super) fn probe_sharing(&self) -> Result<bool, PoolError> {
        const NAMES: [&str; 2] = [".probe-a", ".probe-b"];
        let [from, to] = NAMES.map(|name| self.dir.write_unflushed(name, &[1; 4096]));
        let can = match (from, to) {
            (Ok(from), Ok(to)) => Ok(copy::can_share(&from, &to).unwrap_or(false)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        for name in NAMES {
            self.io("tidy", self.dir.remove(name))?;
        }
        match can {
            // A pool that is too full to say is one that cannot, until the next start. Its volumes
            // can be read all the same.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                tracing::warn!(pool = %self.name, "the pool's disk is full: no blocks are shared");
                Ok(false)
            }
            can => self.io("probe it", can),
        }
    }

    /// An empty file that is to become a snapshot's image, with room for `bytes` set aside.
    pub fn draft_snapshot(&self, id: &SnapshotId, bytes: u64) -> Result<File, PoolError> {
        self.finish_snapshot_delete(id)?;
        // Not stretched by any ratio: what is copied is really written.
        let promise = Promise { bytes, grows: false, shares: false };
        self.reserve(id.as_str(), promise, 1.0)?;
        let made = self.io("make an image", self.dir.create_file(&new_image(id)));
        self.faults.at("snapshot.drafted");
        if made.is_err() {
            self.release(id.as_str());
        }
        made
    }

    /// Gives a draft the id that it is to be committed under. Another process may be about to commit the same.
    pub fn rename_draft(&self, draft: &SnapshotId, id: &SnapshotId) -> Result<(), PoolError> {
        let (from, to) = (new_image(draft), new_image(id));
        match self.dir.rename(&from, &to, RenameFlags::NOREPLACE) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(PoolError::Importing(id.clone()))
            }
            renamed => self.io("name a draft", renamed),
        }
    }

    /// Throws a draft away.
    pub fn drop_draft(&self, id: &SnapshotId) -> Result<(), PoolError> {
        self.io("remove an image", self.dir.remove(&new_image(id)))?;
        self.io("remove a record", self.dir.remove(&new_record(id)))?;
        self.release(id.as_str());
        Ok(())
    }

    /// Makes the finished draft the snapshot that `record` describes. It is durable afterwards.
    pub fn commit_snapshot(
        &self,
        record: &mut SnapshotRecord,
        draft: &File,
        method: Method,
    ) -> Result<(), PoolError> {
        let id = record.id.clone();
        self.io("flush an image", draft.sync_all())?;
        record.data_bytes = self.allocated_bytes(&new_image(&id))?;
        record.shares = method == Method::Shared;
        self.io("write a record", self.dir.write_new(&new_record(&id), &sealed::seal(record)))?;
        self.faults.at("snapshot.recorded");
        let name = |from: &str, to: &str| self.dir.rename(from, to, RenameFlags::NOREPLACE);
        self.io("name an image", name(&new_image(&id), &image(&id)))?;
        self.faults.at("snapshot.image-named");
        let named = name(&new_record(&id), &self::record(id.as_str()));
        if named.is_err() {
            let _ = self.dir.remove(&image(&id));
        }
        self.io("name a record", named)?;
        self.io("flush it", self.dir.sync())?;
        self.set_reserved(id.as_str(), promise(record));
        Ok(())
    }

    /// The record of a snapshot; `None` when there is no such snapshot.
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, PoolError> {
        let found: Option<SnapshotRecord> = self.read_as(id.as_str())?;
        match found {
            Some(found) if found.version > VERSION || found.id != *id => {
                Err(unusable(id.as_str(), "it is of another version or of another snapshot"))
            }
            found => Ok(found),
        }
    }

    /// The record of a group; `None` when there is no such group.
    pub fn group(&self, id: &GroupId) -> Result<Option<GroupRecord>, PoolError> {
        let found: Option<GroupRecord> = self.read_as(id.as_str())?;
        match found {
            Some(found) if found.version > VERSION || found.id != *id => {
                Err(unusable(id.as_str(), "it is of another version or of another group"))
            }
            found => Ok(found),
        }
    }

    fn read_as<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, PoolError> {
        let read = self.dir.read(&record(id), RECORD_LIMIT_BYTES);
        let bytes = self.io("read a record", read)?;
        let bad = |why: sealed::UnsealError| unusable(id, &why.to_string());
        let parse = |bytes: Vec<u8>| sealed::unseal(&bytes).map_err(bad);
        bytes.map(parse).transpose()
    }

    /// Opens the image of a snapshot.
    pub fn snapshot_image(&self, id: &SnapshotId) -> Result<File, PoolError> {
        match self.dir.open_file(&image(id), OFlags::RDONLY) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(unusable(id.as_str(), "its image file is missing"))
            }
            opened => self.io("open an image", opened),
        }
    }

    /// All snapshots that were committed, also those whose group was not.
    pub fn snapshots(&self) -> Result<Vec<SnapshotId>, PoolError> {
        let names = self.io("list it", self.dir.names())?;
        let id = |name: &String| SnapshotId::parse(name.strip_suffix(".json")?);
        Ok(names.iter().filter_map(id).collect())
    }

    /// Removes a snapshot; one that is not there is as good.
    pub fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), PoolError> {
        self.retire(id.as_str(), "snapshot.retired")?;
        self.finish_snapshot_delete(id)
    }

    /// Commits a deletion.
    fn retire(&self, id: &str, point: &'static str) -> Result<(), PoolError> {
        if self.io("look for a record", self.dir.has_file(&record(id)))? {
            let renamed = self.dir.rename(&record(id), &deleting(id), RenameFlags::empty());
            self.io("retire a record", renamed)?;
            self.io("flush it", self.dir.sync())?;
            self.faults.at(point);
        }
        Ok(())
    }

    fn finish_snapshot_delete(&self, id: &SnapshotId) -> Result<(), PoolError> {
        if !self.io("look for leftovers", self.dir.has_file(&deleting(id.as_str())))? {
            return Ok(());
        }
        if !self.faults.forgets(Leak::SnapshotImage) {
            self.io("remove an image", self.dir.remove(&image(id)))?;
        }
        self.faults.at("snapshot.image-removed");
        self.io("remove a record", self.dir.remove(&deleting(id.as_str())))?;
        self.release(id.as_str());
        Ok(())
    }

    /// Makes a group of snapshots exist, all of which are committed.
    pub fn commit_group(&self, group: &GroupRecord) -> Result<(), PoolError> {
        let (temporary, name) = (temporary(group.id.as_str()), record(group.id.as_str()));
        self.io("write a record", self.dir.write_new(&temporary, &sealed::seal(group)))?;
        self.faults.at("group.recorded");
        let named = self.dir.rename(&temporary, &name, RenameFlags::empty());
        self.io("name a record", named)?;
        self.faults.at("group.named");
        self.io("flush it", self.dir.sync())
    }

    /// Commits the end of a group: from here on its snapshots do not exist.
    pub fn retire_group(&self, id: &GroupId) -> Result<(), PoolError> {
        self.retire(id.as_str(), "group.retired")
    }

    /// Forgets a retired group whose snapshots are gone.
    pub fn forget_group(&self, id: &GroupId) -> Result<(), PoolError> {
        self.io("remove a record", self.dir.remove(&deleting(id.as_str())))
    }

    /// Undoes what a crash left of snapshots. Members of groups are left for those who know all
    /// pools, because their group may be in another one.
    pub(super) fn settle_snapshots(&self) -> Result<(), PoolError> {
        let names = self.io("list it", self.dir.names())?;
        for name in &names {
            let within = |start: &str, end: &str| {
                name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)).map(str::to_owned)
            };
            if let Some(id) = within(".del-", ".json").as_deref().and_then(SnapshotId::parse) {
                self.finish_snapshot_delete(&id)?;
            } else if let Some(id) = within(".new-", ".json").as_deref().and_then(SnapshotId::parse)
            {
                // Not committed, so an image that has its name already goes as well.
                if !self.io("look for a record", self.dir.has_file(&record(id.as_str())))? {
                    self.io("tidy", self.dir.remove(&image(&id)))?;
                }
                self.io("tidy", self.dir.remove(name))?;
            } else if within(".new-", ".img").is_some_and(|id| SnapshotId::parse(&id).is_some())
                || within(".tmp-", ".json").is_some_and(|id| GroupId::parse(&id).is_some())
                || name.starts_with(".probe-")
            {
                self.io("tidy", self.dir.remove(name))?;
            }
        }
        Ok(())
    }

    /// What each snapshot occupies, or may come to occupy alone.
    pub(super) fn snapshot_promises(
        &self,
        promises: &mut HashMap<String, Promise>,
    ) -> Result<(), PoolError> {
        for id in self.snapshots()? {
            let promise = match self.snapshot(&id) {
                Ok(Some(record)) => promise(&record),
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(pool = %self.name, snapshot = %id, %error, "unusable snapshot left alone");
                    let bytes = self.allocated_bytes(&image(&id))?;
                    Promise { bytes, grows: false, shares: false }
                }
            };
            promises.insert(id.into(), promise);
        }
        Ok(())
    }

    /// Snapshots that say they belong to a group, and groups that are on their way out.
    pub fn group_leftovers(&self) -> Result<(Vec<SnapshotRecord>, Vec<GroupId>), PoolError> {
        let mut members = Vec::new();
        for id in self.snapshots()? {
            if let Ok(Some(record)) = self.snapshot(&id)
                && record.group.is_some()
            {
                members.push(record);
            }
        }
        let names = self.io("list it", self.dir.names())?;
        let retired = |name: &String| {
            GroupId::parse(name.strip_prefix(".del-").and_then(|rest| rest.strip_suffix(".json"))?)
        };
        Ok((members, names.iter().filter_map(retired).collect()))
    }

    /// The file that records a freeze on this node, made when it is missing.
    pub fn freeze_note(&self, id: &VolumeId, node_id: &str) -> Result<File, PoolError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
        let opened = self.dir.open_file(&names::freeze(id, node_id), flags);
        let file = self.io("open the note of a freeze", opened)?;
        self.io("flush it", self.dir.sync())?;
        Ok(file)
    }

    /// Removes the note of a freeze that is over.
    pub fn forget_freeze(&self, id: &VolumeId, node_id: &str) -> Result<(), PoolError> {
        self.io("remove a note", self.dir.remove(&names::freeze(id, node_id)))
    }

    /// Volumes with a note that this node froze them.
    pub fn freeze_notes(&self, node_id: &str) -> Result<Vec<VolumeId>, PoolError> {
        let names = self.io("list it", self.dir.names())?;
        let mine = |name: &String| {
            let id = VolumeId::parse(name.strip_prefix(".frz-")?.get(..36)?)?;
            (*name == names::freeze(&id, node_id)).then_some(id)
        };
        Ok(names.iter().filter_map(mine).collect())
    }
}

fn promise(record: &SnapshotRecord) -> Promise {
    Promise { bytes: record.data_bytes, grows: false, shares: record.shares }
}

fn unusable(id: &str, why: &str) -> PoolError {
    PoolError::BadSnapshot { id: id.to_owned(), why: why.to_owned() }
}
