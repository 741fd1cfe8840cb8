//! Builds a container's root inside its own mount namespace and moves into it.
//!
//! The root is an overlay over the host's root whose writes land in a tmpfs that only this
//! namespace sees: it needs no clean-up, and the host is never written. Volumes are cloned as
//! detached mounts before the move and attached after it, so that paths inside the container are
//! resolved by the container's own links. At the end the copy of the host's mount table is
//! dropped: a namespace that kept it would hold other pods' volumes busy.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_files::mounts::mounts_below;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, move_mount, open_tree, unmount,
};

use super::devices::Nodes;
use super::hide::{cover, hide};
use super::protocol::{Bind, ContainerRun, Sandbox};
use super::system::system_mounts;
use crate::protected::{self, Relation};

/// A step that failed, for the container's status.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub(super) struct SetupError {
    what: String,
    source: io::Error,
}

/// Names a step in its error.
pub(super) trait Step<T> {
    fn step(self, what: impl Into<String>) -> Result<T, SetupError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: impl Into<String>) -> Result<T, SetupError> {
        self.map_err(|error| SetupError { what: what.into(), source: error.into() })
    }
}

/// Host directories that are often filesystems of their own and belong to the system.
pub(super) const SYSTEM_DIRS: [&str; 9] =
    ["/usr", "/opt", "/home", "/etc", "/var", "/srv", "/root", "/nix", "/lib"];

/// Builds the root on `base` (an empty directory) and makes it this process's root.
///
/// # Errors
/// A mount failed; the process must not go on.
pub(super) fn enter(run: &ContainerRun, base: &Path, shm: OwnedFd) -> Result<(), SetupError> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)
        .step("make mounts slave")?;
    let resolver =
        resolver_file().map(|bind| clone_volume(&bind).map(|tree| (bind, tree))).transpose()?;
    let volumes = clone_volumes(run)?;
    let nodev = if run.needs_nodev() { MountFlags::NODEV } else { MountFlags::empty() };
    let root = overlay_root(base, nodev)?;
    let nodes = Nodes::make(base)?;
    hide(&run.hidden, &root, &nodes.null())?;
    system_mounts(run, &root, shm, &nodes, nodev)?;
    pivot(&root)?;
    write_names(&run.sandbox)?;
    if let Some((bind, tree)) = resolver {
        attach(&bind, tree)?;
    }
    for (bind, (tree, covered)) in run.binds.iter().zip(volumes) {
        attach(bind, tree)?;
        cover_all(&bind.target, &covered)?;
    }
    if run.read_only_root {
        remount_root_read_only(nodev)?;
    }
    Ok(())
}

/// Where names are looked up, when that file lies in `/run`, which is fresh in the container.
fn resolver_file() -> Option<Bind> {
    let file = fs::canonicalize("/etc/resolv.conf").ok()?;
    let in_run = file.starts_with("/run");
    in_run.then(|| Bind { source: file.clone(), target: file, read_only: true, ..Bind::default() })
}

/// Clones each volume, with the paths in it that must be covered.
fn clone_volumes(run: &ContainerRun) -> Result<Vec<(OwnedFd, Vec<PathBuf>)>, SetupError> {
    let clone = |bind: &Bind| {
        let source = open_source(bind)?;
        let covered = match bind.host && !run.privileged {
            true => judge(bind, &source, &run.hidden)?,
            false => Vec::new(),
        };
        Ok((clone_opened(bind, &source, run.needs_nodev() && !bind.device)?, covered))
    };
    run.binds.iter().map(clone).collect()
}

fn open_source(bind: &Bind) -> Result<OwnedFd, SetupError> {
    protected::open(&bind.source).step(format!("open volume {}", bind.source.display()))
}

/// What of the instance a path of the host shows. It is judged here, on the descriptor that is
/// bound: a path that was judged before may have become a link meanwhile.
fn judge(bind: &Bind, source: &OwnedFd, hidden: &[PathBuf]) -> Result<Vec<PathBuf>, SetupError> {
    let step = || format!("bind host path {}", bind.source.display());
    match protected::relation(source, hidden).step(step())? {
        Relation::Apart => Ok(Vec::new()),
        Relation::Above(places) => Ok(places),
        Relation::Inside(dir) => Err(protected::refusal(&dir)).step(step()),
    }
}

/// Covers places below a mounted volume. Mounts below them go: they would keep volumes busy.
fn cover_all(target: &Path, places: &[PathBuf]) -> Result<(), SetupError> {
    for place in places {
        let inside = target.join(place);
        let step = || format!("hide {}", inside.display());
        for point in mounts_below(&inside).step(step())?.into_iter().rev() {
            // One that lay below another is gone with it.
            let _ = unmount(&point, UnmountFlags::DETACH);
        }
        cover(&inside, Path::new("/dev/null")).step(step())?;
    }
    Ok(())
}

/// Clones what holds no devices.
pub(super) fn clone_volume(bind: &Bind) -> Result<OwnedFd, SetupError> {
    clone_opened(bind, &open_source(bind)?, true)
}

fn clone_opened(bind: &Bind, source: &OwnedFd, nodev: bool) -> Result<OwnedFd, SetupError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree =
        open_tree(source, "", flags).step(format!("open volume {}", bind.source.display()))?;
    let mut attributes = 0;
    if bind.read_only {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    if nodev {
        attributes |= libc::MOUNT_ATTR_NODEV;
    }
    add_attributes(&tree, attributes)
        .step(format!("set flags of volume {}", bind.source.display()))?;
    Ok(tree)
}

/// Adds mount attributes to a detached tree and leaves the others as the driver set them.
#[expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]
pub(super) fn add_attributes(tree: &OwnedFd, attributes: u64) -> io::Result<()> {
    if attributes == 0 {
        return Ok(());
    }
    let attr = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the descriptor is open, the path is a valid empty string, and `attr` lives through
    // the call with its own size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts the throw-away root and the host's system directories that lie on other filesystems.
fn overlay_root(base: &Path, nodev: MountFlags) -> Result<PathBuf, SetupError> {
    mount("longshore", base, "tmpfs", MountFlags::NODEV, c"mode=0755")
        .step("mount the writable layer")?;
    let root = base.join("root");
    make_dir(&root)?;
    overlay(base, "0", Path::new("/"), &root, nodev)?;
    for (index, dir) in SYSTEM_DIRS.iter().enumerate() {
        let host = Path::new(dir);
        if is_separate_filesystem(host) {
            let target = root.join(dir.trim_start_matches('/'));
            overlay(base, &(index + 1).to_string(), host, &target, nodev)?;
        }
    }
    Ok(root)
}

fn overlay(
    base: &Path,
    layer: &str,
    lower: &Path,
    target: &Path,
    nodev: MountFlags,
) -> Result<(), SetupError> {
    let (upper, work) = (base.join(format!("upper{layer}")), base.join(format!("work{layer}")));
    for dir in [&upper, &work] {
        fs::create_dir(dir).step("make the writable layer")?;
    }
    // Modes of the upper directory are what the container sees as the mode of the overlay's root.
    let mode = fs::metadata(lower).step("read the host directory")?.permissions();
    fs::set_permissions(&upper, mode).step("set the mode of the writable layer")?;
    // Relative names, because commas and colons in a data directory's path would end the option.
    std::env::set_current_dir(base).step("enter the writable layer")?;
    let options = format!("lowerdir={},upperdir=upper{layer},workdir=work{layer}", lower.display());
    let options = CString::new(options).map_err(io::Error::from).step("name the layers")?;
    mount("longshore", target, "overlay", nodev, options.as_c_str())
        .step(format!("mount a throw-away copy of {}", lower.display()))
}

pub(super) fn is_separate_filesystem(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(link), Ok(root)) = (fs::symlink_metadata(dir), fs::metadata("/")) else { return false };
    link.is_dir() && link.dev() != root.dev()
}

fn pivot(root: &Path) -> Result<(), SetupError> {
    std::env::set_current_dir(root).step("enter the new root")?;
    rustix::process::pivot_root(".", ".").step("change the root")?;
    // The old root now lies on top of the new one at the same place; without it nothing of the
    // host's mount table is left in this namespace.
    unmount(".", UnmountFlags::DETACH).step("leave the old root")?;
    std::env::set_current_dir("/").step("enter /")
}

/// Writes the files that make the pod's name known inside it. The host's are underneath.
fn write_names(sandbox: &Sandbox) -> Result<(), SetupError> {
    make_dir(Path::new("/etc"))?;
    if let Some(name) = &sandbox.hostname {
        replace("/etc/hostname", &format!("{name}\n"))?;
    }
    if sandbox.hosts.is_empty() {
        return Ok(());
    }
    let mut text = fs::read_to_string("/etc/hosts").unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for line in &sandbox.hosts {
        text.push_str(line);
        text.push('\n');
    }
    replace("/etc/hosts", &text)
}

/// Writes a file anew: a link would lead elsewhere.
fn replace(path: &str, text: &str) -> Result<(), SetupError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::write(path, text),
    }
    .step(format!("write {path}"))
}

fn attach(bind: &Bind, tree: OwnedFd) -> Result<(), SetupError> {
    let is_dir = rustix::fs::fstat(&tree)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
        .step(format!("look at volume {}", bind.source.display()))?;
    if is_dir {
        make_dir(&bind.target)?;
    } else {
        if let Some(parent) = bind.target.parent() {
            make_dir(parent)?;
        }
        if !bind.target.exists() {
            fs::write(&bind.target, "").step(format!("make {}", bind.target.display()))?;
        }
    }
    place(tree, &bind.target)
}

// Takes the descriptor: one that stays open would keep the volume busy after its unmount.
pub(super) fn place(tree: OwnedFd, target: &Path) -> Result<(), SetupError> {
    move_mount(tree.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step(format!("mount at {}", target.display()))
}

fn remount_root_read_only(nodev: MountFlags) -> Result<(), SetupError> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | nodev;
    rustix::mount::mount_remount("/", flags, c"").step("make the root read-only")
}

/// Makes a directory and its parents.
pub(super) fn make_dir(dir: &Path) -> Result<(), SetupError> {
    fs::create_dir_all(dir).step(format!("make {}", dir.display()))
}
