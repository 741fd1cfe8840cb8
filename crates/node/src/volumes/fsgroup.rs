//! Gives a volume's files to the pod's group.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_cluster::EventType;
use longshore_core::model::ObjectRef;
use longshore_core::model::kinds::Pod;
use longshore_core::stage::fsgroup::{mode_with_group, root_matches};

use super::VolumeManager;

/// When a pod is told that its files are still being changed, and how often after that.
const FIRST_WORD: Duration = Duration::from_secs(30);
const NEXT_WORD: Duration = Duration::from_secs(60);

impl VolumeManager {
    /// Gives a volume's files to the pod's group and says so when it takes long.
    pub(super) async fn give_to_group(
        &self,
        pod: &Pod,
        root: &Path,
        group: u32,
        only_on_mismatch: bool,
    ) -> Result<(), String> {
        let changed = Arc::new(AtomicU64::new(0));
        let (path, counter) = (root.to_owned(), changed.clone());
        let mut work = tokio::task::spawn_blocking(move || {
            apply_counting(&path, group, only_on_mismatch, &counter)
        });
        let mut patience = FIRST_WORD;
        loop {
            match tokio::time::timeout(patience, &mut work).await {
                Ok(Ok(result)) => return result.map_err(|error| error.to_string()),
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => patience = NEXT_WORD,
            }
            let text = format!(
                "Setting volume ownership for {} is taking longer than expected: {} files so far; \
                 consider fsGroupChangePolicy OnRootMismatch",
                root.display(),
                changed.load(Ordering::Relaxed)
            );
            let about = ObjectRef::of::<Pod>(&pod.metadata);
            let reason = "VolumePermissionChangeInProgress";
            self.deps.recorder.event(&about, EventType::Warning, reason, &text);
        }
    }
}

/// Walks the volume; `only_on_mismatch` skips the walk when the root already fits.
///
/// # Errors
/// A directory cannot be read. A single file that cannot be changed is logged and passed over.
fn apply_counting(
    root: &Path,
    group: u32,
    only_on_mismatch: bool,
    changed: &AtomicU64,
) -> io::Result<()> {
    let top = fs::metadata(root)?;
    if only_on_mismatch && root_matches(top.gid(), top.mode() & 0o7777, group) {
        return Ok(());
    }
    walk(root, group, changed)?;
    // The root comes last: until then a crash leaves a root that does not match.
    change(root, &top, group);
    Ok(())
}

fn walk(dir: &Path, group: u32, changed: &AtomicU64) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let path = entry.path();
        if metadata.is_dir() {
            walk(&path, group, changed)?;
        }
        change(&path, &metadata, group);
        changed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn change(path: &Path, metadata: &fs::Metadata, group: u32) {
    let owner = lchown(path, None, Some(group));
    let mode = if metadata.is_symlink() {
        Ok(())
    } else {
        let mode = mode_with_group(metadata.mode() & 0o7777, metadata.is_dir());
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    if let Err(error) = owner.and(mode) {
        tracing::warn!(path = %path.display(), %error, "cannot give a file to the pod's group");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::testing::{Need, need};

    fn apply(root: &Path, group: u32, only: bool) -> io::Result<()> {
        apply_counting(root, group, only, &AtomicU64::new(0))
    }

    fn look(path: &Path) -> (u32, u32) {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    }

    #[test]
    fn ownership_as_recorded() {
        if !need("ownership_as_recorded", &[Need::Root]) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        fs::create_dir(&root).unwrap();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("pre"), "x").unwrap();
        for (path, mode) in [(&root, 0o755), (&root.join("d"), 0o755), (&root.join("pre"), 0o600)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        apply(&root, 3000, false).unwrap();
        assert_eq!(look(&root), (3000, 0o2775));
        assert_eq!(look(&root.join("d")), (3000, 0o2775));
        assert_eq!(look(&root.join("pre")), (3000, 0o660));
        fs::set_permissions(root.join("pre"), fs::Permissions::from_mode(0o600)).unwrap();
        apply(&root, 3000, true).unwrap();
        assert_eq!(look(&root.join("pre")), (3000, 0o600), "a matching root skips the walk");
    }
}
