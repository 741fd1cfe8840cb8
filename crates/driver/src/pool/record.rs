//! What is written beside each image: the only state a volume has apart from its bytes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::FsType;
use crate::id::{SnapshotId, VolumeId};

/// The form this program writes; a higher number comes from a newer one and is left alone.
pub const VERSION: u32 = 1;

/// Class parameter: how often free space may be promised.
pub const OVERCOMMIT: &str = "overcommit";

/// Class parameter: `thin` (the default) or `thick`.
pub const PROVISIONING: &str = "provisioning";

/// One volume, as recorded in `<id>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub version: u32,
    /// The handle; equal to the file's name.
    pub id: VolumeId,
    /// The name it was created under: the caller's idempotency key.
    pub name: String,
    pub capacity_bytes: u64,
    /// The filesystem asked for at creation; none when only raw block access was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fstype: Option<FsType>,
    /// Raw block access was asked for at creation.
    #[serde(default)]
    pub block: bool,
    /// Made for one pod and one path of it, and gone with it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ephemeral: bool,
    /// The class parameters, to tell a repeated request from another one.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Parameters that may change while the volume lives.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutable_parameters: BTreeMap<String, String>,
    /// Whether the image may still be formatted.
    pub content: Content,
    /// What it was copied from, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The image was made by sharing the blocks of its source.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shares: bool,
    /// Nodes that may use the volume (`shared` driver only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    pub created: Timestamp,
}

/// What is known of the bytes in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    /// No pod has ever had access to it.
    Blank,
    /// It was handed out as a raw device: anything may be on it, and it is never formatted.
    Raw,
    /// It holds a filesystem that this driver made or found.
    Filesystem,
    /// It holds a copy of another volume's filesystem, which needs an identity of its own before
    /// it is mounted.
    Copy,
}

/// What a volume was copied from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Leave for one node to use a volume. It never expires by time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    pub node: String,
    /// The node may only read.
    pub read_only: bool,
    /// Other nodes may be attached beside it.
    pub many_nodes: bool,
    /// Handed out as a raw device.
    pub block: bool,
}

/// A volume staged on a node, or about to be: written before the first step and removed after the
/// last, so that it can only ever say too much. It is a file of its own, because on a local pool
/// it may vanish in a power failure (after which nothing is staged) and the record may not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staged {
    pub node: String,
    /// Staging path as the caller gave it.
    pub path: String,
    /// Staged as a raw device.
    pub block: bool,
    /// Staged for reading only.
    pub read_only: bool,
}

impl Record {
    /// How often the class lets free space be promised; 1 unless it says otherwise.
    #[must_use]
    pub fn overcommit(&self) -> f64 {
        if self.is_thick() {
            // Real room is needed at once.
            return 1.0;
        }
        let given = self.parameters.get(OVERCOMMIT).and_then(|text| text.parse().ok());
        given.filter(|ratio: &f64| ratio.is_finite() && *ratio >= 1.0).unwrap_or(1.0)
    }

    /// Whether no pod ever had access to its bytes.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.content == Content::Blank
    }

    /// Whether all of its bytes are set aside on disk from the start.
    #[must_use]
    pub fn is_thick(&self) -> bool {
        self.parameters.get(PROVISIONING).is_some_and(|how| how == "thick")
    }

    #[must_use]
    pub fn attachment(&self, node: &str) -> Option<&Attachment> {
        self.attachments.iter().find(|attachment| attachment.node == node)
    }
}
