//! `--pool`: a directory for volumes, with a name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::flags::UsageError;

/// A directory for volumes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pool {
    /// The name that StorageClasses use for it.
    pub name: String,
    /// Absolute.
    pub dir: PathBuf,
}

/// Reads `NAME=DIR` or `DIR`, whose name is then `default`.
pub(super) fn read(text: &str) -> Result<Pool, UsageError> {
    match text.split_once('=') {
        // A slash before the sign means that the sign belongs to the path.
        Some((name, dir)) if !name.contains('/') => pool(text, name, dir),
        _ => pool(text, "default", text),
    }
}

fn pool(text: &str, name: &str, dir: &str) -> Result<Pool, UsageError> {
    let refuse = |why| Err(UsageError::bad_value("--pool", text, why));
    let named = !name.is_empty()
        && name.len() <= 63
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !named {
        return refuse("a pool name has lower-case letters, digits and - only");
    }
    if dir.is_empty() {
        return refuse("the directory is missing");
    }
    let dir = super::up::absolute("--pool", PathBuf::from(dir))?;
    Ok(Pool { name: name.to_owned(), dir })
}

/// The pools, if no two share a name or a directory.
pub(super) fn distinct(pools: Vec<Pool>) -> Result<Vec<Pool>, UsageError> {
    let mut names: BTreeMap<&str, &Pool> = BTreeMap::new();
    for pool in &pools {
        if names.insert(&pool.name, pool).is_some() {
            return Err(UsageError::Together(format!(
                "the pool name `{}` is used twice",
                pool.name
            )));
        }
        if let Some(other) =
            names.values().find(|other| other.dir == pool.dir && other.name != pool.name)
        {
            return Err(UsageError::Together(format!(
                "the pools `{}` and `{}` are the same directory",
                other.name, pool.name
            )));
        }
    }
    Ok(pools)
}

/// Refuses a directory that is not there and has no parent: most likely its path has a typing error, and volumes would
/// end up on another disk.
///
/// # Errors
/// Names the flag, the directory and the next thing to do.
pub(super) fn check_parent(flag: &str, dir: &Path) -> anyhow::Result<()> {
    match dir.parent() {
        Some(parent) if !dir.exists() && !parent.is_dir() => bail!(
            "{flag} {}: there is no directory {}; correct the path, or make that directory",
            dir.display(),
            parent.display()
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_parent_is_refused_and_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let lost = dir.path().join("typo/pool");
        let refused = check_parent("--pool", &lost).unwrap_err().to_string();
        let (lost, typo) = (lost.display(), dir.path().join("typo"));
        let want = format!(
            "--pool {lost}: there is no directory {}; correct the path, or make that directory",
            typo.display()
        );
        assert_eq!(refused, want);
        assert!(!typo.exists());
        check_parent("--pool", &dir.path().join("pool")).unwrap();
        check_parent("--pool", dir.path()).unwrap();
    }
}
