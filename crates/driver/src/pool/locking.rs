//! Checks that file locks in a pool hold across the machines that see it.
//!
//! Nodes of a `shared` driver take turns through locks on files. Where each machine keeps its locks
//! to itself, two would write to one volume and neither would know.

use longshore_files::mounts::Mount;

use super::PoolError;

/// Refuses a pool on which locks do not hold across machines. A mount that is hidden from this
/// process is not checked.
pub(super) fn check(pool: &str, mount: Option<&Mount>) -> Result<(), PoolError> {
    let Some(mount) = mount else { return Ok(()) };
    match doubt(&mount.fstype, &mount.options) {
        None => Ok(()),
        Some(why) => {
            Err(PoolError::Locking { pool: pool.to_owned(), fstype: mount.fstype.clone(), why })
        }
    }
}

/// Why locks on a filesystem may not hold everywhere. Those that only one machine can have are fine.
fn doubt(fstype: &str, options: &str) -> Option<&'static str> {
    let has = |wanted: &[&str]| options.split(',').any(|option| wanted.contains(&option));
    match fstype {
        "nfs" | "nfs4" if has(&["nolock", "local_lock=all", "local_lock=flock"]) => {
            Some("it is mounted so that locks stay on each machine (nolock, local_lock)")
        }
        "cifs" | "smb3" if has(&["nobrl"]) => {
            Some("it is mounted so that locks stay on each machine (nobrl)")
        }
        "lustre" if !has(&["flock"]) => Some("it is mounted without the option flock"),
        "9p" | "virtiofs" => Some("its locks stay on each machine"),
        "fuse" => Some("whether its locks hold on other machines cannot be told"),
        other if other.starts_with("fuse.") => {
            Some("whether its locks hold on other machines cannot be told")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_without_locks_across_machines_are_refused() {
        let cases = [
            ("ext4", "rw,discard", true),
            ("xfs", "rw", true),
            ("tmpfs", "rw", true),
            ("overlay", "rw", true),
            ("fuseblk", "rw", true),
            ("ceph", "rw", true),
            ("nfs4", "rw,vers=4.2,local_lock=none", true),
            ("nfs", "rw,vers=3,local_lock=posix", true),
            ("nfs", "rw,nolock,local_lock=all", false),
            ("nfs", "rw,local_lock=flock", false),
            ("nfs4", "rw,local_lock=all", false),
            ("cifs", "rw,vers=3.1.1", true),
            ("cifs", "rw,nobrl", false),
            ("lustre", "rw,flock", true),
            ("lustre", "rw,localflock", false),
            ("9p", "rw,trans=virtio", false),
            ("virtiofs", "rw", false),
            ("fuse.sshfs", "rw", false),
            ("fuse", "rw", false),
        ];
        for (fstype, options, want) in cases {
            assert_eq!(doubt(fstype, options).is_none(), want, "{fstype} {options}");
        }
    }
}
