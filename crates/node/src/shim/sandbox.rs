//! What the containers of a pod share: host name, IPC objects and shared memory.
//!
//! The shim itself moves into the pod's UTS and IPC namespaces, so every container that it starts
//! is in them, also after a restart, and they end with it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::protocol::Sandbox;

/// The namespaces that the shim is in.
#[derive(Default)]
pub(super) struct Shared {
    entered: bool,
    /// The pod's `/dev/shm`, mounted nowhere.
    shm: Option<OwnedFd>,
}

impl Shared {
    /// Moves into the pod's namespaces, once.
    ///
    /// # Errors
    /// They cannot be made; no container may be started.
    pub(super) fn enter(&mut self, sandbox: &Sandbox) -> io::Result<()> {
        if !self.entered {
            unshare(UnshareFlags::NEWUTS | UnshareFlags::NEWIPC)
                .map_err(|error| named("make the pod's namespaces", error))?;
            self.entered = true;
        }
        if let Some(name) = &sandbox.hostname {
            rustix::system::sethostname(name.as_bytes())
                .map_err(|error| named("set the host name", error.into()))?;
        }
        for (name, value) in &sandbox.sysctls {
            let file = Path::new("/proc/sys").join(name.replace('.', "/"));
            std::fs::write(&file, value)
                .map_err(|error| named(&format!("set the kernel setting {name}"), error))?;
        }
        Ok(())
    }

    /// The pod's shared memory for one more container. `place` is an empty directory.
    ///
    /// A detached mount can be attached only once and on older kernels not be cloned, so it is
    /// attached in a mount namespace that lives for this call, and cloned twice there.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(super) fn shm(&mut self, place: &Path) -> io::Result<OwnedFd> {
        let before = self.shm.take();
        let (kept, given) = in_own_mount_namespace(|| {
            match &before {
                Some(tree) => {
                    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                    move_mount(tree.as_fd(), "", CWD, place, flags)?;
                }
                None => {
                    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                    mount("shm", place, "tmpfs", flags, c"mode=1777,size=64m")?;
                }
            }
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            Ok((open_tree(CWD, place, flags)?, open_tree(CWD, place, flags)?))
        })
        .map_err(|error| named("mount the pod's shared memory", error))?;
        self.shm = Some(kept);
        Ok(given)
    }
}

fn named(step: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{step}: {error}"))
}

/// Does something in a copy of this mount namespace and comes back.
fn in_own_mount_namespace<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let home = File::open("/proc/self/ns/mnt")?;
    unshare(UnshareFlags::NEWNS)?;
    let propagation = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    let done = mount_change("/", propagation).map_err(io::Error::from).and_then(|()| act());
    if let Err(error) = move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Mount)) {
        // What it would mount from now on would not be what the agent sees.
        eprintln!("cannot come back from a mount namespace: {error}");
        std::process::exit(1);
    }
    done
}

/// Leaves namespaces for new ones.
#[expect(unsafe_code, reason = "unshare is unsafe for the flag of the descriptor table")]
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the descriptor table stays shared with nobody and untouched.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}
