//! `hostPath`: a path of the host, checked as the kubelet does.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longshore_core::model::kinds::{HostPathSource, Pod};
use longshore_core::stage::paths::NodePaths;

use crate::protected::{self, Relation};

/// Checks, and where the type says so makes, what is at the path.
pub(super) fn check(source: &HostPathSource) -> io::Result<()> {
    let path = Path::new(&source.path);
    let kind = source.kind.as_deref().unwrap_or_default();
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
        }
        "FileOrCreate" if !path.exists() => {
            fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        }
        _ => {}
    }
    let found = fs::metadata(path)?.file_type();
    let (fits, what) = match kind {
        "" => (true, ""),
        "Directory" | "DirectoryOrCreate" => (found.is_dir(), "directory"),
        "File" | "FileOrCreate" => (found.is_file(), "file"),
        "Socket" => (found.is_socket(), "socket file"),
        "CharDevice" => (found.is_char_device(), "character device"),
        "BlockDevice" => (found.is_block_device(), "block device"),
        other => {
            let text = format!(
                "hostPath type {other:?} is not known; leave it out, or use one of: DirectoryOrCreate, Directory, \
                 FileOrCreate, File, Socket, CharDevice, BlockDevice"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    };
    match fits {
        true => Ok(()),
        false => {
            let text = format!("hostPath type check failed: {} is not a {what}", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

/// Whether a volume is a directory of the host that the pod or its volume names: it was not made below the pod's
/// directory, or is a local volume that is bound there.
pub(super) fn is_of_the_host(paths: &NodePaths, pod: &Pod, volume: &Path) -> bool {
    let below = volume.strip_prefix(paths.pod(&pod.metadata.uid));
    below.map_or(true, |path| {
        path.components().any(|part| part.as_os_str() == "kubernetes.io~local-volume")
    })
}

/// Refuses what belongs to this instance. The container's start judges again what it really binds;
/// this look gives the pod its event before anything is started.
pub(super) fn refuse_own(path: &Path, hidden: &[PathBuf]) -> io::Result<()> {
    match protected::relation(protected::open(path)?, hidden)? {
        Relation::Inside(dir) => Err(protected::refusal(&dir)),
        Relation::Apart | Relation::Above(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_host_path_of_another_type_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let kinds = ["Directory", "File", "Socket", "CharDevice", "BlockDevice"];
        let paths = [at("dir"), at("file"), at("socket"), "/dev/null".to_owned(), at("missing")];
        let check = |path: &str, kind: &str| {
            check(&HostPathSource { path: path.to_owned(), kind: Some(kind.to_owned()) })
        };
        for (p, path) in paths.iter().enumerate() {
            for (k, kind) in kinds.iter().enumerate() {
                assert_eq!(check(path, kind).is_ok(), p == k && p < 4, "{path} as {kind}");
            }
            assert_eq!(check(path, "").is_ok(), p < 4, "{path}");
            check(path, "Sometimes").unwrap_err();
        }
        check(&at("new/dir"), "DirectoryOrCreate").unwrap();
        check(&at("new/file"), "FileOrCreate").unwrap();
        assert!(Path::new(&at("new/dir")).is_dir() && Path::new(&at("new/file")).is_file());
        check(&at("file"), "DirectoryOrCreate").unwrap_err();
        check(&at("dir"), "FileOrCreate").unwrap_err();
    }
}
