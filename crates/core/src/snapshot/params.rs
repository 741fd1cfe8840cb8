//! Parameters of snapshot classes: the driver's, and the secrets that they name.

use std::collections::BTreeMap;

use crate::model::{
    Uid,
    kinds::{Meta, ObjectRef, SecretRef},
};
use crate::provision::params::{
    Keys, PREFIX, PairProblem, ParamError, pair, resolve_pair, strip_known,
};

/// The calls that a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// CreateSnapshot and DeleteSnapshot.
    Snapshotter,
    /// ListSnapshots and GetSnapshot.
    List,
    /// CreateVolumeGroupSnapshot and DeleteVolumeGroupSnapshot.
    Group,
    /// GetVolumeGroupSnapshot.
    GroupGet,
}

impl Role {
    const ALL: [Self; 4] = [Self::Snapshotter, Self::List, Self::Group, Self::GroupGet];

    fn keys(self) -> Keys {
        let (role, key) = match self {
            Self::Snapshotter => ("Snapshotter", "snapshotter-secret"),
            Self::List => ("SnapshotterList", "snapshotter-list-secret"),
            Self::Group => ("GroupSnapshotter", "group-snapshotter-secret"),
            Self::GroupGet => ("GroupSnapshotterGet", "group-snapshotter-get-secret"),
        };
        Keys { role, key, deprecated: None }
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Snapshotter | Self::List => ("volumesnapshot", "volumesnapshotcontent"),
            Self::Group | Self::GroupGet => ("volumegroupsnapshot", "volumegroupsnapshotcontent"),
        }
    }
}

/// The secret that the class names for these calls. Templates may use the content's name and, where the
/// snapshot is at hand, its name and namespace.
///
/// # Errors
/// When the keys or their values are not usable.
pub fn secret(
    role: Role,
    parameters: &BTreeMap<String, String>,
    content: &str,
    snapshot: Option<&Meta>,
) -> Result<Option<SecretRef>, ParamError> {
    let templates = pair(&role.keys(), parameters);
    let templates = templates.map_err(|problem| ParamError::Pair { fallback: false, problem })?;
    let Some(templates) = templates else { return Ok(None) };
    let (snapshot_word, content_word) = role.words();
    let namespace_token = |variable: &str| {
        let (noun, field) = variable.rsplit_once('.')?;
        match field {
            "name" if noun == content_word => Some(content.to_owned()),
            "namespace" if noun == snapshot_word => Some(snapshot?.namespace.clone()),
            _ => None,
        }
    };
    let name_token = |variable: &str| match variable.strip_suffix(".name") {
        Some(noun) if noun == snapshot_word => Some(snapshot?.name.clone()),
        _ => namespace_token(variable),
    };
    resolve_pair(templates, name_token, namespace_token).map(Some)
}

/// The secret that two annotations of a content name; none when one of them is missing.
///
/// # Errors
/// When one of them is empty.
pub fn noted_secret(
    meta: &Meta,
    name: &str,
    namespace: &str,
) -> Result<Option<SecretRef>, PairProblem> {
    let (Some(name), Some(namespace)) = (meta.annotation(name), meta.annotation(namespace)) else {
        return Ok(None);
    };
    if name.is_empty() || namespace.is_empty() {
        return Err(PairProblem::Empty("Deletion"));
    }
    Ok(Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() }))
}

/// What the driver is told: the class's parameters without ours, and, where they are wanted, the names of
/// the objects.
///
/// # Errors
/// When a reserved key is unknown.
pub fn for_driver(
    parameters: &BTreeMap<String, String>,
    names: Option<(&ObjectRef, &str)>,
) -> Result<BTreeMap<String, String>, ParamError> {
    let is_known = |own: &str| Role::ALL.into_iter().any(|role| role.keys().has(own));
    let mut kept = strip_known(parameters, is_known)?;
    if let Some((snapshot, content)) = names {
        let (noun, content_noun) = match snapshot.kind.as_str() {
            "VolumeGroupSnapshot" => Role::Group.words(),
            _ => Role::Snapshotter.words(),
        };
        let mut add = |noun: &str, field: &str, value: &str| {
            kept.insert(format!("{PREFIX}{noun}/{field}"), value.to_owned());
        };
        add(noun, "name", &snapshot.name);
        add(noun, "namespace", &snapshot.namespace);
        add(content_noun, "name", content);
    }
    Ok(kept)
}

/// The name under which the driver is asked for a snapshot: the same at every try.
#[must_use]
pub fn request_name(prefix: &str, uid: &Uid, length: Option<usize>) -> Option<String> {
    let name = crate::provision::name::volume_name(prefix, uid, length).ok()?;
    Some(name.to_string())
}
