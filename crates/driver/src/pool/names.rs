//! The file names of a pool, and what each says about how far a change had come.
//!
//! | name | meaning |
//! |---|---|
//! | `<id>.json` | the volume exists; its record |
//! | `<id>.img` | its image |
//! | `.new-<id>.img`, `.new-<id>.json` | a creation that has not been committed |
//! | `.del-<id>.json` | a deletion that has been committed; the image is still to go |
//! | `.fmt-<id>.img` | a filesystem in the making, not yet the volume's image |
//! | `.tmp-<id>.json` | a record being rewritten |
//! | `.stg-<id>-<hash>.json` | the volume is staged on a node, or about to be |
//! | `.node-<hash>.json` | a node that has this pool (`shared`) |
//! | `.ask-<hash>` | the socket through which a node of this machine quiesces a volume |
//! | `.reserve` | room for notes and records in a pool with thick volumes |
//! | `.lock` | held by the one controller of the pool |
//!
//! Those of snapshots are in [`super::snapshots`].

use crate::id::VolumeId;

/// Held by the pool's controller.
pub const LOCK: &str = ".lock";

/// Room for small files.
pub const RESERVE: &str = ".reserve";

/// One of the names above, read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Record(VolumeId),
    Image(VolumeId),
    NewImage(VolumeId),
    NewRecord(VolumeId),
    Deleting(VolumeId),
    Formatting(VolumeId),
    Temporary(VolumeId),
    Staged(VolumeId),
    /// Not ours, or nothing that needs looking after.
    Other,
}

#[must_use]
pub fn record(id: &VolumeId) -> String {
    format!("{id}.json")
}

#[must_use]
pub fn image(id: &VolumeId) -> String {
    format!("{id}.img")
}

/// Name of an image before its volume exists.
#[must_use]
pub fn new_image(id: &VolumeId) -> String {
    format!(".new-{id}.img")
}

/// Name of a record before its volume exists.
#[must_use]
pub fn new_record(id: &VolumeId) -> String {
    format!(".new-{id}.json")
}

/// Name of a record whose volume is gone.
#[must_use]
pub fn deleting(id: &VolumeId) -> String {
    format!(".del-{id}.json")
}

/// Name of a filesystem in the making.
#[must_use]
pub fn formatting(id: &VolumeId) -> String {
    format!(".fmt-{id}.img")
}

/// Name under which a record is rewritten.
#[must_use]
pub fn temporary(id: &VolumeId) -> String {
    format!(".tmp-{id}.json")
}

/// Name of a node's note that it has the volume staged.
#[must_use]
pub fn staged(id: &VolumeId, node_id: &str) -> String {
    format!(".stg-{id}-{}.json", hash(node_id))
}

/// Name of a node's note that it froze the volume's filesystem.
#[must_use]
pub fn freeze(id: &VolumeId, node_id: &str) -> String {
    format!(".frz-{id}-{}", hash(node_id))
}

/// Name of the file by which a node shows that it has the pool.
#[must_use]
pub fn node(node_id: &str) -> String {
    format!(".node-{}.json", hash(node_id))
}

/// Name of the socket through which a node quiesces its volumes.
#[must_use]
pub fn quiesce_socket(node_id: &str) -> String {
    format!(".ask-{}", hash(node_id))
}

/// Node ids come from outside, so they never appear in a file name as they are.
pub(super) fn hash(text: &str) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(Sha256::digest(text.as_bytes()))[..HASH_DIGITS].to_owned()
}

const HASH_DIGITS: usize = 32;

/// Reads a name back.
#[must_use]
pub fn parse(name: &str) -> Entry {
    type Make = fn(VolumeId) -> Entry;
    let forms: [(&str, &str, Make); 7] = [
        ("", ".json", Entry::Record),
        ("", ".img", Entry::Image),
        (".new-", ".img", Entry::NewImage),
        (".new-", ".json", Entry::NewRecord),
        (".del-", ".json", Entry::Deleting),
        (".fmt-", ".img", Entry::Formatting),
        (".tmp-", ".json", Entry::Temporary),
    ];
    let note = name.strip_prefix(".stg-").and_then(|rest| rest.strip_suffix(".json"));
    let note = note
        .and_then(|rest| rest.len().checked_sub(HASH_DIGITS + 1))
        .and_then(|end| name.get(5..5 + end));
    if let Some(id) = note.and_then(VolumeId::parse) {
        return Entry::Staged(id);
    }
    for (prefix, suffix, make) in forms {
        let id = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
        if let Some(id) = id.and_then(VolumeId::parse) {
            return make(id);
        }
    }
    Entry::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let id = VolumeId::for_name("", "a");
        assert_eq!(parse(&record(&id)), Entry::Record(id.clone()));
        assert_eq!(parse(&image(&id)), Entry::Image(id.clone()));
        assert_eq!(parse(&new_image(&id)), Entry::NewImage(id.clone()));
        assert_eq!(parse(&new_record(&id)), Entry::NewRecord(id.clone()));
        assert_eq!(parse(&deleting(&id)), Entry::Deleting(id.clone()));
        assert_eq!(parse(&formatting(&id)), Entry::Formatting(id.clone()));
        assert_eq!(parse(&temporary(&id)), Entry::Temporary(id.clone()));
        assert_eq!(parse(&staged(&id, "n")), Entry::Staged(id));
        for name in [
            LOCK,
            RESERVE,
            ".stg-x.json",
            ".stg-é.json",
            "lost+found",
            "notes.json",
            "vol-1.img",
            ".new-x.img",
            &node("n"),
            &quiesce_socket("n"),
        ] {
            assert_eq!(parse(name), Entry::Other, "{name}");
        }
    }
}
