//! Volumes that this node mounts without a driver: directories and disks of its own, and NFS.
//!
//! The directory is made before anything is mounted on it and goes after the unmount, so it is the
//! record of what an earlier life may have left.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use longshore_core::model::Uid;
use longshore_core::model::kinds::{LocalSource, NfsSource, Pod, Volume};
use longshore_core::names::UniqueName;
use longshore_core::stage::verdict::{Failure, Mounted, after_failure};
use longshore_core::stage::world::PodMount;
use longshore_files::mounts::is_mount_point;
use tokio::process::Command;

use super::unmount::{TEAR_DOWN, UNMOUNT_DEVICE};
use super::{OpCause, OpError, Plugin, Use, VolumeFacts, VolumeManager, files, sub_path};

const SET_UP: &str = "SetUp";
const MOUNT_DEVICE: &str = "MountDevice";
const FIND: &str = "NewMounter initialization";
/// How long a mount program may take. An NFS server that does not answer costs this much.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(120);

impl Plugin {
    /// The plugin's part of a directory name, `kubernetes.io~…`.
    pub(super) fn dir(self) -> &'static str {
        match self {
            Self::Csi => "csi",
            Self::Local => "local-volume",
            Self::Nfs => "nfs",
        }
    }

    /// The unique name of a volume that is told apart by its own name.
    pub(super) fn unique_name(self, uid: &Uid, volume: &str) -> UniqueName {
        match self {
            Self::Csi => UniqueName::of_pod(uid, volume),
            Self::Local => UniqueName::local(volume),
            Self::Nfs => UniqueName::nfs(uid, volume),
        }
    }
}

/// What is to be mounted for the pod.
enum Content {
    /// A directory that is there already.
    Bind(PathBuf),
    /// An export of a server.
    Nfs(NfsSource),
}

impl VolumeManager {
    pub(super) async fn mount_in_tree(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        facts: &VolumeFacts,
        one: &Use,
        pod: &Pod,
    ) -> Result<(), OpError> {
        let volume = facts
            .volume
            .as_ref()
            .ok_or_else(|| OpError::new(SET_UP, Failure::Transient, "no such volume"))?;
        let content = match (&volume.spec.local, &volume.spec.nfs) {
            (Some(local), _) => Content::Bind(self.local_content(unique, volume, local).await?),
            (None, Some(nfs)) => Content::Nfs(nfs.clone()),
            (None, None) => {
                return Err(OpError::new(SET_UP, Failure::Transient, "the volume's kind changed"));
            }
        };
        let before = self.pod_mount_of(unique, uid);
        self.begin_publish(unique, uid);
        let result = self.try_mount_in_tree(unique, uid, volume, content, one, pod).await;
        self.change(unique, |known| {
            let state = match &result {
                Ok(()) => Mounted::Yes,
                Err(error) => after_failure(Mounted::Unknown, error.failure, before.reconstructed),
            };
            match state {
                Mounted::No => drop(known.pods.remove(uid)),
                state => {
                    let mount = PodMount {
                        state,
                        reconstructed: state != Mounted::Yes && before.reconstructed,
                        remount: false,
                    };
                    known.pods.insert(uid.to_owned(), mount);
                }
            }
        });
        result
    }

    fn pod_mount_of(&self, unique: &UniqueName, uid: &Uid) -> PodMount {
        let state = self.state();
        let known = state.world.actual.get(unique).and_then(|known| known.pods.get(uid));
        known.copied().unwrap_or_default()
    }

    /// The directory behind a local volume; a disk is mounted first, once for all pods.
    async fn local_content(
        &self,
        unique: &UniqueName,
        volume: &Volume,
        local: &LocalSource,
    ) -> Result<PathBuf, OpError> {
        let source = PathBuf::from(&local.path);
        let refuse = |text: String| OpError::new(FIND, Failure::Transient, text);
        let kind = fs::metadata(&source).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refuse(format!(
                "path {:?} does not exist on node {}; make it, or correct the volume's nodeAffinity",
                local.path, self.deps.node_name
            )),
            _ => refuse(format!("path {:?}: {error}", local.path)),
        })?;
        if kind.is_dir() {
            return Ok(source);
        }
        if !kind.file_type().is_block_device() {
            return Err(refuse(format!(
                "path {:?} is neither a directory nor a block device",
                local.path
            )));
        }
        let target = self.deps.paths.local_mount(&volume.metadata.name);
        if is_mount_point(&target).map_err(|error| refuse(error.to_string()))? {
            self.change(unique, |known| known.device = Mounted::Yes);
            return Ok(target);
        }
        files::make_dir(&target)
            .map_err(|error| OpError::new(MOUNT_DEVICE, Failure::Transient, error))?;
        self.change(unique, |known| known.device = Mounted::Unknown);
        let kind = local.fs_type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("ext4");
        mount_disk(&source, kind, &volume.spec.mount_options, &target).await?;
        self.change(unique, |known| known.device = Mounted::Yes);
        Ok(target)
    }

    async fn try_mount_in_tree(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        volume: &Volume,
        content: Content,
        one: &Use,
        pod: &Pod,
    ) -> Result<(), OpError> {
        let target = &one.path;
        let transient = |error: io::Error| OpError::new(SET_UP, Failure::Transient, error);
        if is_mount_point(target).map_err(transient)? {
            return Ok(());
        }
        files::make_dir(target).map_err(transient)?;
        let first = !self.state().world.used_by_other_pod(unique, uid);
        let mounted = match content {
            Content::Bind(source) => {
                let options = options(["bind"], &volume.spec.mount_options, one.read_only);
                run(
                    "mount",
                    &[
                        OsStr::new("-o"),
                        OsStr::new(&options),
                        source.as_os_str(),
                        target.as_os_str(),
                    ],
                )
                .await
                .map_err(|error| OpError::new(SET_UP, error.failure(), error))
            }
            Content::Nfs(nfs) => {
                let read_only = one.read_only || nfs.read_only;
                let options = options([], &volume.spec.mount_options, read_only);
                mount_nfs(&nfs, &options, target, &self.deps.node_name).await
            }
        };
        if let Err(error) = mounted {
            if error.failure == Failure::Final {
                clean(target).map_err(transient)?;
            }
            return Err(error);
        }
        let group = pod.spec.security_context.fs_group;
        let Some(group) = group.filter(|_| volume.spec.local.is_some() && !one.read_only && first)
        else {
            return Ok(());
        };
        let only =
            pod.spec.security_context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
        let given = self.give_to_group(pod, target, group, only).await;
        given.map_err(|error| OpError::new(SET_UP, Failure::Uncertain, OpCause::FsGroup(error)))
    }

    pub(super) async fn unmount_in_tree(
        &self,
        unique: &UniqueName,
        uid: &Uid,
        facts: &VolumeFacts,
    ) -> Result<(), OpError> {
        let target = self.deps.paths.own_volume(uid, facts.plugin.dir(), &facts.spec_name);
        let local = |error: io::Error| OpError::new(TEAR_DOWN, Failure::Uncertain, error);
        sub_path::remove(&self.deps.paths, uid, &facts.spec_name).map_err(local)?;
        self.mark_pod_unknown(unique, uid);
        unmount(&target).await.map_err(local)?;
        clean(&target).map_err(local)?;
        self.forget_pod(unique, uid);
        Ok(())
    }

    pub(super) async fn unmount_in_tree_device(
        &self,
        unique: &UniqueName,
        facts: &VolumeFacts,
    ) -> Result<(), OpError> {
        let local = |error: io::Error| OpError::new(UNMOUNT_DEVICE, Failure::Uncertain, error);
        let target = self.deps.paths.local_mount(&facts.spec_name);
        self.set_device(unique, Mounted::Unknown);
        unmount(&target).await.map_err(local)?;
        clean(&target).map_err(local)?;
        self.set_device(unique, Mounted::No);
        Ok(())
    }
}

/// Options in the order of the volume, `ro` last.
fn options<const N: usize>(first: [&str; N], own: &[String], read_only: bool) -> String {
    let own = own.iter().map(String::as_str);
    let all: Vec<&str> = first.into_iter().chain(own).chain(read_only.then_some("ro")).collect();
    all.join(",")
}

/// Makes a filesystem on a disk that holds nothing, and mounts it.
async fn mount_disk(
    source: &Path,
    kind: &str,
    own: &[String],
    target: &Path,
) -> Result<(), OpError> {
    if is_blank(source).await? {
        let program = format!("mkfs.{kind}");
        longshore_cluster::log_result!(device = %source.display(), kind, "the disk holds nothing; making a filesystem");
        let made = run(&program, &[source.as_os_str()]).await;
        made.map_err(|error| {
            let text = format!("{program} {}: {error}", source.display());
            OpError::new(MOUNT_DEVICE, Failure::Final, text)
        })?;
    }
    let options = options(["defaults"], own, false);
    let arguments = ["-t", kind, "-o", &options].map(OsStr::new);
    let arguments: Vec<&OsStr> =
        arguments.into_iter().chain([source.as_os_str(), target.as_os_str()]).collect();
    run("mount", &arguments)
        .await
        .map_err(|error| OpError::new(MOUNT_DEVICE, error.failure(), error))
}

/// Whether a disk holds no filesystem, partition table or anything else that is known. When in doubt
/// it does: a filesystem is made only on what is certainly empty.
async fn is_blank(device: &Path) -> Result<bool, OpError> {
    let done = Command::new("blkid")
        .args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"])
        .arg(device)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let failed = |text: String| OpError::new(MOUNT_DEVICE, Failure::Transient, text);
    let done = tokio::time::timeout(PROGRAM_TIMEOUT, done)
        .await
        .map_err(|_| failed(format!("blkid {}: no answer", device.display())))?
        .map_err(|error| failed(format!("blkid: {error}")))?;
    match done.status.code() {
        Some(0) => Ok(false),
        Some(2) if done.stdout.is_empty() => Ok(true),
        _ => Err(failed(format!(
            "blkid cannot say what is on {}: {}",
            device.display(),
            String::from_utf8_lossy(&done.stderr).trim()
        ))),
    }
}

async fn mount_nfs(
    nfs: &NfsSource,
    options: &str,
    target: &Path,
    node: &str,
) -> Result<(), OpError> {
    if !has_program("mount.nfs") {
        let text = format!(
            "node {node} has no NFS client: the program mount.nfs is missing; install it (Debian: nfs-common, \
             Fedora: nfs-utils) and the mount is tried again"
        );
        return Err(OpError::new(SET_UP, Failure::Final, text));
    }
    let source = format!("{}:{}", nfs.server, nfs.path);
    let mut arguments = vec![OsStr::new("-t"), OsStr::new("nfs")];
    if !options.is_empty() {
        arguments.extend([OsStr::new("-o"), OsStr::new(options)]);
    }
    arguments.extend([OsStr::new(&source), target.as_os_str()]);
    run("mount", &arguments).await.map_err(|error| {
        let mut text = format!("mount of {source}: {error}");
        if without_kernel_client(&text) {
            text.push_str(&format!(
                "; the kernel of node {node} has no NFS client (module nfs), so it cannot mount this volume"
            ));
        }
        OpError::new(SET_UP, error.failure(), text)
    })
}

/// What mount.nfs says where the kernel does not know the filesystem.
fn without_kernel_client(text: &str) -> bool {
    ["No such device", "unknown filesystem type", "Protocol not supported"]
        .iter()
        .any(|words| text.contains(words))
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/sbin", "/usr/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).any(|dir| dir.join(name).is_file())
}

/// Why a program of the system did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("no answer within {} s", PROGRAM_TIMEOUT.as_secs())]
    Timeout,
    #[error("cannot run {program}: {source}")]
    Start { program: String, source: io::Error },
    /// With what it wrote to standard error.
    #[error("{0}")]
    Failed(String),
}

impl ProgramError {
    fn failure(&self) -> Failure {
        match self {
            // It may still happen: the kernel ends a mount when it likes.
            Self::Timeout => Failure::Uncertain,
            Self::Start { .. } | Self::Failed(_) => Failure::Final,
        }
    }
}

/// Runs a program of the system. Its `mount` knows the helpers of all filesystems.
async fn run(program: &str, arguments: &[&OsStr]) -> Result<(), ProgramError> {
    let done =
        Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let done =
        tokio::time::timeout(PROGRAM_TIMEOUT, done).await.map_err(|_| ProgramError::Timeout)?;
    let done =
        done.map_err(|source| ProgramError::Start { program: program.to_owned(), source })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(ProgramError::Failed(lines.join("; ")))
}

/// Unmounts until nothing is mounted there. Never lazily: what is busy stays and is tried again.
async fn unmount(target: &Path) -> io::Result<()> {
    while is_mount_point(target)? {
        run("umount", &[target.as_os_str()]).await.map_err(io::Error::other)?;
    }
    Ok(())
}

fn clean(target: &Path) -> io::Result<()> {
    if is_mount_point(target)? {
        return Err(io::Error::other(format!("{} is still a mount point", target.display())));
    }
    files::tolerate_absence(fs::remove_dir(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_keep_their_order() {
        let own = ["noatime".to_owned(), "nfsvers=4.1".to_owned()];
        for (first, own, read_only, expected) in [
            (Some("bind"), &own[..0], false, "bind"),
            (Some("bind"), &own[..], true, "bind,noatime,nfsvers=4.1,ro"),
            (None, &own[..], false, "noatime,nfsvers=4.1"),
            (None, &own[..0], false, ""),
        ] {
            let got = match first {
                Some(first) => options([first], own, read_only),
                None => options([], own, read_only),
            };
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_kernel_without_nfs_differs_from_a_server_that_refuses() {
        assert!(without_kernel_client("mount.nfs: No such device"));
        assert!(without_kernel_client("mount: /x: unknown filesystem type 'nfs'."));
        assert!(!without_kernel_client("mount.nfs: access denied by server while mounting s:/x"));
    }
}
