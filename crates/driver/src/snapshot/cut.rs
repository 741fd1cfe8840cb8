//! Cutting: copies of one or several volumes as they are at one moment.
//!
//! A volume in use is quiesced first: a mounted filesystem is frozen, a raw device is flushed, by
//! the process of the node that has it. Pods wait while it is frozen, so everything slow (writing
//! back, making files, flushing the copies) happens before or after that.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use crate::config::DriverKind;
use crate::copy::{self, CopyError, Method, Terms};
use crate::driver::Inner;
use crate::freeze::{FreezeError, Frozen};
use crate::id::VolumeId;
use crate::loopdev::{self, LoopDevice};
use crate::node::show;
use crate::pool::Pool;
use crate::pool::record::Record;
use crate::quiesce::Usage;
use crate::quiesce::client::RemoteVolume;
use crate::refusal::Refusal;
use longshore_core::words;
use longshore_files::mounts::MountTable;

/// A volume to be copied, and the empty file that gets the copy.
pub(crate) struct Job<'a> {
    pub pool: &'a Pool,
    pub record: &'a Record,
    pub to: &'a File,
    /// The copy may share blocks, as far as it is concerned.
    pub share: bool,
}

impl Job<'_> {
    /// Whether blocks will be shared. A thick volume keeps its own: a shared block is
    /// allocated again when it is written to, and a thick volume must never need that.
    fn shares(&self) -> bool {
        self.share && self.pool.shares() && !self.record.is_thick()
    }
}

/// How a volume is used while it is copied.
pub(crate) enum Use {
    Idle,
    /// A filesystem is mounted; one of its directories.
    Mounted(OwnedFd),
    /// It is a raw device on this node.
    Raw(LoopDevice),
    /// Another process of this machine has it, and keeps it as it is.
    Elsewhere(RemoteVolume),
}

impl Use {
    fn is_raw(&self) -> bool {
        match self {
            Self::Raw(_) => true,
            Self::Elsewhere(remote) => remote.usage == Usage::Raw,
            Self::Idle | Self::Mounted(_) => false,
        }
    }
}

/// A volume ready to be cut.
struct Ready<'a> {
    job: &'a Job<'a>,
    image: File,
    usage: Use,
    /// Keeps other processes from staging the volume meanwhile.
    _lock: File,
}

/// A frozen filesystem, and who holds it.
enum Hold {
    Here(Frozen),
    There(RemoteVolume),
}

type Held<'a> = (&'a Job<'a>, Hold);

impl Inner {
    /// Copies all volumes as they are at one moment between now and the response. The caller holds
    /// the lock of each, which unstaging needs too.
    pub(crate) fn cut(&self, jobs: &[Job<'_>]) -> Result<Vec<Method>, Refusal> {
        let mut ready = Vec::with_capacity(jobs.len());
        for job in jobs {
            ready.push(self.prepare(job, jobs.len() > 1)?);
        }
        let (frozen, until) = match self.freeze_all(&mut ready) {
            Ok(frozen) => frozen,
            Err(error) => return Err(self.advise(error)),
        };
        let copied: Result<Vec<_>, _> = ready.iter().map(|one| self.copy_one(one, until)).collect();
        // Whether or not the copies succeeded.
        let held = self.thaw_all(frozen);
        let copied = copied.map_err(|error| self.advise(error))?;
        held.map(|()| copied)
    }

    /// Freezes whatever is mounted, one after the other; when the last one is frozen, all are.
    fn freeze_all<'a>(
        &self,
        ready: &mut [Ready<'a>],
    ) -> Result<(Vec<Held<'a>>, Option<Instant>), Refusal> {
        let mut until = None;
        let mut held = Vec::new();
        let budget = self.config.copy_budget;
        let mut deadline = || *until.get_or_insert_with(|| Instant::now() + budget);
        for one in ready {
            let job = one.job;
            let hold = match std::mem::replace(&mut one.usage, Use::Idle) {
                Use::Mounted(mount) => self
                    .freeze_one(job.pool, &job.record.id, &mount, deadline())
                    .map(|frozen| Some(Hold::Here(frozen))),
                Use::Elsewhere(mut remote) if remote.usage == Usage::Mounted => {
                    let frozen = remote.freeze(deadline());
                    frozen.map(|()| {
                        self.fault("remote.frozen");
                        Some(Hold::There(remote))
                    })
                }
                // Kept as it is until all is done.
                other => {
                    one.usage = other;
                    Ok(None)
                }
            };
            match hold {
                Ok(hold) => held.extend(hold.map(|hold| (job, hold))),
                Err(error) => {
                    // The first failure is returned.
                    let _ = self.thaw_all(held);
                    return Err(error);
                }
            }
        }
        Ok((held, until))
    }

    /// Freezes a filesystem that is mounted here.
    pub(crate) fn freeze_one(
        &self,
        pool: &Pool,
        id: &VolumeId,
        mount: &OwnedFd,
        until: Instant,
    ) -> Result<Frozen, Refusal> {
        let node = &self.config.node_id;
        let fail = |source| Refusal::Freeze { id: id.clone(), source };
        let mount = mount.try_clone().map_err(|e| fail(io("use its mount", e)))?;
        let note = pool.freeze_note(id, node)?;
        self.fault("freeze.noted");
        let frozen = Frozen::freeze(self.config.freeze_holder.as_ref(), mount, note, until);
        // A holder that is still at it keeps its note, for whoever comes next.
        if !matches!(frozen, Ok(_) | Err(FreezeError::TooSlow | FreezeError::Ending)) {
            pool.forget_freeze(id, node)?;
        }
        if frozen.is_ok() {
            self.fault("freeze.frozen");
        }
        frozen.map_err(fail)
    }

    /// Thaws a filesystem that is mounted here, and says whether it was frozen until now.
    pub(crate) fn thaw_one(
        &self,
        pool: &Pool,
        id: &VolumeId,
        frozen: Frozen,
    ) -> Result<(), Refusal> {
        let thawed = frozen.thaw().map_err(|source| Refusal::Freeze { id: id.clone(), source });
        self.fault("freeze.thawed");
        let forgotten = pool.forget_freeze(id, &self.config.node_id);
        thawed.and(forgotten.map_err(Refusal::from))
    }

    /// Thaws everything, and says whether it was all frozen until now.
    fn thaw_all(&self, frozen: Vec<Held<'_>>) -> Result<(), Refusal> {
        let mut held = Ok(());
        for (job, hold) in frozen {
            let thawed = match hold {
                Hold::Here(frozen) => self.thaw_one(job.pool, &job.record.id, frozen),
                Hold::There(remote) => remote.thaw(),
            };
            held = held.and(thawed);
        }
        held
    }

    fn prepare<'a>(&self, job: &'a Job<'a>, several: bool) -> Result<Ready<'a>, Refusal> {
        let (pool, id) = (job.pool, &job.record.id);
        let lock = pool.lock_image(id)?;
        // As it is now, and not as it was before the lock: another node may have staged it.
        let record = pool
            .read(id)?
            .ok_or_else(|| Refusal::NotFound(format!("volume {id} does not exist")))?;
        let usage = self.usage(pool, &record)?;
        if usage.is_raw() && several {
            return Err(Refusal::Precondition(format!(
                "volume {id} is in use as a raw device, which cannot be held still together \
                 with others; stop its pod or take it out of the group"
            )));
        }
        if usage.is_raw() && !job.shares() {
            return Err(Refusal::Precondition(format!(
                "volume {id} is in use as a raw device and can only be copied slowly; stop its \
                 pod, or use thin volumes in a pool on xfs or btrfs"
            )));
        }
        self.write_back(id, &usage)?;
        let image = pool.image(id, OFlags::RDONLY)?;
        if matches!(usage, Use::Mounted(_) | Use::Elsewhere(_)) {
            let fail = |source| Refusal::Freeze { id: id.clone(), source };
            image.sync_data().map_err(|e| fail(io("write it back", e)))?;
        }
        Ok(Ready { job, image, usage, _lock: lock })
    }

    /// Writes back what would otherwise be written while the volume is frozen.
    pub(crate) fn write_back(&self, id: &VolumeId, usage: &Use) -> Result<(), Refusal> {
        match usage {
            Use::Mounted(mount) => {
                let written = rustix::fs::syncfs(mount).map_err(std::io::Error::from);
                let fail = |source| Refusal::Freeze { id: id.clone(), source };
                written.map_err(|e| fail(io("write it back", e)))
            }
            Use::Raw(device) => Ok(loopdev::flush(*device)?),
            // The other node has done so.
            Use::Idle | Use::Elsewhere(_) => Ok(()),
        }
    }

    /// Finds the node that uses the volume. Freezing is possible only on the node that has it
    /// mounted.
    fn usage(&self, pool: &Pool, record: &Record) -> Result<Use, Refusal> {
        let (id, here) = (&record.id, &self.config.node_id);
        for other in record.attachments.iter().filter(|one| one.node != *here) {
            // Several nodes that only read leave the image as it is.
            if !other.many_nodes && pool.is_staged(id, &other.node)? {
                let remote = RemoteVolume::prepare(pool, id, &other.node)?;
                self.fault("remote.ready");
                return Ok(Use::Elsewhere(remote));
            }
        }
        self.usage_here(pool, id)
    }

    /// How this node has a volume.
    pub(crate) fn usage_here(&self, pool: &Pool, id: &VolumeId) -> Result<Use, Refusal> {
        if self.config.kind == DriverKind::Shared && !self.config.mode.node() {
            return Ok(Use::Idle);
        }
        let observed = self.observe(pool, id)?;
        let Some(device) = observed.device else {
            if self.config.kind == DriverKind::Local && loopdev::is_bound(id, observed.backing)? {
                let text = format!("volume {id} is in use on a loop device of somebody else");
                return Err(Refusal::Precondition(text));
            }
            return Ok(Use::Idle);
        };
        if let Some(entry) =
            observed.mounts().into_iter().find(|entry| observed.is_filesystem(entry))
        {
            return Ok(Use::Mounted(open_mount(&entry.path, entry.device)?));
        }
        if observed.staged.as_ref().is_some_and(|staged| staged.block) {
            return Ok(Use::Raw(device));
        }
        if loopdev::is_claimed(device)? {
            let text = format!("volume {id} is in use in another mount namespace; stop its pod");
            return Err(Refusal::Precondition(text));
        }
        Ok(Use::Idle)
    }

    fn copy_one(&self, one: &Ready<'_>, until: Option<Instant>) -> Result<Method, Refusal> {
        let terms = Terms { share: one.job.shares(), until };
        let copied = copy::copy(&one.image, one.job.to, terms);
        let copied =
            copied.map_err(|source| Refusal::Copy { id: one.job.record.id.clone(), source })?;
        self.fault("cut.copied");
        Ok(copied)
    }

    /// Adds what to do about a volume that cannot be copied in time.
    pub(crate) fn advise(&self, refusal: Refusal) -> Refusal {
        let slow = matches!(
            refusal,
            Refusal::Copy { source: CopyError::TooSlow { .. }, .. }
                | Refusal::Freeze { source: FreezeError::TooSlow, .. }
        );
        if !slow {
            return refusal;
        }
        Refusal::Precondition(format!(
            "{refusal}; its pod may be held up for {} at most: stop the pod, or use thin volumes in \
             a pool on xfs or btrfs, where a copy takes no time",
            words::time(self.config.copy_budget)
        ))
    }
}

/// Opens the root of a mounted filesystem, and makes sure that it is that one.
pub(super) fn open_mount(path: &std::path::Path, device: (u32, u32)) -> Result<OwnedFd, Refusal> {
    let fail = |error: rustix::io::Errno| {
        Refusal::Precondition(format!("cannot open the mount at {}: {error}", show(path)))
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
    let table = MountTable::read().map_err(Refusal::MountTable)?;
    let found = table.of_file(&fd).map_err(Refusal::MountTable)?;
    if found.map(|mount| mount.device) != Some(device) {
        let text = format!("what is mounted at {} changed meanwhile", show(path));
        return Err(Refusal::Precondition(text));
    }
    Ok(fd)
}

fn io(what: &'static str, source: std::io::Error) -> FreezeError {
    FreezeError::Io { what, source }
}
