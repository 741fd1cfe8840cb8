//! A sub-directory of an NFS export for each claim.
//!
//! The export is mounted where this runs; volumes name the server and the path, and nodes mount them
//! themselves. What becomes of the directory is decided when the volume is made and written on it, so
//! that it holds even when the class is gone.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use longshore_cluster::{Api, ListParams};
use longshore_core::model::{ObjectKey, keys::annotations::ON_DELETE};
use longshore_provisioner::{
    Cause, DeleteError, ProvisionError, ProvisionedVolume, Provisioner, Request, StorageClass,
    Volume,
};
use serde_json::json;

use super::{
    base::{ARCHIVED, Base, Directory, DirectoryError},
    check,
    pattern::{self, PatternError},
};
use crate::flags::values;

/// A class whose parameters cannot be served.
#[derive(Debug, thiserror::Error)]
enum ClassError {
    #[error("parameter onDelete: {0:?} is not delete or retain (leave it out to archive)")]
    OnDelete(String),
    #[error("parameter archiveOnDelete: {0:?} is not true or false")]
    ArchiveOnDelete(String),
    #[error("parameter pathPattern: {0}")]
    Pattern(#[from] PatternError),
    #[error("parameter pathPattern: {0}")]
    PatternedDirectory(DirectoryError),
    #[error(transparent)]
    Directory(DirectoryError),
}

/// A volume whose directory is not below our export.
#[derive(Debug, thiserror::Error)]
enum VolumeError {
    #[error("volume {0} is not an NFS volume; nothing was removed")]
    NotNfs(String),
    #[error("volume {name} is {theirs}, and this provisioner serves {ours}; nothing was removed")]
    OtherExport { name: String, theirs: String, ours: String },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// What becomes of a directory when its volume is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDelete {
    Delete,
    Retain,
    /// Renamed to `archived-…`.
    Archive,
}

impl OnDelete {
    fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Retain => "retain",
            Self::Archive => "archive",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Delete, Self::Retain, Self::Archive].into_iter().find(|one| one.name() == name)
    }

    /// What a class says. `onDelete` wins over the older `archiveOnDelete`.
    fn of(parameters: &BTreeMap<String, String>) -> Result<Self, ClassError> {
        if let Some(text) = parameters.get("onDelete").filter(|text| !text.is_empty()) {
            return match Self::named(text) {
                Some(known @ (Self::Delete | Self::Retain)) => Ok(known),
                _ => Err(ClassError::OnDelete(text.clone())),
            };
        }
        match parameters.get("archiveOnDelete") {
            None => Ok(Self::Archive),
            Some(text) => match values::boolean(text) {
                Ok(true) => Ok(Self::Archive),
                Ok(false) => Ok(Self::Delete),
                Err(_) => Err(ClassError::ArchiveOnDelete(text.clone())),
            },
        }
    }
}

/// An export, and where it is mounted here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Export {
    /// The server's name or address, as nodes reach it.
    pub server: String,
    pub path: PathBuf,
}

/// See the module.
pub(crate) struct Nfs {
    base: Arc<Base>,
    export: Export,
    api: Api,
}

impl Nfs {
    /// Makes directories in `base`, on which `export` is mounted.
    #[must_use]
    pub(crate) fn new(base: Arc<Base>, export: Export, api: Api) -> Self {
        Self { base, export, api }
    }

    fn directory_for(request: &Request) -> Result<Directory, ClassError> {
        let claim = &request.claim;
        match request.class.parameters.get("pathPattern").filter(|p| !p.is_empty()) {
            None => {
                let meta = &claim.metadata;
                let path = format!("{}-{}-{}", meta.namespace, meta.name, request.volume);
                Directory::new(&path).map_err(ClassError::Directory)
            }
            Some(pattern) => Directory::new(&pattern::render(pattern, claim)?)
                .and_then(Directory::not_archived)
                .map_err(ClassError::PatternedDirectory),
        }
    }

    /// The directory of a volume below our export.
    fn directory_of(&self, volume: &Volume) -> Result<Directory, VolumeError> {
        let name = &volume.metadata.name;
        let Some(source) = &volume.spec.nfs else {
            return Err(VolumeError::NotNfs(name.clone()));
        };
        let Export { server, path } = &self.export;
        let below = Path::new(&source.path).strip_prefix(path).ok().and_then(Path::to_str);
        match below.filter(|_| source.server == *server) {
            Some(below) => Ok(Directory::new(below)?),
            None => Err(VolumeError::OtherExport {
                name: name.clone(),
                theirs: format!("{}:{}", source.server, source.path),
                ours: format!("{server}:{}", path.display()),
            }),
        }
    }

    /// What was decided when the volume was made; for volumes of other provisioners what the class
    /// says, and the safe way where neither says anything.
    async fn on_delete(&self, volume: &Volume) -> Result<OnDelete, Cause> {
        if let Some(known) = volume.metadata.annotation(ON_DELETE).and_then(OnDelete::named) {
            return Ok(known);
        }
        let class = ObjectKey::cluster(volume.class_name());
        match self.api.get::<StorageClass>(&class).await? {
            Some(class) => Ok(OnDelete::of(&class.parameters)?),
            None => Ok(OnDelete::Archive),
        }
    }

    /// Another volume whose data is in this directory: patterns can make claims share one.
    async fn shared_with(&self, volume: &Volume) -> Result<Option<String>, Cause> {
        let Some(own) = &volume.spec.nfs else { return Ok(None) };
        let all = self.api.list::<Volume>(None, &ListParams::default()).await?;
        let others = all.into_iter().filter(|one| one.metadata.uid != volume.metadata.uid);
        let shares = |one: &Volume| {
            let source = one.spec.nfs.as_ref();
            source.is_some_and(|source| {
                source.server == own.server && Path::new(&source.path).starts_with(&own.path)
            })
        };
        Ok(others.into_iter().find(shares).map(|one| one.metadata.name))
    }

    async fn in_background(
        &self,
        work: impl FnOnce(&Base) -> Result<(), Cause> + Send + 'static,
    ) -> Result<(), Cause> {
        let base = self.base.clone();
        tokio::task::spawn_blocking(move || work(&base)).await?
    }
}

/// Renames a directory to `archived-…` in the base; the volume's name is taken where that is taken.
fn archive(base: &Base, directory: &Directory, volume: &str) -> Result<(), Cause> {
    let mut to = Directory::new(&format!("{ARCHIVED}{}", directory.name()))?;
    if base.has(&to)? {
        to = Directory::new(&format!("{ARCHIVED}{volume}"))?;
    }
    base.rename(directory, &to)?;
    Ok(())
}

impl Provisioner for Nfs {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        check(request)?;
        let infeasible = |error: ClassError| ProvisionError::Infeasible(error.into());
        let on_delete = OnDelete::of(&request.class.parameters).map_err(infeasible)?;
        let directory = Self::directory_for(request).map_err(infeasible)?;
        let path = self.export.path.join(directory.to_string());
        let create = move |base: &Base| Ok(base.create(&directory)?);
        self.in_background(create).await.map_err(ProvisionError::Final)?;
        let source = json!({"nfs": {"server": self.export.server, "path": path}});
        let decided = BTreeMap::from([(ON_DELETE.to_owned(), on_delete.name().to_owned())]);
        Ok(ProvisionedVolume::new(request, source).annotated(&decided))
    }

    async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        let name = volume.metadata.name.clone();
        let directory = self.directory_of(volume).map_err(|e| DeleteError::Failed(e.into()))?;
        let on_delete = self.on_delete(volume).await.map_err(DeleteError::Failed)?;
        if on_delete == OnDelete::Retain {
            return Ok(());
        }
        if let Some(other) = self.shared_with(volume).await.map_err(DeleteError::Failed)? {
            tracing::info!(volume = name, %directory, other, "the directory is still another volume's");
            return Ok(());
        }
        self.in_background(move |base| match on_delete {
            OnDelete::Archive => archive(base, &directory, &name),
            _ => Ok(base.remove(&directory)?),
        })
        .await
        .map_err(DeleteError::Failed)
    }
}

#[cfg(test)]
#[path = "nfs_tests.rs"]
mod tests;
