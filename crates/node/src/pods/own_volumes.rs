//! Volumes that the node makes itself: scratch directories, host paths, and files from the API.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use longshore_cluster::{Api, ApiError};
use longshore_core::model::kinds::{Pod, PodVolume};
use longshore_core::stage::paths::NodePaths;
use serde_json::Value;

use super::api_files;
use super::host_path;
use super::memory::mount_memory;
use super::scratch::{Medium, Scratch};

/// Why a volume cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnVolumeError {
    /// A file or directory cannot be made.
    #[error("volume {volume}: {path}: {source}")]
    Io { volume: String, path: PathBuf, source: io::Error },
    /// The API cannot be asked.
    #[error("volume {volume}: {source}")]
    Api { volume: String, source: ApiError },
    /// The object does not exist, or lacks a key.
    #[error("volume {volume}: {what} not found")]
    Missing { volume: String, what: String },
    /// It asks for something that this node does not have.
    #[error("volume {volume}: {what}")]
    Refused {
        volume: String,
        /// What, and what to write instead.
        what: String,
    },
    /// A kind of volume that this node does not make.
    #[error(
        "volume {volume}: kind \"{kind}\" is not served by this node; use one of: {}",
        SERVED.join(", ")
    )]
    Unsupported { volume: String, kind: String },
}

/// Makes the volumes of a pod that are made here; their directories by name, or which one failed and why.
pub(super) async fn make_all(
    sources: api_files::Sources<'_>,
    paths: &NodePaths,
    pod: &Pod,
) -> Result<BTreeMap<String, PathBuf>, (String, OwnVolumeError)> {
    let mut made = BTreeMap::new();
    for volume in &pod.spec.volumes {
        let named = |error| (volume.name.clone(), error);
        if let Some(path) = make(sources, paths, pod, volume).await.map_err(named)? {
            made.insert(volume.name.clone(), path);
        }
    }
    Ok(made)
}

/// Refuses volumes that would show a pod the instance's own directories.
pub(super) fn refuse_hidden(
    paths: &NodePaths,
    hidden: &[PathBuf],
    pod: &Pod,
    mounted: &BTreeMap<String, PathBuf>,
) -> Result<(), (String, OwnVolumeError)> {
    for (name, path) in mounted {
        if host_path::is_of_the_host(paths, pod, path) && !privileged_only(pod, name) {
            let failed =
                |source| OwnVolumeError::Io { volume: name.clone(), path: path.clone(), source };
            host_path::refuse_own(path, hidden).map_err(failed).map_err(|e| (name.clone(), e))?;
        }
    }
    Ok(())
}

/// Makes one volume if it is of a kind that is made here; `None` for CSI volumes.
async fn make(
    sources: api_files::Sources<'_>,
    paths: &NodePaths,
    pod: &Pod,
    volume: &PodVolume,
) -> Result<Option<PathBuf>, OwnVolumeError> {
    let uid = &pod.metadata.uid;
    let maker = Maker { volume: &volume.name, group: pod.spec.security_context.fs_group };
    if let Some(source) = &volume.empty_dir {
        let dir = paths.own_volume(uid, "empty-dir", &volume.name);
        return maker.scratch(&dir, source).map(|()| Some(dir));
    }
    if api_files::is_one(volume) {
        return api_files::write(sources, paths, pod, volume).await;
    }
    if let Some(source) = &volume.host_path {
        let path = PathBuf::from(&source.path);
        host_path::check(source).map_err(maker.io(&path))?;
        return Ok(Some(path));
    }
    let csi = volume.csi.is_some()
        || volume.ephemeral.is_some()
        || volume.persistent_volume_claim.is_some();
    if csi {
        return Ok(None);
    }
    let volume = volume.name.clone();
    match unserved_kind(sources.api, pod, &volume).await {
        Ok(kind) => Err(OwnVolumeError::Unsupported { volume, kind }),
        Err(source) => Err(OwnVolumeError::Api { volume, source }),
    }
}

/// Kinds of volumes that pods of this node can have.
const SERVED: [&str; 9] = [
    "persistentVolumeClaim",
    "ephemeral",
    "csi",
    "emptyDir",
    "configMap",
    "secret",
    "projected",
    "downwardAPI",
    "hostPath",
];

/// The kind of a volume that is not in the node's own picture of pods, which has only what is served.
async fn unserved_kind(api: &Api, pod: &Pod, volume: &str) -> Result<String, ApiError> {
    let raw = api.get_raw::<Pod>(&pod.metadata.key()).await?.unwrap_or_default();
    let volumes = raw["spec"]["volumes"].as_array().into_iter().flatten();
    Ok(kind_of(volumes, volume).unwrap_or_else(|| "unknown".to_owned()))
}

fn kind_of<'a>(mut volumes: impl Iterator<Item = &'a Value>, name: &str) -> Option<String> {
    let volume = volumes.find(|volume| volume["name"] == name)?.as_object()?;
    volume.keys().find(|key| *key != "name").cloned()
}

/// Whether only privileged containers mount a volume.
fn privileged_only(pod: &Pod, volume: &str) -> bool {
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let mut users = all.filter(|one| one.volume_mounts.iter().any(|mount| mount.name == volume));
    users.all(|one| one.security_context.privileged == Some(true))
}

struct Maker<'a> {
    volume: &'a str,
    group: Option<u32>,
}

impl Maker<'_> {
    fn io<'p>(&self, path: &'p Path) -> impl Fn(io::Error) -> OwnVolumeError + use<'_, 'p> {
        |source| OwnVolumeError::Io {
            volume: self.volume.to_owned(),
            path: path.to_owned(),
            source,
        }
    }

    fn refused(&self, what: String) -> OwnVolumeError {
        OwnVolumeError::Refused { volume: self.volume.to_owned(), what }
    }

    fn scratch(&self, dir: &Path, source: &Value) -> Result<(), OwnVolumeError> {
        let scratch = Scratch::of(source).map_err(|error| self.refused(error.to_string()))?;
        if scratch.medium == Medium::Disk && dir.exists() {
            return Ok(());
        }
        let failed = self.io(dir);
        fs::create_dir_all(dir).map_err(&failed)?;
        let mode = if self.group.is_some() { 0o2777 } else { 0o777 };
        if scratch.medium == Medium::Memory {
            mount_memory(dir, mode, scratch.limit).map_err(&failed)?;
        }
        if let Some(group) = self.group {
            chown(dir, None, Some(group)).map_err(&failed)?;
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_that_is_not_served_is_named_with_those_that_are() {
        let volumes = [
            json!({"name": "a", "emptyDir": {}}),
            json!({"name": "d", "nfs": {"server": "s", "path": "/p"}}),
        ];
        let kind = kind_of(volumes.iter(), "d").unwrap();
        let refused = OwnVolumeError::Unsupported { volume: "d".into(), kind };
        assert_eq!(
            refused.to_string(),
            "volume d: kind \"nfs\" is not served by this node; use one of: persistentVolumeClaim, \
             ephemeral, csi, emptyDir, configMap, secret, projected, downwardAPI, hostPath"
        );
        assert_eq!(kind_of(volumes.iter(), "b"), None);
    }
}
