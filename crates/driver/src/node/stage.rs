//! NodeStageVolume and NodeUnstageVolume.
//!
//! Staging is noted beside the record before the first step and forgotten after the last, so that
//! whoever asks whether a node may have the volume never hears "no" too early.

use longshore_csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::os::fd::AsFd;

use super::{Observed, show};
use crate::access::{Access, AccessKind};
use crate::config::{DriverKind, FsType};
use crate::driver::Inner;
use crate::fault::Leak;
use crate::format::{self, FormatOptions, Plan};
use crate::loopdev::{self, Binding, tune};
use crate::mount::checked_path::{CheckedPath, PathError, same_text};
use crate::mount::options::Options;
use crate::mount::{mount_filesystem, unmount};
use crate::pool::record::{Content, Record, Staged};
use crate::pool::{Pool, PoolError};
use crate::refusal::Refusal;

/// How many devices are given up in a row because they refuse discards.
const RENEWALS: u32 = 16;

impl Inner {
    /// Attaches the volume's device and, unless it is used raw, mounts its filesystem.
    pub(crate) fn stage(
        &self,
        request: &NodeStageVolumeRequest,
    ) -> Result<NodeStageVolumeResponse, Refusal> {
        let access = Access::parse(request.volume_capability.as_ref(), self.config.kind)?;
        let fields = [("staging_target_path", request.staging_target_path.as_str())];
        let id = self.node_volume(&request.volume_id, &fields)?;
        let (pool, record) = self.need(&id)?;
        let checked = self.node_path("staging_target_path", &request.staging_target_path)?;
        if let Some(conflict) = access.conflict_with(&record) {
            return Err(Refusal::Precondition(conflict));
        }
        let mut wanted = Staged {
            node: self.config.node_id.clone(),
            path: request.staging_target_path.clone(),
            block: access.is_block(),
            read_only: access.reads_only() || access.mounts_read_only(),
        };
        self.check_attached(&record, &mut wanted)?;
        let observed = self.observe(pool, &id)?;
        if already_staged(&observed, &checked, &wanted)? {
            if observed.staged.is_none() {
                pool.note_staging(&id, &wanted)?;
            }
            return Ok(NodeStageVolumeResponse {});
        }
        self.clear_leftover(&observed, &record)?;
        let record = pool.update(&id, |record| {
            // Looked at again: the leave may have been taken back since.
            self.check_attached(record, &mut wanted)?;
            Ok::<_, Refusal>(pool.note_staging(&id, &wanted)?)
        })?;
        self.fault("stage.noted");
        let staged = match &access.kind {
            AccessKind::Block => self.stage_block(pool, &record, wanted.read_only),
            AccessKind::Mount { fstype, flags } => {
                let fstype = fstype.or(record.fstype).unwrap_or(self.config.default_fstype);
                let options = Options::parse(flags, fstype).map_err(Refusal::from);
                options.and_then(|mut options| {
                    options.read_only |= wanted.read_only;
                    let many_nodes = access.many_nodes();
                    self.stage_filesystem(pool, &record, &checked, fstype, &options, many_nodes)
                })
            }
        };
        if staged.is_err()
            && let Err(error) = pool.forget_staging(&id, &self.config.node_id)
        {
            // The first failure is returned; the caller unstages after it, which tries again.
            tracing::warn!(volume = %id, %error, "a failed staging stays noted");
        }
        staged.map(|()| NodeStageVolumeResponse {})
    }

    /// A `shared` volume may be staged only with leave, and only as far as the leave goes.
    fn check_attached(&self, record: &Record, wanted: &mut Staged) -> Result<(), Refusal> {
        if self.config.kind == DriverKind::Local {
            return Ok(());
        }
        let (id, node) = (&record.id, &self.config.node_id);
        let Some(attachment) = record.attachment(node) else {
            return Err(Refusal::Precondition(format!(
                "volume {id} is not attached to node {node}"
            )));
        };
        if attachment.block != wanted.block {
            let text = format!("volume {id} is attached to node {node} for another kind of access");
            return Err(Refusal::Precondition(text));
        }
        wanted.read_only |= attachment.read_only;
        Ok(())
    }

    /// Removes a device that an interrupted call left: bound, but used by nothing.
    pub(super) fn clear_leftover(
        &self,
        observed: &Observed,
        record: &Record,
    ) -> Result<(), Refusal> {
        let Some(device) = observed.device else { return Ok(()) };
        if let Some(entry) = observed.mounts().first() {
            return Err(Refusal::Exists(format!(
                "volume {} is mounted at {}",
                record.id,
                show(&entry.path)
            )));
        }
        if loopdev::is_claimed(device)? {
            let text = format!("volume {} is in use in another mount namespace", record.id);
            return Err(Refusal::Precondition(text));
        }
        Ok(loopdev::detach(&observed.id, observed.backing, &observed.tag)?)
    }

    fn stage_block(&self, pool: &Pool, record: &Record, read_only: bool) -> Result<(), Refusal> {
        // From here on anything may be written to it, so it is never formatted again.
        pool.update(&record.id, |record| {
            if record.content == Content::Blank {
                record.content = Content::Raw;
            }
            Ok::<_, PoolError>(())
        })?;
        pool.stretch(record)?;
        self.attach_device(pool, record, Binding { read_only, autoclear: false })?;
        Ok(())
    }

    pub(super) fn stage_filesystem(
        &self,
        pool: &Pool,
        record: &Record,
        checked: &CheckedPath,
        fstype: FsType,
        options: &Options,
        many_nodes: bool,
    ) -> Result<(), Refusal> {
        match checked.kind()? {
            Some(FileType::Directory) => {}
            Some(_) | None => {
                let text =
                    format!("staging_target_path {} is not a directory", show(checked.path()));
                return Err(Refusal::Precondition(text));
            }
        }
        checked.must_be_empty()?;
        self.prepare_filesystem(pool, record, fstype, many_nodes)?;
        let may_grow = !options.read_only && !many_nodes;
        if may_grow {
            pool.stretch(record)?;
            let image = pool.image(&record.id, OFlags::RDWR)?;
            self.grow_before_mount(&image, record, fstype);
            self.tune_image(&image, record, fstype)?;
        }
        // One reader may replay the journal of a crash; several at once may not write at all.
        let held =
            self.attach_device(pool, record, Binding { read_only: many_nodes, autoclear: true })?;
        self.fault("stage.attached");
        let onto = checked.open()?;
        let mut options = options.clone();
        if self.mutable(record)?.discard == Some(true) && !record.is_thick() {
            options.filesystem.push(("discard".to_owned(), None));
        }
        mount_filesystem(&held.device.path(), fstype, &options, onto.as_fd())?;
        drop(onto);
        self.fault("stage.mounted");
        if may_grow {
            self.grow_after_mount(held.device, checked, record, fstype);
        }
        Ok(())
    }

    fn attach_device(
        &self,
        pool: &Pool,
        record: &Record,
        binding: Binding,
    ) -> Result<loopdev::Held, Refusal> {
        let access = if binding.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let image = pool.image(&record.id, access)?;
        let tag = loopdev::Tag::new(&record.id, &self.config.node_id, pool.file_id());
        // Devices that once refused discards are given up, each at most once.
        for _ in 0..RENEWALS {
            let held = loopdev::attach(&image, &tag, binding)?;
            let number = held.device.number;
            let usable = !self.wants_discards(record)? || tune::takes_discards(held.device)?;
            let tuned = self.tune_device(held.device, record);
            if usable && tuned.is_ok() {
                return Ok(held);
            }
            drop(held);
            loopdev::detach(&record.id, pool.image_id(&record.id)?.into(), &tag)?;
            tuned?;
            tune::renew(number)?;
        }
        Ok(loopdev::attach(&image, &tag, binding)?)
    }

    /// Sees to it that the image holds the filesystem, making it if the image is blank and new.
    fn prepare_filesystem(
        &self,
        pool: &Pool,
        record: &Record,
        fstype: FsType,
        many_nodes: bool,
    ) -> Result<(), Refusal> {
        let id = &record.id;
        let image = pool.image(id, OFlags::RDONLY)?;
        match format::plan(&image, record.content == Content::Blank, fstype)? {
            Plan::Mount => {}
            Plan::Make if many_nodes => {
                let text = format!("volume {id} is blank: it must be staged by one node first");
                return Err(Refusal::Precondition(text));
            }
            Plan::Make => {
                let options = FormatOptions::parse(&record.parameters, Some(fstype))?;
                let scratch = pool.scratch(record)?;
                self.fault("stage.scratch-made");
                if let Err(error) = self.fill_scratch(pool, record, &scratch, fstype, &options) {
                    pool.drop_scratch(id)?;
                    return Err(error);
                }
                self.fault("stage.formatted");
                pool.adopt_scratch(id, &scratch)?;
                return Ok(());
            }
        }
        // A copy of a volume that was formatted just then is recorded as blank.
        let copied = record.content == Content::Blank && record.source.is_some();
        if record.content == Content::Copy || copied {
            if many_nodes {
                let text = format!("volume {id} is a new copy: one node must stage it first");
                return Err(Refusal::Precondition(text));
            }
            // Before any device shows it: two filesystems of one identity confuse the kernel.
            let image = pool.image(id, OFlags::RDWR)?;
            format::uuid::renew_uuid(&image, fstype)?;
        }
        if record.content != Content::Filesystem {
            // Made by an earlier call that did not come to write it down, or brought along.
            pool.update(id, |record| {
                record.content = Content::Filesystem;
                Ok::<_, PoolError>(())
            })?;
        }
        Ok(())
    }

    /// Makes the filesystem, or copies the one that was made for another volume of this shape.
    fn fill_scratch(
        &self,
        pool: &Pool,
        record: &Record,
        scratch: &File,
        fstype: FsType,
        options: &FormatOptions,
    ) -> Result<(), Refusal> {
        if fstype != FsType::Ext4 {
            return Ok(format::make(scratch, fstype, options)?);
        }
        // Another version of this program may make another filesystem of the same shape.
        let version = env!("CARGO_PKG_VERSION");
        let shape = format!("{fstype} {} {} {version}", record.capacity_bytes, options.shape());
        if !pool.copy_template(&shape, scratch)? {
            let _alone = pool.make_template();
            if !pool.copy_template(&shape, scratch)? {
                format::make(scratch, fstype, options)?;
                if let Err(error) = pool.keep_template(&shape, scratch, &self.config.node_id) {
                    // The next volume of this shape takes longer, and that is all.
                    tracing::debug!(volume = %record.id, %error, "no template was kept");
                }
                return Ok(());
            }
        }
        if let Err(error) = format::template::renew_fresh(scratch) {
            // The next try makes it again.
            pool.drop_template(&shape)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Undoes [`Inner::stage`].
    pub(crate) fn unstage(
        &self,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Refusal> {
        let done = Ok(NodeUnstageVolumeResponse {});
        let given = request.staging_target_path.as_str();
        let id = self.node_volume(&request.volume_id, &[("staging_target_path", given)])?;
        let (pool, _) = self.need(&id)?;
        let checked = match CheckedPath::resolve(given) {
            Ok(checked) => Some(checked),
            Err(PathError::NoParent(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let observed = self.observe(pool, &id)?;
        let mounted = checked
            .as_ref()
            .and_then(|checked| observed.at(checked))
            .filter(|entry| observed.is_filesystem(entry));
        let noted_here =
            observed.staged.as_ref().is_some_and(|staged| same_text(&staged.path, given));
        if mounted.is_none() && !noted_here {
            return done;
        }
        let other = observed
            .mounts()
            .into_iter()
            .find(|entry| checked.as_ref().is_none_or(|p| p.path() != entry.path));
        if let Some(other) = other {
            let text = format!("volume {id} is still published at {}", show(&other.path));
            return Err(Refusal::Precondition(text));
        }
        if self.config.faults.forgets(Leak::Device) {
            pool.forget_staging(&id, &self.config.node_id)?;
            return done;
        }
        if let Some(entry) = mounted {
            unmount(&entry.path)?;
        }
        self.fault("unstage.unmounted");
        self.free_device(&observed)?;
        self.fault("unstage.detached");
        pool.forget_staging(&id, &self.config.node_id)?;
        done
    }

    /// Waits for the device of a filesystem to go by itself, or sends a raw one away.
    pub(super) fn free_device(&self, observed: &Observed) -> Result<(), Refusal> {
        let Some(device) = observed.device else { return Ok(()) };
        if loopdev::find(&observed.id, observed.backing, &observed.tag)?.is_some()
            && loopdev::is_claimed(device)?
        {
            loopdev::wait_gone(&observed.id, device)?;
        } else {
            loopdev::detach(&observed.id, observed.backing, &observed.tag)?;
        }
        // Others may take discards, and the device must not keep them from it.
        Ok(tune::renew(device.number)?)
    }
}

/// Whether the volume is staged as wanted; refuses when it is staged in another way.
fn already_staged(
    observed: &Observed,
    checked: &CheckedPath,
    wanted: &Staged,
) -> Result<bool, Refusal> {
    let differs =
        |how: &str| Err(Refusal::Exists(format!("volume {} is staged {how}", observed.id)));
    let noted = observed.staged.as_ref().filter(|_| observed.device.is_some());
    if let Some(noted) = noted
        && noted.block
    {
        return match (same_text(&noted.path, &wanted.path), wanted.block) {
            (true, true) if noted.read_only == wanted.read_only => Ok(true),
            (true, _) => differs("in another way"),
            (false, _) => differs(&format!("at {}", noted.path)),
        };
    }
    let Some(entry) = observed.at(checked) else { return Ok(false) };
    if !observed.is_filesystem(entry) {
        let text = format!("something else is mounted at {}", show(&entry.path));
        return Err(Refusal::Precondition(text));
    }
    // The mount and not the filesystem counts: the latter turns read-only after an I/O error.
    if wanted.block || entry.read_only != wanted.read_only {
        return differs("in another way");
    }
    Ok(true)
}
