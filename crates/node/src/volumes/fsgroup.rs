//! Gives a volume's files to the pod's group.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_core::model::kinds::Pod;
use longshore_core::stage::fsgroup::{mode_with_group, root_matches};
use longshore_files::{Entry, Tree};

use super::VolumeManager;

/// When an event says that the files of a pod's volume are still being changed, and how often after that.
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
    ) -> io::Result<()> {
        let changed = Arc::new(AtomicU64::new(0));
        let (path, counter) = (root.to_owned(), changed.clone());
        let mut work = tokio::task::spawn_blocking(move || {
            apply_counting(&path, group, only_on_mismatch, &counter)
        });
        let mut wait = FIRST_WORD;
        loop {
            match tokio::time::timeout(wait, &mut work).await {
                Ok(Ok(result)) => return result,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => wait = NEXT_WORD,
            }
            let text = format!(
                "Setting volume ownership for {} is taking longer than expected: {} files so far; \
                 consider fsGroupChangePolicy OnRootMismatch",
                root.display(),
                changed.load(Ordering::Relaxed)
            );
            self.deps.recorder.warning(pod, "VolumePermissionChangeInProgress", text);
        }
    }
}

/// Gives every file of a volume to a group; `only_on_mismatch` skips the walk when the root fits.
///
/// The walk goes by descriptors, because pods that use the volume rename its files meanwhile: a path
/// that is looked at and then changed would let them point root at any file of the host.
fn apply_counting(
    root: &Path,
    group: u32,
    only_on_mismatch: bool,
    changed: &AtomicU64,
) -> io::Result<()> {
    let tree = Tree::open(root)?;
    let top = tree.root()?;
    if only_on_mismatch && root_matches(top.group(), top.mode(), group) {
        return Ok(());
    }
    tree.each(|path, entry| {
        change(&root.join(path), entry, group);
        changed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })?;
    // The root comes last: until then a crash leaves a root that does not match.
    change(root, &top, group);
    Ok(())
}

/// Changes one file; the path is only for the log.
fn change(path: &Path, entry: &Entry, group: u32) {
    let mode = mode_with_group(entry.mode(), entry.is_dir());
    if let Err(error) = entry.set_group(group).and_then(|()| entry.set_mode(mode)) {
        tracing::warn!(path = %path.display(), %error, "cannot give a file to the pod's group");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_testing::{Need, need};
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::AtomicBool;

    fn apply(root: &Path, group: u32, only: bool) -> io::Result<()> {
        apply_counting(root, group, only, &AtomicU64::new(0))
    }

    fn look(path: &Path) -> (u32, u32) {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    }

    #[test]
    fn fs_group_changes_owner_and_mode_of_all_files() {
        if !need("fs_group_changes_owner_and_mode_of_all_files", &[Need::Root]) {
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

    /// A neighbour on the same claim exchanges two names of the volume all the time.
    fn while_exchanging(root: &Path, work: impl Fn()) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (a, b) = (root.join("a"), root.join("b"));
                    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
                }
            });
            (0..3_000).for_each(|_| work());
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_link_that_is_exchanged_for_a_file_meanwhile_changes_nothing_on_the_host() {
        if !need("a_link_that_is_exchanged_for_a_file_meanwhile", &[Need::Root]) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("v"), dir.path().join("host"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&host).unwrap();
        let file = host.join("file");
        fs::write(&file, "x").unwrap();
        fs::write(root.join("a"), "x").unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&file, 0o600);
        set(&root.join("a"), 0o4777);
        symlink(&file, root.join("b")).unwrap();
        let before = look(&file);
        while_exchanging(&root, || apply(&root, 1234, false).unwrap());
        assert_eq!(look(&file), before, "a file of the host");
        for name in ["a", "b"] {
            fs::remove_file(root.join(name)).unwrap();
        }
        fs::create_dir(root.join("a")).unwrap();
        symlink(&host, root.join("b")).unwrap();
        while_exchanging(&root, || apply(&root, 1234, false).unwrap());
        assert_eq!(look(&file), before, "a file in a directory of the host");
    }
}
