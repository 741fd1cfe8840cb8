//! Volumes whose files come from the API: `configMap`, `secret`, `downwardAPI` and `projected`.
//!
//! All files of a volume change at one moment (see [`longshore_files::write_together`]). They are written when the pod
//! starts and looked at again from time to time, which is also how a token is replaced before it ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use longshore_cluster::{Api, secrets::decode_value};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{ConfigMap, Container, Pod, PodVolume, Secret, TokenRequest};
use longshore_core::stage::paths::NodePaths;
use longshore_files::{NewFile, write_together};
use serde_json::Value;

use super::downward;
use super::memory::mount_memory;
use super::own_volumes::OwnVolumeError;
use crate::volumes::VolumeManager;

const DEFAULT_MODE: u64 = 0o644;
/// Much more than the objects of a volume can hold, old and new files together.
const MEMORY_BYTES: u64 = 32 << 20;

/// Where the content of files comes from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub api: &'a Api,
    /// Has the tokens of the pods.
    pub volumes: &'a VolumeManager,
}

/// Whether a volume's files come from the API.
pub(super) fn is_one(volume: &PodVolume) -> bool {
    plugin(volume).is_some()
}

/// The volume's directory, and whether it lies in memory.
fn plugin(volume: &PodVolume) -> Option<(&'static str, bool)> {
    if volume.config_map.is_some() {
        Some(("configmap", false))
    } else if volume.secret.is_some() {
        Some(("secret", true))
    } else if volume.projected.is_some() {
        Some(("projected", true))
    } else {
        volume.downward_api.as_ref().map(|_| ("downward-api", false))
    }
}

/// Writes the files of a volume and returns their directory; `None` for a volume of another kind.
pub(super) async fn write(
    sources: Sources<'_>,
    paths: &NodePaths,
    pod: &Pod,
    volume: &PodVolume,
) -> Result<Option<PathBuf>, OwnVolumeError> {
    let Some((plugin, in_memory)) = plugin(volume) else { return Ok(None) };
    let reader = Reader { sources, pod, volume: &volume.name };
    let files = reader.files(volume).await?;
    let dir = paths.own_volume(&pod.metadata.uid, plugin, &volume.name);
    let io = |source| OwnVolumeError::Io { volume: volume.name.clone(), path: dir.clone(), source };
    fs::create_dir_all(&dir).map_err(io)?;
    if in_memory {
        mount_memory(&dir, 0o755, Some(MEMORY_BYTES)).map_err(io)?;
    }
    place(&dir, &files, pod.spec.security_context.fs_group).map_err(io)?;
    Ok(Some(dir))
}

fn place(dir: &Path, files: &Files, group: Option<u32>) -> std::io::Result<()> {
    // The group that owns the volumes can read every file.
    let readable = if group.is_some() { 0o440 } else { 0 };
    let new = |file: &'_ File| (file.mode & 0o777) | readable;
    let files = files
        .iter()
        .map(|(path, file)| {
            let content = file.content.as_slice();
            (path.clone(), NewFile { content, mode: new(file), owner: file.owner, group })
        })
        .collect();
    write_together(dir, &files).map(drop)
}

struct File {
    content: Vec<u8>,
    mode: u32,
    owner: Option<u32>,
}

type Files = BTreeMap<PathBuf, File>;

struct Reader<'a> {
    sources: Sources<'a>,
    pod: &'a Pod,
    volume: &'a str,
}

impl Reader<'_> {
    async fn files(&self, volume: &PodVolume) -> Result<Files, OwnVolumeError> {
        let mut files = Files::new();
        if let Some(source) = &volume.config_map {
            self.config_map(source, mode(source, "defaultMode"), &mut files).await?;
        } else if let Some(source) = &volume.secret {
            let name = source["secretName"].as_str().unwrap_or_default();
            self.secret(name, source, mode(source, "defaultMode"), &mut files).await?;
        } else if let Some(source) = &volume.downward_api {
            self.downward(source, mode(source, "defaultMode"), &mut files)?;
        } else if let Some(source) = &volume.projected {
            self.projected(source, &mut files).await?;
        }
        Ok(files)
    }

    /// Later sources win over earlier ones, as in the kubelet.
    async fn projected(&self, projected: &Value, files: &mut Files) -> Result<(), OwnVolumeError> {
        let mode = mode(projected, "defaultMode");
        for source in projected["sources"].as_array().into_iter().flatten() {
            if let Some(part) = given(source, "configMap") {
                self.config_map(part, mode, files).await?;
            } else if let Some(part) = given(source, "secret") {
                self.secret(part["name"].as_str().unwrap_or_default(), part, mode, files).await?;
            } else if let Some(part) = given(source, "downwardAPI") {
                self.downward(part, mode, files)?;
            } else if let Some(part) = given(source, "serviceAccountToken") {
                self.token(part, mode, files).await?;
            } else {
                let kinds = source.as_object().map(|all| all.keys().cloned().collect::<Vec<_>>());
                return Err(self.refused(format!(
                    "the projected source {} is not known here; there are configMap, secret, downwardAPI and \
                     serviceAccountToken",
                    kinds.unwrap_or_default().join(", ")
                )));
            }
        }
        Ok(())
    }

    async fn config_map(
        &self,
        source: &Value,
        mode: u32,
        files: &mut Files,
    ) -> Result<(), OwnVolumeError> {
        let name = source["name"].as_str().unwrap_or_default();
        let key = ObjectKey::new(&self.pod.metadata.namespace, name);
        let found = self.sources.api.get::<ConfigMap>(&key).await;
        let Some(map) = found.map_err(|source| self.api(source))? else {
            return self.absent(source, format!("configmap \"{name}\""));
        };
        let decode = |value: String| decode_value(&value).unwrap_or_default();
        let text = map.data.into_iter().map(|(key, value)| (key, value.into_bytes()));
        let binary = map.binary_data.into_iter().map(|(key, value)| (key, decode(value)));
        let of = format!("configmap \"{name}\"");
        self.select(source, &of, text.chain(binary).collect(), mode, files)
    }

    async fn secret(
        &self,
        name: &str,
        source: &Value,
        mode: u32,
        files: &mut Files,
    ) -> Result<(), OwnVolumeError> {
        let key = ObjectKey::new(&self.pod.metadata.namespace, name);
        let found = self.sources.api.get::<Secret>(&key).await;
        let Some(secret) = found.map_err(|source| self.api(source))? else {
            return self.absent(source, format!("secret \"{name}\""));
        };
        let decode = |value: String| decode_value(&value).unwrap_or_default();
        let all = secret.data.into_iter().map(|(key, value)| (key, decode(value)));
        self.select(source, &format!("secret \"{name}\""), all.collect(), mode, files)
    }

    /// Takes all keys of an object, or those that `items` names.
    fn select(
        &self,
        source: &Value,
        object: &str,
        mut all: BTreeMap<String, Vec<u8>>,
        mode: u32,
        files: &mut Files,
    ) -> Result<(), OwnVolumeError> {
        let Some(items) = source["items"].as_array() else {
            let plain = |content| File { content, mode, owner: None };
            files.extend(all.into_iter().map(|(key, content)| (key.into(), plain(content))));
            return Ok(());
        };
        for item in items {
            let key = item["key"].as_str().unwrap_or_default();
            let Some(content) = all.get_mut(key).map(|content| content.clone()) else {
                self.absent(source, format!("key {key:?} of {object}"))?;
                continue;
            };
            let path = item["path"].as_str().unwrap_or(key);
            files.insert(path.into(), File { content, mode: item_mode(item, mode), owner: None });
        }
        Ok(())
    }

    fn downward(&self, source: &Value, mode: u32, files: &mut Files) -> Result<(), OwnVolumeError> {
        for item in source["items"].as_array().into_iter().flatten() {
            let path = item["path"].as_str().unwrap_or_default();
            let value = match item["fieldRef"]["fieldPath"].as_str() {
                Some(field) => downward::field(self.pod, field)
                    .ok_or_else(|| self.refused(format!("there is no field {field}")))?,
                None => downward::resource(self.pod, None, &item["resourceFieldRef"])
                    .map_err(|error| self.refused(error.to_string()))?,
            };
            let content = value.into_bytes();
            files.insert(path.into(), File { content, mode: item_mode(item, mode), owner: None });
        }
        Ok(())
    }

    async fn token(
        &self,
        source: &Value,
        mode: u32,
        files: &mut Files,
    ) -> Result<(), OwnVolumeError> {
        let wanted = TokenRequest {
            audience: source["audience"].as_str().unwrap_or_default().to_owned(),
            expiration_seconds: source["expirationSeconds"].as_i64(),
        };
        let token = self.sources.volumes.pod_token(self.pod, &wanted).await;
        let token =
            token.map_err(|error| self.refused(format!("failed to fetch token: {error}")))?;
        let owner = only_user(self.pod);
        // Whom the file belongs to may read it; without an owner of its own everybody in the pod must.
        let group = self.pod.spec.security_context.fs_group;
        let mode = if owner.is_some() || group.is_some() { 0o600 } else { mode };
        let path = source["path"].as_str().unwrap_or("token");
        files.insert(path.into(), File { content: token.token.into_bytes(), mode, owner });
        Ok(())
    }

    fn absent(&self, source: &Value, what: String) -> Result<(), OwnVolumeError> {
        if source["optional"] == true {
            return Ok(());
        }
        Err(OwnVolumeError::Missing { volume: self.volume.to_owned(), what })
    }

    fn api(&self, source: longshore_cluster::ApiError) -> OwnVolumeError {
        OwnVolumeError::Api { volume: self.volume.to_owned(), source }
    }

    fn refused(&self, what: String) -> OwnVolumeError {
        OwnVolumeError::Refused { volume: self.volume.to_owned(), what }
    }
}

fn given<'a>(source: &'a Value, kind: &str) -> Option<&'a Value> {
    source.get(kind).filter(|part| part.is_object())
}

fn mode(source: &Value, field: &str) -> u32 {
    let mode = source[field].as_u64().unwrap_or(DEFAULT_MODE);
    u32::try_from(mode & 0o777).unwrap_or(0o644)
}

fn item_mode(item: &Value, default: u32) -> u32 {
    if item["mode"].is_number() { mode(item, "mode") } else { default }
}

/// The one user that all containers of a pod run as, if every one of them says so.
fn only_user(pod: &Pod) -> Option<u32> {
    let user = |one: &Container| {
        one.security_context.run_as_user.or(pod.spec.security_context.run_as_user)
    };
    let mut users = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(user);
    let first = users.next().flatten()?;
    users.all(|user| user == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_token_belongs_to_the_one_user_of_the_pod() {
        let user = |pod: Value, containers: &[Value]| {
            let containers: Vec<Value> =
                containers.iter().map(|context| json!({"securityContext": context})).collect();
            let spec = json!({"securityContext": pod, "containers": containers});
            only_user(&serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap())
        };
        let (of, none) = (|id: u32| json!({"runAsUser": id}), json!({}));
        for (pod, containers, expected) in [
            (none.clone(), vec![none.clone()], None),
            (of(7), vec![none.clone(), none.clone()], Some(7)),
            (of(7), vec![of(8), of(8)], Some(8)),
            (of(7), vec![of(8), none.clone()], None),
            (none.clone(), vec![of(8), none.clone()], None),
            (none.clone(), vec![of(0)], Some(0)),
        ] {
            assert_eq!(user(pod.clone(), &containers), expected, "{pod} {containers:?}");
        }
    }
}
