//! Directories of the controller's own host as volumes, for tests and development: what
//! kube-controller-manager does with `--enable-hostpath-provisioner`. A pod on another machine
//! finds nothing there.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use longshore_core::model::{
    VolumeName,
    kinds::{Claim, StorageClass, Volume},
};
use serde_json::{Value, json};

use super::in_tree::{DeleteError, InTreePlugin, MakeError};

/// Makes directories below one, and deletes directories below `/tmp`.
#[derive(Debug, Clone)]
pub struct HostPath {
    base: PathBuf,
}

impl Default for HostPath {
    fn default() -> Self {
        Self { base: "/tmp/hostpath_pv".into() }
    }
}

impl HostPath {
    /// Makes its directories below `base`, which must be below `/tmp` if it shall delete them.
    #[must_use]
    pub fn below(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }
}

impl InTreePlugin for HostPath {
    fn name(&self) -> &'static str {
        "kubernetes.io/host-path"
    }

    fn signature(&self) -> Option<&'static str> {
        Some("hostpath-dynamic-provisioner")
    }

    fn make(&self, volume: &VolumeName, _: &Claim, _: &StorageClass) -> Result<Value, MakeError> {
        let path = self.base.join(volume.as_str());
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(json!({"hostPath": {"path": path, "type": ""}})),
            Err(source) => Err(MakeError::Directory { path, source }),
        }
    }

    fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        let Some(source) = &volume.spec.host_path else {
            let why = "spec.PersistentVolumeSource.HostPath is nil".into();
            return Err(DeleteError::Foreign { volume: volume.name(), why });
        };
        let path = Path::new(&source.path);
        if !is_below_tmp(path) {
            let only = "host_path deleter only supports /tmp/.+ but received provided";
            return Err(DeleteError::Failed(format!("{only} {}", source.path)));
        }
        // A link is removed itself; what it leads to is not ours.
        let gone = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => longshore_files::remove_tree(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DeleteError::Failed(format!("cannot remove {}: {error}", source.path)))
            }
            _ => Ok(()),
        }
    }
}

/// Below `/tmp`, whichever way it is looked at: no way up, and no link on the way.
fn is_below_tmp(path: &Path) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let deep = path.strip_prefix("/tmp").is_ok_and(|rest| rest.components().count() > 0);
    let real = path.parent().is_none_or(|parent| match parent.canonicalize() {
        Ok(real) => real.starts_with(Path::new("/tmp").canonicalize().unwrap_or("/tmp".into())),
        // Nothing is there, so nothing can be deleted elsewhere.
        Err(_) => true,
    });
    deep && path.components().all(plain) && real
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(path: &str) -> Volume {
        serde_json::from_value(
            json!({"metadata": {"name": "pv"}, "spec": {"hostPath": {"path": path}}}),
        )
        .unwrap()
    }

    #[test]
    fn it_signs_what_it_makes() {
        let (claim, class) = (Claim::default(), StorageClass::default());
        let source = json!({"hostPath": {"path": "/tmp/x"}});
        let made = super::super::in_tree::new_volume(
            &"v".into(),
            &HostPath::default(),
            &claim,
            &class,
            source,
        );
        let want = json!({"pv.kubernetes.io/bound-by-controller": "yes",
            "pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path",
            "kubernetes.io/createdby": "hostpath-dynamic-provisioner"});
        assert_eq!(made["metadata"]["annotations"], want);
    }

    #[test]
    fn a_directory_is_made_and_deleted_with_its_content() {
        let home =
            tempfile::Builder::new().prefix("longshore-hostpath-").tempdir_in("/tmp").unwrap();
        let plugin = HostPath::below(home.path().join("base"));
        let (claim, class) = (Claim::default(), StorageClass::default());
        let source = plugin.make(&"pvc-1".into(), &claim, &class).unwrap();
        let path = source["hostPath"]["path"].as_str().unwrap().to_owned();
        fs::write(Path::new(&path).join("file"), "x").unwrap();
        plugin.delete(&volume(&path)).unwrap();
        assert!(!Path::new(&path).exists());
        plugin.delete(&volume(&path)).expect("gone is as good as deleted");
    }

    #[test]
    fn nothing_is_deleted_elsewhere() {
        let home =
            tempfile::Builder::new().prefix("longshore-hostpath-").tempdir_in("/tmp").unwrap();
        let link = home.path().join("link");
        std::os::unix::fs::symlink("/usr", &link).unwrap();
        let behind = link.join("nothing-that-exists").display().to_string();
        let up = format!("{}/../../usr", home.path().display());
        for path in ["/srv/x", "/tmp", "/tmp/", "/", "tmp/x", "/srv/tmp/x", &behind, &up] {
            let error = HostPath::default().delete(&volume(path)).expect_err(path).to_string();
            assert!(
                error.starts_with("host_path deleter only supports /tmp/.+"),
                "{path}: {error}"
            );
        }
        // The link itself is below /tmp, and all that goes.
        HostPath::default().delete(&volume(&link.display().to_string())).unwrap();
        assert!(Path::new("/usr/bin").exists() && !link.exists());
        // case: pv-controller/8-4
        let foreign = HostPath::default().delete(&Volume::default()).unwrap_err().to_string();
        assert!(foreign.starts_with("failed to create deleter for volume"), "{foreign}");
    }
}
