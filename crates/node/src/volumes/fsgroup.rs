//! Gives a volume's files to the pod's group.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use longshore_core::stage::fsgroup::{mode_with_group, root_matches};

/// Walks the volume; `only_on_mismatch` skips the walk when the root already fits.
///
/// # Errors
/// A directory cannot be read. A single file that cannot be changed is logged and passed over.
pub(crate) fn apply(root: &Path, group: u32, only_on_mismatch: bool) -> io::Result<()> {
    let top = fs::metadata(root)?;
    if only_on_mismatch && root_matches(top.gid(), top.mode() & 0o7777, group) {
        return Ok(());
    }
    walk(root, group)?;
    // The root comes last: until then a crash leaves a root that does not match.
    change(root, &top, group);
    Ok(())
}

fn walk(dir: &Path, group: u32) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let path = entry.path();
        if metadata.is_dir() {
            walk(&path, group)?;
        }
        change(&path, &metadata, group);
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
