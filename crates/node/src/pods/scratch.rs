//! Scratch space: what an `emptyDir` asks for, and how much of it is used.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use longshore_core::model::kinds::Pod;
use longshore_core::model::{BadQuantity, Quantity};
use longshore_files::Tree;
use serde_json::Value;

/// Where scratch space lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// In the pod's directory.
    Disk,
    /// In memory; the limit is the filesystem's size.
    Memory,
}

/// What an `emptyDir` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scratch {
    pub(super) medium: Medium,
    /// `sizeLimit` in bytes; zero means none, as for the kubelet.
    pub(super) limit: Option<u64>,
    /// The limit as it was written.
    pub(super) text: String,
}

/// What is wrong with an `emptyDir`.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScratchError {
    #[error("emptyDir medium {0:?} is not there on this node; write \"Memory\" or leave it out")]
    Medium(String),
    #[error("emptyDir sizeLimit: {0}")]
    Limit(#[source] BadQuantity),
}

impl Scratch {
    /// Reads the source of a volume.
    pub(super) fn of(source: &Value) -> Result<Self, ScratchError> {
        let medium = match source["medium"].as_str().unwrap_or_default() {
            "" => Medium::Disk,
            "Memory" => Medium::Memory,
            other => return Err(ScratchError::Medium(other.to_owned())),
        };
        let text = match &source["sizeLimit"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if text.is_empty() {
            return Ok(Self { medium, limit: None, text });
        }
        let limit: Quantity = text.parse().map_err(ScratchError::Limit)?;
        let limit = u64::try_from(limit.bytes()).ok().filter(|bytes| *bytes > 0);
        Ok(Self { medium, limit, text })
    }
}

/// The scratch volumes of a pod on disk that have a limit, which nothing but looking enforces.
pub(super) fn limited(pod: &Pod) -> Vec<(String, Scratch)> {
    let volumes = pod.spec.volumes.iter();
    volumes
        .filter_map(|volume| {
            let scratch = Scratch::of(volume.empty_dir.as_ref()?).ok()?;
            let limited = scratch.medium == Medium::Disk && scratch.limit.is_some();
            limited.then(|| (volume.name.clone(), scratch))
        })
        .collect()
}

/// Bytes on disk below a directory that pods write to; what has two names counts once.
pub(super) fn used_bytes(dir: &Path) -> io::Result<u64> {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    Tree::open(dir)?.each(|_, entry| {
        let (_, inode, names) = entry.identity();
        if entry.is_dir() || names < 2 || seen.insert(inode) {
            bytes += entry.bytes();
        }
        Ok(())
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn medium_and_limit_are_read_or_refused() {
        let disk = |limit, text: &str| Scratch { medium: Medium::Disk, limit, text: text.into() };
        for (source, expected) in [
            (json!({}), Some(disk(None, ""))),
            (json!({"sizeLimit": "1Mi"}), Some(disk(Some(1 << 20), "1Mi"))),
            (json!({"sizeLimit": "0"}), Some(disk(None, "0"))),
            (
                json!({"medium": "Memory"}),
                Some(Scratch { medium: Medium::Memory, ..disk(None, "") }),
            ),
            (json!({"medium": "HugePages"}), None),
            (json!({"sizeLimit": "lots"}), None),
        ] {
            assert_eq!(Scratch::of(&source).ok(), expected, "{source}");
        }
    }

    #[test]
    fn bytes_are_counted_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/file"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(dir.path().join("d/file"), dir.path().join("again")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        let used = used_bytes(dir.path()).unwrap();
        assert!((100_000..200_000).contains(&used), "{used}");
    }
}
